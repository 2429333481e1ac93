"""Which code may run because a stranger's recipe names it: a run folder may be anybody's, and so is the recipe in it.

What lies in the user's own folders runs: the working folder, PYTHONPATH. Three kinds do not. Code that lies with runs
may have come with one. Installed packages and Python's own library hold functions that run whatever text the data give
them. Where Python would find a function is looked up without running anything.
"""

from __future__ import annotations

import site
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from gtpo_cli.recipe.section import CodeName

_RECIPE = "recipe.yaml"
_OF_RUNS = ("metrics.jsonl", "environment.json", "checkpoints", "samples", ".lock")  # what nothing but a run has


def why_not(name: CodeName, run: Path) -> str | None:
    """Why code that a run's recipe names is not run; None where it may be."""
    module = name.rpartition(":")[0]
    if not module.endswith(".py") and module.partition(".")[0] in sys.stdlib_module_names:
        return "is of Python's own library, whose functions can do anything"
    places = [{file, *file.parents} for file in _places(name)]
    installed = {Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())}
    if any(around & installed for around in places):
        return "is of an installed package, whose functions can do anything"
    near, here = _near(run.resolve()), open_to_users()
    if any(around & near or any(_is_run(folder, sure=folder in here) for folder in around) for around in places):
        return "lies in a folder with runs, and may have come with one"
    return None


def open_to_users() -> set[Path]:
    """The working folder and those above it, which may hold runs and the user's own code side by side."""
    return {Path.cwd(), *Path.cwd().parents}


def _near(run: Path) -> set[Path]:
    """The run, and the folders that may have come with it: all between it and the working folder; of a run elsewhere
    the folder that holds it."""
    above = run.parents if Path.cwd() in run.parents else run.parents[:1]
    return {run, *above} - (open_to_users() - {run})


def stands_in_a_run() -> bool:
    """Whether the working folder is a run."""
    return _is_run(Path.cwd(), sure=True)


def _is_run(folder: Path, *, sure: bool) -> bool:
    """`sure`: a recipe alone is not enough, since users call theirs recipe.yaml too."""
    if not (folder / _RECIPE).exists():
        return False
    return not sure or any((folder / name).exists() for name in _OF_RUNS)


def _places(name: CodeName) -> Iterator[Path]:
    """The files and folders that importing the module of `name` would run or look into."""
    module = name.rpartition(":")[0]
    if module.endswith(".py"):
        yield Path(module).expanduser().resolve()
        return
    folders = [*sys.path, str(Path.cwd())]
    for part in module.split("."):
        # By its last name alone: asked for "runs.theirs.code" the finder would want its parents to be imported.
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return
        if spec.origin is not None and spec.has_location:
            yield Path(spec.origin).resolve()
        folders = list(spec.submodule_search_locations or ())
        yield from (Path(folder).resolve() for folder in folders)
