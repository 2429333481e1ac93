"""Checkpoints: everything a run needs to continue as if it had never stopped, written aside and renamed.

    checkpoints/step-000500/
      model/          adapter (or all weights) as safetensors, tokenizer
      training.pt     optimiser, scheduler, random states, samples for coming steps; read with
                      weights_only=True, no pickle
      state.json      step, position in metrics.jsonl, the best checkpoint's value
      manifest.json   size and SHA-256 of every other file

Files are flushed to disk before the rename, so a folder with its final name was complete. The manifest shows whether it
still is. A damaged checkpoint is never used.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from gtpo_cli.errors import CheckpointError, system_words, translated
from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.files import Count, Finite, folder_aside, guarded, open_regular, read_json, remedy, step_of
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.text import one_line

_MANIFEST = "manifest.json"
_PARTS = ("updater", "random")  # of training.pt
# Exceptions of a failing disk in Python, in torch's writer and in that of safetensors.
_WRITE_ERRORS = (OSError, RuntimeError, SafetensorError)


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The content of state.json.

    `step`: steps finished; `metrics_bytes`: length of metrics.jsonl at that time; `best_step` and `best_value`: of the
    best checkpoint so far by `training.keep_best`, None before the first comparison; `scheduled`: False if it was only
    saved because the run ended early; `rollbacks`: rollbacks by the guard so far; `stopped`: the reason why the guard
    ended the run here, else None.
    """

    step: Count
    metrics_bytes: Count
    best_step: Count | None = None
    best_value: Finite | None = None
    scheduled: bool = True
    rollbacks: Count = 0
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file in the manifest."""

    bytes: Count
    sha256: str


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep_last: int) -> None:
        self._folder = folder
        self._keep_last = keep_last

    def steps(self) -> list[int]:
        """List the steps that have a checkpoint, ascending."""
        found = (step_of(path.name) for path in self._folder.glob("step-*") if path.is_dir())
        return sorted(step for step in found if step is not None)

    def scheduled_steps(self) -> list[int]:
        """List the steps whose checkpoints a run without interruptions would have too, ascending."""
        scheduled = []
        for step in self.steps():
            with suppress(CheckpointError):  # `check` reports it
                if not self.load_state(step).scheduled:
                    continue
            scheduled.append(step)
        return scheduled

    def path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

    def leftovers(self) -> list[Path]:
        """List the folders that a process left when it was killed while writing or removing a checkpoint."""
        return list(self._folder.glob(".step-*.tmp"))

    def remove_leftovers(self) -> None:
        for path in self.leftovers():
            shutil.rmtree(path, ignore_errors=True)

    def save(
        self,
        state: CheckpointState,
        save_weights: Callable[[Path], None],
        trained: Iterable[torch.nn.Parameter],
        training: dict[str, Any],
    ) -> Path:
        """Write a checkpoint and delete those that retention does not keep.

        Args:
            save_weights: writes the weights into a folder (`Policy.save`).
            trained: those weights. If one is infinite or NaN, nothing is saved.
            training: the trainer's state; `random_states` is added.
        Raises:
            CheckpointError: the weights are not finite, or the disk cannot be written.
        """
        if not all(bool(torch.isfinite(parameter).all()) for parameter in trained):
            raise CheckpointError(f"{self.path(state.step)}: not saved, because the weights are not finite")
        final = self.path(state.step)

        def failure(error: BaseException) -> CheckpointError:
            why, what = system_words(error), remedy(error, self._folder)
            return CheckpointError(
                f"{final}: the checkpoint cannot be written ({why}); earlier ones are untouched. "
                f"{what[0].upper()}{what[1:]}, then continue with gtpo train --resume {self._folder.parent}"
            )

        with translated(_WRITE_ERRORS, failure):
            self._folder.mkdir(exist_ok=True)  # not parents=True: a run folder that was moved away must not come back
            with folder_aside(final) as aside:
                (aside / "model").mkdir()
                save_weights(aside / "model")
                torch.save(training | {"random": random_states()}, aside / "training.pt")
                (aside / "state.json").write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
                write_manifest(aside)
        self.prune(state)
        return final

    def check(self, step: int) -> None:
        """Raise CheckpointError, naming the first file of the checkpoint that changed since it was written."""
        folder, manifest = self.path(step), self.path(step) / _MANIFEST
        for name, entry in self._entries(step).items():
            file = folder / name
            with guarded(lambda why, file=file: _damaged(file, why)):  # type: ignore[misc]
                if not file.resolve().is_relative_to(folder.resolve()):
                    raise _damaged(manifest, f"names a file outside of the checkpoint: {one_line(name)}")
                with open_regular(file) as stream:
                    found = os.fstat(stream.fileno()).st_size
                    if found != entry.bytes:
                        raise _damaged(file, f"has {found:,} bytes of {entry.bytes:,}")
                    if hashlib.file_digest(stream, "sha256").hexdigest() != entry.sha256:
                        raise _damaged(file, "changed since it was written")

    def files(self, step: int, folder: str) -> list[str]:
        """List the files in a folder of the checkpoint by its manifest. Raises CheckpointError."""
        return [name.rpartition("/")[2] for name in self._entries(step) if name.rpartition("/")[0] == folder]

    def _entries(self, step: int) -> dict[str, _Entry]:
        manifest = self.path(step) / _MANIFEST
        return read_json(manifest, dict[str, _Entry], lambda why: _damaged(manifest, f"cannot be read: {why}"))

    def newest_intact(self) -> tuple[int | None, list[str]]:
        """Return the step of the newest intact checkpoint and the problems of newer ones; (None, []) without any.

        Raises CheckpointError if there are checkpoints and all are damaged.
        """
        problems: list[str] = []
        for step in reversed(self.steps()):
            try:
                self.check(step)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            return step, problems
        if problems:
            raise CheckpointError("\n".join([*problems, f"{self._folder}: no checkpoint is intact; start a new run"]))
        return None, []

    def set_aside(self, *, after: int) -> list[Path]:
        """Rename the checkpoints of later steps, so that these can be made and saved again; return the new paths."""
        moved = []
        for step in (step for step in self.steps() if step > after):
            number = 1
            while (target := self._folder / f"damaged-{self.path(step).name}-{number}").exists():
                number += 1
            moved.append(self.path(step).rename(target))
        return moved

    def load_state(self, step: int) -> CheckpointState:
        """Load state.json. Raises CheckpointError that names the file."""
        file = self.path(step) / "state.json"
        state = read_json(file, CheckpointState, lambda why: _unusable(file, why))
        if state.step != step:
            raise _unusable(file, f"it belongs to step {state.step}")
        return state

    @contextmanager
    def training(self, step: int) -> Iterator[dict[str, Any]]:
        """Load optimiser, scheduler and random states for the block, which restores them.

        Raises CheckpointError, also if the block finds that they do not fit the run.
        """
        file = self.path(step) / "training.pt"
        with guarded(lambda why: _unusable(file, why)), open_regular(file) as stream:
            _check_plain(stream)
            loaded = torch.load(stream, map_location="cpu", weights_only=True)
            if not isinstance(loaded, dict) or not all(isinstance(loaded.get(key), dict) for key in _PARTS):
                raise ValueError(f"it lacks {' or '.join(_PARTS)}")
        with guarded(lambda why: _unusable(file, f"it does not fit this run: {why}")):
            yield loaded

    def surplus(self, state: CheckpointState) -> list[int]:
        """List the steps of checkpoints that retention does not keep. `state`: that of the newest one."""
        keep = {*self.scheduled_steps()[-self._keep_last :], state.best_step, state.step}
        return [step for step in self.steps() if step not in keep]

    def prune(self, state: CheckpointState) -> None:
        """Delete the checkpoints that retention does not keep."""
        for step in self.surplus(state):
            with suppress(OSError):  # on a network disk it may still be open; the next start removes it
                shutil.rmtree(self.path(step).rename(self._folder / f".{self.path(step).name}.tmp"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a run: steps finished, its folder, and the subfolder with the weights."""

    step: int
    path: Path
    weights: str = "model"

    @property
    def model(self) -> Path:
        return self.path / self.weights

    @property
    def manifest(self) -> Path:
        return self.path / _MANIFEST

    @property
    def has_full_weights(self) -> bool:
        """False if it holds an adapter, which needs its base model."""
        return (self.model / "config.json").is_file()


def step_or_word(text: str) -> str | int:
    """Parse the checkpoint a user names: a number is a step."""
    return int(text) if re.fullmatch("[0-9]{1,12}", text) else text


def choose_checkpoint(run: RunFolder, which: str | int = "best") -> Checkpoint:
    """Choose "best" by `training.keep_best` (the newest before any comparison), "last", or the checkpoint of a step.

    Raises CheckpointError that lists the available steps, or names the damaged file.
    """
    store = CheckpointStore(run.checkpoints, keep_last=1)
    steps = store.steps()
    if not steps:
        raise CheckpointError(f"{run.path}: has no checkpoint yet; continue with gtpo train --resume {run.path}")
    newest = steps[-1]
    step = newest if which in ("last", "best") else which
    if which == "best":
        _check(store, newest)  # it knows which one is best
        best = store.load_state(newest).best_step
        step = best if best in steps else newest
    if not isinstance(step, int) or step not in steps:
        there = ", ".join(map(str, steps))
        raise CheckpointError(
            f"{run.path}: there is no checkpoint {which}; choose best, last or one of the steps {there}"
        )
    if which != "best" or step != newest:
        _check(store, step)
    return Checkpoint(step, store.path(step))


def _check(store: CheckpointStore, step: int) -> None:
    try:
        store.check(step)
    except CheckpointError as error:
        others = ", ".join(str(other) for other in store.steps() if other != step) or "none"
        raise CheckpointError(f"{error}; choose another step: with --checkpoint, or RUN:STEP ({others})") from error


def write_manifest(folder: Path) -> None:
    """Write a checkpoint's manifest, with size and SHA-256 of all files below its folder."""
    entries = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        entries[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest}
    (folder / _MANIFEST).write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def _check_plain(stream: BufferedReader) -> None:
    """Raise ValueError if an archive has compressed parts, which could unpack to far more. torch writes none."""
    with suppress(zipfile.BadZipFile):  # torch's own error says so
        parts = zipfile.ZipFile(stream).infolist()
        if sum(part.file_size for part in parts) > os.fstat(stream.fileno()).st_size:
            raise ValueError("it is compressed")
    stream.seek(0)


def _unusable(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{file}: cannot be read ({why}); delete {file.parent} to use the one before")


def _damaged(file: Path, how: str) -> CheckpointError:
    return CheckpointError(f"{file}: damaged checkpoint: the file {how}")


def seed_random_states(seed: int) -> None:
    """Seed the global generators. User rewards may draw from them; the run's own sampling does not."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def random_states() -> dict[str, Any]:
    """Return the states of the global generators (adapter dropout, user rewards) as tensors and plain numbers."""
    name, keys, *rest = np.random.get_state()
    version, internal, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), *(float(value) for value in rest)],
        "python": [version, torch.tensor(internal, dtype=torch.int64), gauss],
    }


def restore_random_states(states: dict[str, Any]) -> str | None:
    """Restore the states from `random_states`.

    If the number of visible GPUs changed, only the first GPUs that both machines have are restored. The returned
    sentence says so; it is None otherwise.
    """
    torch.set_rng_state(states["torch"])
    then, now = len(states["cuda"]), torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, state in enumerate(states["cuda"][:now]):
        torch.cuda.set_rng_state(state, device)
    name, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), int(position), int(has_gauss), gauss))
    version, internal, next_gauss = states["python"]
    random.setstate((version, tuple(internal.tolist()), next_gauss))
    if then == now:
        return None
    return (
        f"the checkpoint has the random states of {then} visible GPU{'s' * (then != 1)}, but {now} "
        f"{'is' if now == 1 else 'are'} visible here: {min(then, now) or 'none'} restored; adapter dropout may draw "
        "other numbers than in a run without interruption"
    )


def finished_at(run: RunFolder, recipe: Recipe) -> int | None:
    """Return the run's last step if all steps are made and the last checkpoint is intact, else None.

    It is also None if a killed process left files to remove, if the guard stopped the run at its last step, or if the
    number of steps is unknown. Raises CheckpointError if no checkpoint is intact.
    """
    total = recipe.training.max_steps or run.environment().total_steps
    store = CheckpointStore(run.checkpoints, keep_last=recipe.training.keep_last)
    if total is None or max(store.steps(), default=0) < total or store.leftovers():
        return None
    step, _ = store.newest_intact()
    if step is None or step < total:
        return None
    state = store.load_state(step)
    return None if state.stopped or store.surplus(state) else step
