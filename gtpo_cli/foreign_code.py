"""Which code may run because a stranger's recipe names it: a run folder may be anybody's, and so is the recipe in it.

Code that lies with runs does not run: in the run itself, in the folder that holds it, or in any other run. That is
decided by where Python would find it, which is looked up without running anything.
"""

from __future__ import annotations

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
    return "lies in a folder with runs, and may have come with one" if _lies_with_runs(name, run) else None


def _lies_with_runs(name: CodeName, run: Path) -> bool:
    """Whether any of a function's code lies with runs, seen from a run whose recipe names it.

    The working folder, and those above it, may hold runs and the user's own code side by side: code in them counts only
    where they are a run themselves.
    """
    run, here = run.resolve(), Path.cwd()
    open_to_users = {here, *here.parents}
    for file in _places(name):
        around = {file, *file.parents}
        if run in around or (run.parent in around and run.parent not in open_to_users):
            return True
        if any(_is_run(folder, sure=folder in open_to_users) for folder in around):
            return True
    return False


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
