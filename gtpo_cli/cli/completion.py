"""Shell completion of recipes and run folders.

Each function gets the typed start of a word and returns the whole words that begin with it. If there are none, the
shell completes files. Import nothing heavy here: this runs at every press of the Tab key.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gtpo_cli.recipe import shipped_recipes
from gtpo_cli.runs.folder import RECIPE_FILE, RUNS


def recipes(incomplete: str) -> list[str]:
    """Complete shipped recipes and YAML files."""
    files = [path for path in _siblings(incomplete) if path.endswith((".yaml", ".yml"))]
    return [name for name in (*shipped_recipes(), *files) if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Complete runs in the typed folder and in runs/."""
    found = {path for start in (incomplete, f"{RUNS}/") for path in _siblings(start)}
    return sorted(path for path in found if path.startswith(incomplete) and Path(path, RECIPE_FILE).is_file())


def _siblings(typed: str) -> list[str]:
    """List the paths in the folder of a partly typed path, spelled as typed."""
    folder = typed[: typed.rfind("/") + 1]
    with suppress(OSError):
        return sorted(folder + path.name for path in Path(folder or ".").iterdir() if not path.name.startswith("."))
    return []
