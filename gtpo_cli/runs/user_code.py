"""The functions that a recipe names: importing them, reporting their errors, and deciding which may run.

A run folder and its recipe may come from a stranger. Code in the user's own folders (the working folder and PYTHONPATH)
may run. Three kinds of code do not run just because a stranger's recipe names them: code in a folder with runs, which
may have come with one, and functions of installed packages and of Python's own library, which can run any text from
the data. These checks locate a function without running anything.

Whatever torch mode a user's code switches, training goes on as before.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from gtpo_cli.errors import GtpoError, Terminated, translated
from gtpo_cli.text import describe
from gtpo_cli.types import CodeName

Modes = Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]  # how each mode is read and written

_lock = threading.Lock()
_open_blocks = 0
_before: dict[str, Any] = {}  # modes of the process before the first open block
_guards: list[Any] = []  # torch leaves an inference mode when its guard is freed, so these stay


@contextmanager
def torch_modes_kept() -> Iterator[None]:
    """Restore the modes of torch that the block changed, and those of a fresh torch if the block imported it.

    Blocks may overlap in threads. Then the modes of the process stay those from before the first of them.
    """
    global _open_blocks, _before
    known = "torch" in sys.modules
    of_thread = _read(_modes_of_thread()) if known else {}
    with _lock:
        if _open_blocks == 0:
            _before = _read(_modes_of_process()) if known else {}
        _open_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _open_blocks -= 1
            if "torch" in sys.modules:
                _restore(_modes_of_thread(), of_thread)
                _restore(_modes_of_process(), _before)


def _read(modes: Modes) -> dict[str, Any]:
    return {name: read() for name, (read, _) in modes.items()}


def _restore(modes: Modes, values: dict[str, Any]) -> None:
    for name, (read, write) in modes.items():
        value = values.get(name, _FRESH.get(name))
        if value is not None and read() != value:
            write(value)


# Names, so that torch need not be there. A fresh torch has as many threads as the machine's cores, so they have none.
_FRESH = {
    "inference": False, "gradients": True, "autocast": False, "autocast on a GPU": False, "device": "cpu",
    "type": "float32", "anomalies": False, "precision": "highest", "deterministic": False,
}  # fmt: skip


def _modes_of_thread() -> Modes:
    import torch

    def autocast(kind: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        return lambda: torch.is_autocast_enabled(kind), lambda on: torch.set_autocast_enabled(kind, on)

    return {
        "inference": (torch.is_inference_mode_enabled, lambda on: _guards.append(torch._C._InferenceMode(on))),
        "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),  # after inference, which switches them too
        "autocast": autocast("cpu"),
        "autocast on a GPU": autocast("cuda"),
        "device": (
            lambda: str(torch.get_default_device()),
            # A default of the CPU would be the same, but slow every call of torch.
            lambda device: torch.set_default_device(None if device == "cpu" else device),
        ),
    }


def _modes_of_process() -> Modes:
    import torch

    return {
        "type": (
            lambda: str(torch.get_default_dtype()).removeprefix("torch."),
            lambda name: torch.set_default_dtype(getattr(torch, name)),
        ),
        "anomalies": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    }


_RECIPE = "recipe.yaml"
_OF_RUNS = ("metrics.jsonl", "environment.json", "checkpoints", "samples", ".lock")  # found only in a run


@contextmanager
def running(wrong: Callable[[str], GtpoError]) -> Iterator[None]:
    """Turn any exception of the user's code in the block, sys.exit included, into `wrong(where and what)`.

    Torch's modes are after the block what they were before it.
    """
    passing = (KeyboardInterrupt, Terminated)
    with translated(BaseException, lambda error: wrong(_raised(error)), passing=passing), torch_modes_kept():
        yield


def import_function(dotted: str, wrong: Callable[[str], GtpoError]) -> Callable[..., Any]:
    """Import `pkg.module:function` or `file.py:function`, a CodeName. Raises `wrong(what is missing)`.

    It may be in the working folder. Then the function can later import the modules next to it too.
    """
    assert isinstance(dotted, CodeName), "RunFolder.recipe_to_run checks only values of this type"
    module_name, _, function_name = dotted.rpartition(":")
    if not module_name or not function_name:
        raise wrong("write it as pkg.module:function")
    missing = "install it, or put its folder on PYTHONPATH"
    with running(lambda said: wrong(f"module {module_name} cannot be imported ({said}); {missing}")):
        module = _imported(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise wrong(f"module {module_name} has no function {function_name}")
    found: Callable[..., Any] = function
    return found


def _imported(name: str) -> ModuleType:
    """Import a module, searching the working folder last and only for this import.

    A working folder that is a run must not supply modules to libraries. If the module came from the working folder, the
    folder stays on the path so that its neighbours can be imported.
    """
    with _working_folder_last() as here:
        module = _of_file(name) if name.endswith(".py") else importlib.import_module(name)
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    if here not in sys.path and any(Path(place).is_relative_to(here) for place in places if place):
        sys.path.append(here)
    return module


@contextmanager
def _working_folder_last() -> Iterator[str]:
    here = str(Path.cwd())
    if here in sys.path:
        yield here
        return
    sys.path.append(here)
    try:
        yield here
    finally:  # entries that the module itself added stay
        with suppress(ValueError):
            sys.path.remove(here)


def _of_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(path).expanduser())
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    taken = spec.name in sys.modules  # an installed module has this name
    if not taken:
        sys.modules[spec.name] = module  # dataclasses look their module up here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if not taken:
            del sys.modules[spec.name]
        raise
    return module


def missing_module(dotted: str) -> str | None:
    """Return the missing package, module or file of `pkg.module:function`, if any, without running its code."""
    named = dotted.rpartition(":")[0]
    if named.endswith(".py"):
        return None if Path(named).expanduser().is_file() else named
    top = named.partition(".")[0]
    try:
        with _working_folder_last():
            return None if not top or importlib.util.find_spec(top) is not None else top
    except (ValueError, ImportError):  # not a module's name, or a module without a file
        return top


def _raised(error: BaseException) -> str:
    """Describe an exception of the user's code: `at rewards.py:12 in my_reward: KeyError: 'gold'`.

    The place is the user's innermost line, or one in an installed package if there is none.
    """
    own, installed, here = "", "", str(Path.cwd())
    for frame, number in traceback.walk_tb(error.__traceback__):
        file, function = frame.f_code.co_filename, frame.f_code.co_qualname.split(".<locals>.<")[0]
        place = f"at {os.path.relpath(file) if _is_below(file, [here]) else file}:{number} in {function}: "
        if _is_below(file, _INSTALLED):  # may be below Python's own library
            installed = place
        elif not _is_below(file, [_GTPO, *_PYTHON]) and not file.startswith("<"):
            own = place
    return (own or installed) + describe(error)


_GTPO = str(Path(__file__).parents[1])
_INSTALLED = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()]
_PYTHON = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]


def _is_below(file: str, folders: Iterable[str]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)


# -- code that may run ------------------------------------------------------------------------------------------------


def why_not(name: CodeName, run: Path) -> str | None:
    """Return why code that a run's recipe names must not run; None if it may."""
    module = name.rpartition(":")[0]
    if not module.endswith(".py") and module.partition(".")[0] in sys.stdlib_module_names:
        return "belongs to Python's own library, whose functions can do anything"
    places = [{file, *file.parents} for file in places_of(name)]
    installed = {Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())}
    if any(around & installed for around in places):
        return "belongs to an installed package, whose functions can do anything"
    near, here = _near(run.resolve()), open_to_users()
    if any(around & near or any(_is_run(folder, sure=folder in here) for folder in around) for around in places):
        return "is in a folder with runs and may have come with one"
    return None


def open_to_users() -> set[Path]:
    """Return the working folder and its parents, which may hold runs beside the user's own code."""
    return {Path.cwd(), *Path.cwd().parents}


def _near(run: Path) -> set[Path]:
    """Return the run and the folders that may have come with it.

    These are all folders between the run and the working folder, or the parent of a run elsewhere.
    """
    above = run.parents if Path.cwd() in run.parents else run.parents[:1]
    return {run, *above} - (open_to_users() - {run})


def stands_in_a_run() -> bool:
    """Return whether the working folder is a run."""
    return _is_run(Path.cwd(), sure=True)


def _is_run(folder: Path, *, sure: bool) -> bool:
    """Return whether a folder is a run. `sure`: recipe.yaml alone is not enough, as users have files of that name."""
    if not (folder / _RECIPE).exists():
        return False
    return not sure or any((folder / name).exists() for name in _OF_RUNS)


def code_digest(name: CodeName) -> str:
    """Return eight hexadecimal digits of the files that importing the module of `name` would run."""
    files = filter(Path.is_file, places_of(name))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def places_of(name: CodeName) -> Iterator[Path]:
    """Yield the files and folders that importing the module of `name` would run or search."""
    module = name.rpartition(":")[0]
    if module.endswith(".py"):
        yield Path(module).expanduser().resolve()
        return
    folders = [*sys.path, str(Path.cwd())]
    for part in module.split("."):
        # Search by the last name alone: for "runs.theirs.code" the finder would import the parents.
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return
        if spec.origin is not None and spec.has_location:
            yield Path(spec.origin).resolve()
        folders = list(spec.submodule_search_locations or ())
        yield from (Path(folder).resolve() for folder in folders)
