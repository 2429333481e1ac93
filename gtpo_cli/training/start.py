"""Starting a run from the weights of another run's checkpoint, or from an adapter (`model.start`).

The optimiser, its schedule, the order of the data and the initial entropy are the new run's own. The run keeps its
starting weights in <run>/start. So it can continue, and its base can be evaluated, even if the other run disappears.

A run's checkpoint never changes, so its files are hard-linked if the disk allows it. Other files are copied. Only the
files in a checkpoint's manifest, or the two of an adapter, are taken, and only regular files that fit on the disk,
since a foreign folder may hold anything.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtpo_cli.errors import CheckpointError, ModelError
from gtpo_cli.policy.tiny import recipe_name
from gtpo_cli.recipe.schema import LoraRecipe, ModelRecipe
from gtpo_cli.runs.checkpoints import Checkpoint, CheckpointStore, choose_checkpoint, step_or_word
from gtpo_cli.runs.files import folder_aside, guarded, open_regular, read_json, writing_run
from gtpo_cli.runs.folder import RunFolder

if TYPE_CHECKING:
    from gtpo_cli.policy.adapter_config import AdapterConfig

_ORIGIN = "start.json"
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_LARGEST = 2**36  # most bytes of a copied file; transformers writes weights in files of at most 50 GB


@dataclass(frozen=True, slots=True)
class Start:
    """Weights to start from.

    `name`: the value of `model.start`, with the step. `weights`: their folder. `run`: None for an adapter's folder.
    `base`: the model that was trained, if known, and its `revision`. `lora`: None if all weights were trained. `files`:
    those to take.
    """

    name: str
    weights: Path
    run: RunFolder | None
    base: str | None
    revision: str | None
    lora: LoraRecipe | None
    files: tuple[str, ...]

    def overrides(self) -> list[str]:
        """Return the `--set` overrides with which a recipe starts from here."""
        lora = None if self.lora is None else self.lora.model_dump(mode="json")
        model: dict[str, Any] = {"start": self.name, "lora": lora}
        if self.base is not None:
            model |= {"name": self.base, "revision": self.revision}
        if self.run is not None:
            model["load_in_4bit"] = self.run.recipe().model.load_in_4bit
        return [f"model.{key}={json.dumps(value)}" for key, value in model.items()]


def find_start(text: str) -> Start:
    """Find RUN, RUN:best, RUN:last, RUN:STEP (RUN means best, as for `gtpo eval`), or an adapter's folder.

    Raises ModelError for anything else, and CheckpointError for a missing or damaged checkpoint.
    """
    path, which = (Path(text), "best") if os.path.lexists(text) else _split(text)
    run = RunFolder(path)
    if run.recipe_file.is_file():
        model = run.recipe().model
        checkpoint = choose_checkpoint(run, step_or_word(which))
        files = tuple(CheckpointStore(run.checkpoints, keep_last=1).files(checkpoint.step, checkpoint.weights))
        name = f"{path}:{checkpoint.step}"
        return Start(name, checkpoint.model, run, model.name, model.revision, model.lora, files)
    if which == "best" and (path / _ADAPTER[0]).is_file():
        from gtpo_cli.policy.adapter_config import check_adapter_config

        found = check_adapter_config(path)
        lora = _lora_of(path / _ADAPTER[0], found)
        base = recipe_name(found.base_model_name_or_path) if found.base_model_name_or_path else None
        return Start(str(path), path, None, base, found.revision, lora, _ADAPTER)
    if (path / "config.json").is_file():
        raise ModelError(f"model.start: {path} is a whole model; train it with --set model.name={path}")
    what = "is neither a run nor an adapter" if path.is_dir() else "does not exist"
    raise ModelError(
        f"model.start: {path} {what}; name a run's folder (RUN, RUN:last, RUN:STEP) or a folder with {_ADAPTER[0]}"
    )


def check_fits(start: Start, model: ModelRecipe) -> None:
    """Raise ModelError if the recipe would train other weights than those it starts from."""
    if start.lora is None and model.lora is not None:
        raise ModelError(
            f"model.start: {start.name} has all weights trained, but this recipe trains an adapter (model.lora); "
            f"continue with all weights (--set model.lora=null), or train an adapter on that model (--set "
            f"model.start=null --set model.name={start.weights})"
        )
    if start.lora is None:
        return
    if model.lora is None:
        raise ModelError(
            f"model.start: {start.name} is an adapter, but this recipe trains all weights (model.lora: null); train "
            f"the adapter further (--set model.lora='{start.lora}'), or merge it (gtpo export --format merged) "
            "and set model.name to the result"
        )
    if _shape(model.lora) != _shape(start.lora):
        raise ModelError(
            f"model.start: the adapter {start.name} differs from model.lora and can only be trained as it is: "
            f"--set model.lora='{start.lora}'"
        )


def weights_for(model: ModelRecipe) -> Path | None:
    """Return the current folder of the weights that a recipe starts from, or None without `model.start`.

    Raises as `find_start` and `check_fits`.
    """
    if model.start is None:
        return None
    start = find_start(model.start)
    check_fits(start, model)
    return start.weights


def notes_on(start: Start, model: ModelRecipe) -> Iterator[str]:
    """Yield warnings about the start."""
    if start.run is not None and start.base != model.name:
        yield (
            f"{start.name} was trained from {start.base}, but this recipe names {model.name}; this is right only if "
            "they are the same model"
        )


def keep_start(model: ModelRecipe, run: RunFolder) -> Path | None:
    """Return the run's folder with the weights it starts from, creating it if needed; None without `model.start`.

    Raises ModelError, CheckpointError.
    """
    if model.start is None or run.start.is_dir():
        return start_folder(model, run)
    start = find_start(model.start)
    check_fits(start, model)
    failure = f"{run.start}: cannot be written"
    with (
        writing_run(run.path, lambda why, remedy: CheckpointError(f"{failure} ({why}); {remedy}, or see output_dir")),
        folder_aside(run.start) as aside,
    ):
        for name in start.files:
            _take(start.weights / name, aside / name, link=start.run is not None)
        (aside / _ORIGIN).write_text(json.dumps({"start": start.name}) + "\n", encoding="utf-8")
    return run.start


def start_folder(model: ModelRecipe, run: RunFolder) -> Path | None:
    """Return the run's folder with the weights it started from; None without `model.start`.

    Raises CheckpointError if the folder is missing.
    """
    if model.start is None:
        return None
    if not run.start.is_dir():
        raise CheckpointError(
            f"{run.start}: is missing; it had the weights of {model.start}, from which this run started; put "
            "the folder back as it was"
        )
    return run.start


def start_of(model: ModelRecipe, run: RunFolder) -> Checkpoint | None:
    """Return the weights a run started from as a checkpoint; None without `model.start`."""
    return None if start_folder(model, run) is None else Checkpoint(0, run.path, weights=run.start.name)


def record_facts(run: RunFolder, facts: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Write environment.json. `say` gets a sentence if products on the machine before had another type, or if the base
    came from another commit."""
    before = run.environment()
    if before.products not in (None, facts["products"]):
        say(
            f"this machine multiplies in {facts['products']}, and the one before in {before.products} "
            "(environment.json): steps differ by rounding from those that the run would have taken there"
        )
    if before.model_commit not in (None, facts["model_commit"]):
        say(
            f"{facts['model']} is at commit {facts['model_commit']} now, and was at {before.model_commit} at the first "
            f"start; if its weights changed, stop, and write model.revision: {before.model_commit} into "
            f"{run.recipe_file}"
        )
    first = before.model_commit or facts["model_commit"]
    run.write_environment({**facts, "model_commit": first, **_origin(run)})


def _origin(run: RunFolder) -> dict[str, str]:
    """Return the recorded `model.start` of a run (RUN:STEP or an adapter's folder), if any."""
    file = run.start / _ORIGIN
    if not file.is_file():
        return {}
    return read_json(file, dict[str, str], lambda why: CheckpointError(f"{file}: cannot be read ({why})"))


def _split(text: str) -> tuple[Path, str]:
    path, colon, which = text.rpartition(":")
    return (Path(path), which) if colon and path else (Path(text), "best")


def _lora_of(file: Path, found: AdapterConfig) -> LoraRecipe:
    """Return the adapter as a section `model.lora`. Raises ModelError for sizes outside the recipe's bounds."""
    with guarded(lambda why: ModelError(f"model.start: {file}: cannot be trained further ({why})")):
        return LoraRecipe(rank=found.r, alpha=found.lora_alpha, target_modules=found.target_modules)


def _shape(lora: LoraRecipe) -> tuple[int, float, frozenset[str]]:
    """Return what defines an adapter; the order of its layers does not."""
    return lora.rank, lora.alpha, frozenset(lora.target_modules)


def _take(file: Path, to: Path, *, link: bool) -> None:
    """Link or copy a file. Raises ModelError if it is not regular or too large, OSError if `to` cannot be written."""
    with guarded(lambda why: ModelError(f"model.start: {file}: {why}; get it again")):
        stream = open_regular(file)
    with stream:
        if link:
            with suppress(OSError):  # another disk, or a file system without hard links
                os.link(file.resolve(), to)
                return
        size, free = os.fstat(stream.fileno()).st_size, shutil.disk_usage(to.parent).free
        if size > min(free, _LARGEST):
            why = f"only {free:,} are free" if size > free else "no weights are that large"
            raise ModelError(f"model.start: {file}: has {size:,} bytes, but {why}")
        with to.open("xb") as copy:
            shutil.copyfileobj(stream, copy)
