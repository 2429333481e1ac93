"""Where a run starts, if not from its model as it is: the weights of another run's checkpoint, or an adapter
(`model.start`). The optimiser, its schedule, the order of the data and the initial entropy are the new run's own.

The run keeps what it started from in <run>/start, so that it goes on, and its base can be evaluated, whatever becomes
of the other run. A checkpoint of a run is never written to again: it is linked where the disk can do that, which takes
no room. What belongs to others is copied. Only the files that a checkpoint's manifest names are taken, or the two of an
adapter, and only regular ones for which there is room: a stranger's folder may hold anything.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtpo_cli.checkpoints import Checkpoint, CheckpointStore, choose_checkpoint, step_or_word
from gtpo_cli.errors import CheckpointError, ModelError
from gtpo_cli.files import folder_aside, guarded, open_regular, read_json, writing_run
from gtpo_cli.models.adapter_config import AdapterConfig, check_adapter_config
from gtpo_cli.models.tiny import recipe_name
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import LoraRecipe, ModelRecipe
from gtpo_cli.run_folder import RunFolder

_ORIGIN = "start.json"
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_LARGEST = 2**36  # bytes of a file that is copied; transformers writes weights in files of at most 50 GB


@dataclass(frozen=True, slots=True)
class Start:
    """`name`: as `model.start` says it, with the step. `weights`: their folder. `run`: None for an adapter's folder.
    `base`: the model that was trained, as far as is known. `lora`: None where all weights were trained. `files`: what
    is taken of the folder."""

    name: str
    weights: Path
    run: RunFolder | None
    base: str | None
    lora: LoraRecipe | None
    files: tuple[str, ...]

    def overrides(self) -> list[str]:
        """What a recipe must say to start from here, as `--set` has it."""
        lora = None if self.lora is None else self.lora.model_dump(mode="json", exclude={"dropout"})
        model: dict[str, Any] = {"start": self.name, "lora": lora}
        if self.base is not None:
            model["name"] = self.base
        if self.run is not None:
            own = self.run.recipe().model
            model |= {"revision": own.revision, "load_in_4bit": own.load_in_4bit}
        return [f"model.{key}={json.dumps(value)}" for key, value in model.items()]


def find_start(text: str) -> Start:
    """RUN, RUN:best, RUN:last, RUN:STEP (best where nothing is said, as for `gtpo eval`), or an adapter's folder.

    Raises ModelError for what is none of these, CheckpointError for a checkpoint that is not there or damaged.
    """
    path, which = (Path(text), "best") if os.path.lexists(text) else _split(text)
    run = RunFolder(path)
    if run.recipe_file.is_file():
        model = run.recipe().model
        checkpoint = choose_checkpoint(run, step_or_word(which))
        files = tuple(CheckpointStore(run.checkpoints, keep_last=1).files(checkpoint.step, checkpoint.weights))
        return Start(f"{path}:{checkpoint.step}", checkpoint.model, run, model.name, model.lora, files)
    if which == "best" and (path / _ADAPTER[0]).is_file():
        found = check_adapter_config(path)
        lora = _lora_of(path / _ADAPTER[0], found)
        base = found.base_model_name_or_path
        return Start(str(path), path, None, base and recipe_name(base), lora, _ADAPTER)
    if (path / "config.json").is_file():
        raise ModelError(f"model.start: {path} is a whole model; train it with --set model.name={path}")
    what = "is no run and no adapter" if path.is_dir() else "does not exist"
    raise ModelError(
        f"model.start: {path} {what}; name a run's folder (RUN, RUN:last, RUN:STEP) or a folder with {_ADAPTER[0]}"
    )


def check_fits(start: Start, model: ModelRecipe) -> None:
    """Raise ModelError where the recipe would train other weights than those it starts from."""
    if start.lora is None and model.lora is not None:
        raise ModelError(
            f"model.start: {start.name} has all weights trained, and this recipe trains an adapter (model.lora): go on "
            f"with all weights, --set model.lora=null, or put the adapter on that model: --set model.start=null --set "
            f"model.name={start.weights}"
        )
    if start.lora is None:
        return
    if model.lora is None:
        raise ModelError(
            f"model.start: {start.name} is an adapter, and this recipe trains all weights (model.lora: null): train "
            f"the adapter further, --set model.lora={_shown(start.lora)}, or merge it (gtpo export --format merged) "
            "and name the result as model.name"
        )
    if _said(model.lora) != _said(start.lora):
        raise ModelError(
            f"model.start: the adapter {start.name} is another one than model.lora says, and is trained further as it "
            f"is: --set model.lora={_shown(start.lora)}"
        )


def weights_for(model: ModelRecipe) -> Path | None:
    """The folder of the weights that a recipe starts from, where they are now; None without. Raises as `find_start`
    and `check_fits`."""
    if model.start is None:
        return None
    start = find_start(model.start)
    check_fits(start, model)
    return start.weights


def notes_on(start: Start, model: ModelRecipe) -> Iterator[str]:
    """What a user should know."""
    if start.run is not None and start.base != model.name:
        yield (
            f"{start.name} was trained from {start.base}, and this recipe names {model.name}: right if they are the "
            "same model"
        )


def keep_start(recipe: Recipe, run: RunFolder) -> Path | None:
    """The folder in the run with the weights it starts from, made where it is not there yet; None where it starts from
    its model as it is. Raises ModelError, CheckpointError."""
    if recipe.model.start is None or run.start.is_dir():
        return start_folder(recipe, run)
    start = find_start(recipe.model.start)
    check_fits(start, recipe.model)
    failure = f"{run.start}: cannot be written"
    with (
        writing_run(run.path, lambda why, remedy: CheckpointError(f"{failure} ({why}); {remedy}, or see output_dir")),
        folder_aside(run.start) as aside,
    ):
        for name in start.files:
            _take(start.weights / name, aside / name, link=start.run is not None)
        (aside / _ORIGIN).write_text(json.dumps({"start": start.name}) + "\n", encoding="utf-8")
    return run.start


def start_folder(recipe: Recipe, run: RunFolder) -> Path | None:
    """The folder in a run with the weights it started from, None without one. Raises CheckpointError where it lacks."""
    if recipe.model.start is None:
        return None
    if not run.start.is_dir():
        raise CheckpointError(
            f"{run.start}: is missing: the weights of {recipe.model.start}, from which this run started; put the "
            "folder back as it was"
        )
    return run.start


def start_of(recipe: Recipe, run: RunFolder) -> Checkpoint | None:
    """What a run's base is: the weights it started from; None where that is its model as it is."""
    return None if start_folder(recipe, run) is None else Checkpoint(0, run.path, weights=run.start.name)


def origin(run: RunFolder) -> dict[str, str]:
    """For environment.json, where a run did not start from its model as it is: RUN:STEP or an adapter's folder, as it
    was called then."""
    file = run.start / _ORIGIN
    if not file.is_file():
        return {}
    return read_json(file, dict[str, str], lambda why: CheckpointError(f"{file}: cannot be read ({why})"))


def _split(text: str) -> tuple[Path, str]:
    path, colon, which = text.rpartition(":")
    return (Path(path), which) if colon and path else (Path(text), "best")


def _lora_of(file: Path, found: AdapterConfig) -> LoraRecipe:
    """The adapter as a recipe says it. Raises ModelError for sizes that a recipe cannot say."""
    with guarded(lambda why: ModelError(f"model.start: {file}: cannot be trained further ({why})")):
        return LoraRecipe(rank=found.r, alpha=found.lora_alpha, target_modules=found.target_modules)


def _said(lora: LoraRecipe) -> tuple[int, float, frozenset[str]]:
    """What an adapter is; dropout is of training alone."""
    return lora.rank, lora.alpha, frozenset(lora.target_modules)


def _shown(lora: LoraRecipe) -> str:
    """As a shell and YAML read it."""
    return f"'{{rank: {lora.rank}, alpha: {lora.alpha:g}, target_modules: [{', '.join(lora.target_modules)}]}}'"


def _take(file: Path, to: Path, *, link: bool) -> None:
    """Raises ModelError for what is no regular file or too large to be what it should, OSError where `to` fails."""
    with guarded(lambda why: ModelError(f"model.start: {file}: {why}; get it again")):
        stream = open_regular(file)
    with stream:
        if link:
            with suppress(OSError):  # another disk, or one without links
                os.link(file.resolve(), to)
                return
        size, free = os.fstat(stream.fileno()).st_size, shutil.disk_usage(to.parent).free
        if size > min(free, _LARGEST):
            why = f"only {free:,} are free" if size > free else "no weights are so large"
            raise ModelError(f"model.start: {file}: has {size:,} bytes, and {why}")
        with to.open("xb") as copy:
            shutil.copyfileobj(stream, copy)
