"""Loading what is evaluated: the untrained model of a recipe, or one of a run's checkpoints."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtpo_cli.checkpoints import CheckpointStore
from gtpo_cli.errors import CheckpointError, ModelError
from gtpo_cli.files import open_regular, walled
from gtpo_cli.generation import Sampler, load_sampler
from gtpo_cli.models import Policy, load_policy, load_tokenizer
from gtpo_cli.models.engines import on_transformers
from gtpo_cli.models.loading import set_threads
from gtpo_cli.models.tiny import BUILTIN_PREFIX, resolve_name
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder

# Of a model's folder: weights, configurations, tokenizer, chat template.
_DECISIVE_FILES = ("*.safetensors", "*model*.bin", "*config.json", "*.jinja", "tokenizer.*", "vocab.*", "merges.txt")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated; the policy's temperature is the evaluation's."""

    policy: Policy
    sampler: Sampler


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a run: steps finished, its folder, and the folder in that with the weights."""

    step: int
    path: Path
    weights: str = "model"

    @property
    def model(self) -> Path:
        return self.path / self.weights

    @property
    def has_full_weights(self) -> bool:
        """False where it holds an adapter, which needs its base model."""
        return (self.model / "config.json").is_file()


def step_or_word(text: str) -> str | int:
    """Which checkpoint a user means: a step where it is a number."""
    return int(text) if re.fullmatch("[0-9]{1,12}", text) else text


def choose_checkpoint(run: RunFolder, which: str | int = "best") -> Checkpoint:
    """ "best" by `training.keep_best` (the newest where nothing was compared), "last", or the step of a checkpoint.

    Raises CheckpointError that lists the steps there are, or names what is damaged.
    """
    store = CheckpointStore(run.checkpoints, keep_last=1)
    steps = store.steps()
    if not steps:
        raise CheckpointError(f"{run.path}: has no checkpoint yet; go on with gtpo train --resume {run.path}")
    step = steps[-1] if which == "last" else which
    newest = None
    if which == "best":
        newest, _ = store.newest_intact()
        assert newest is not None
        best = store.load_state(newest).best_step
        step = best if best in steps else newest
    if not isinstance(step, int) or step not in steps:
        there = ", ".join(map(str, steps))
        raise CheckpointError(f"{run.path}: there is no checkpoint {which}; there are best, last and the steps {there}")
    if step != newest:  # which was checked
        try:
            store.check(step)
        except CheckpointError as error:
            others = ", ".join(str(other) for other in steps if other != step) or "none"
            raise CheckpointError(f"{error}; choose another step: with --checkpoint, or RUN:STEP ({others})") from error
    return Checkpoint(step, store.path(step))


def load_frozen(
    recipe: Recipe, checkpoint: Checkpoint | None, *, temperature: float, streaming: bool = False
) -> Policy:
    """The recipe's policy at a checkpoint (full weights, or an adapter on its base) or untrained, to measure.

    It measures at `temperature`. `streaming`: on transformers whatever the recipe says, for
    `gtpo_cli.generation.stream`, which asks the model token by token. Raises ModelError, CheckpointError.
    """
    full_weights = checkpoint is not None and checkpoint.has_full_weights
    try:
        with _relative_names_explained(recipe):
            of_checkpoint = _of_checkpoint(recipe, checkpoint)
            measured = on_transformers(of_checkpoint) if streaming else of_checkpoint
            changes = {
                "rollout": measured.rollout.model_copy(update={"temperature": temperature}),
                "objective": measured.objective.model_copy(update={"kl_coef": 0.0}),  # no reference model is loaded
            }
            policy = load_policy(measured.model_copy(update=changes), trains=False)
        if checkpoint is not None and not full_weights:
            policy.load(checkpoint.model)
    except ModelError as error:
        if checkpoint is None or not full_weights:
            raise  # it is about the base model
        raise CheckpointError(
            f"{checkpoint.model}: the weights cannot be read ({error}); choose another checkpoint"
        ) from error
    set_threads(recipe.training.threads, policy)
    return policy


class SubjectLoader:
    """Loads what is evaluated, the untrained model before the trained one, and one model in memory at a time.

    Where the checkpoint is an adapter its base is loaded once, and gets the adapter when its turn comes: loading takes
    minutes, and two engines that share their policy's weights cannot be in one process.
    """

    def __init__(self, recipe: Recipe, checkpoint: Checkpoint | None, *, start: Checkpoint | None = None) -> None:
        """`checkpoint`: None where only the untrained model is evaluated, which is what the run started from (`start`),
        or the recipe's model."""
        self._recipe, self._checkpoint, self._start = recipe, checkpoint, start
        self._loaded: tuple[bool, Subject] | None = None  # whether it is the trained one

    def load(self, *, trained: bool) -> Subject:
        """Raises ModelError, CheckpointError, GenerationError."""
        if self._loaded is not None and self._loaded[0] == trained:
            return self._loaded[1]
        assert trained or self._loaded is None, "the untrained model comes first"
        checkpoint = self._checkpoint if trained else self._start
        if self._loaded is not None and checkpoint is not None and not checkpoint.has_full_weights:
            subject = self._loaded[1]
            subject.policy.load(checkpoint.model)
            subject.sampler.sync(subject.policy)
        else:
            self._loaded = None  # frees it
            policy = load_frozen(self._recipe, checkpoint, temperature=self._recipe.evaluation.temperature)
            subject = Subject(policy, load_sampler(policy, self._recipe))
        self._loaded = trained, subject
        return subject


def local_weights(recipe: Recipe, checkpoint: Checkpoint | None = None) -> str:
    """Sixteen hexadecimal digits of the files that decide what the recipe's model says, where it is a local folder, and
    of those of a checkpoint on it: a copy has the same, others under the same names have others. "" for a model that is
    built in or on the hub. Raises ModelError."""
    folders = [] if recipe.model.name.startswith(BUILTIN_PREFIX) else [Path(resolve_name(recipe.model.name))]
    folders += [] if checkpoint is None else [checkpoint.model]
    files = [file for folder in folders for pattern in _DECISIVE_FILES for file in sorted(folder.glob(pattern))]
    digest = hashlib.sha256()
    for file in files:
        with walled(lambda why, file=file: ModelError(f"{file}: cannot be read ({why})")), open_regular(file) as stream:  # type: ignore[misc]
            digest.update(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()[:16] if files else ""


def load_prompting(recipe: Recipe, checkpoint: Checkpoint | None) -> tuple[Any, int]:
    """The tokenizer, and the most tokens of prompt and completion together, without loading weights.

    Raises ModelError.
    """
    with _relative_names_explained(recipe):
        return load_tokenizer(_of_checkpoint(recipe, checkpoint))


def _of_checkpoint(recipe: Recipe, checkpoint: Checkpoint | None) -> Recipe:
    """Full weights need nothing but their own folder: the base model may be gone by now."""
    if checkpoint is None or not checkpoint.has_full_weights:
        return recipe
    model = recipe.model.model_copy(update={"name": str(checkpoint.model), "revision": None})
    return recipe.model_copy(update={"model": model})


@contextmanager
def _relative_names_explained(recipe: Recipe) -> Iterator[None]:
    """A model that is not there may be a folder whose relative path counted from where training ran: say so."""
    try:
        yield
    except ModelError as error:
        folder = Path(recipe.model.name)
        if recipe.model.name.startswith(BUILTIN_PREFIX) or folder.is_absolute() or folder.exists():
            raise
        raise ModelError(
            f"{error} If it is a folder: a relative path counts from the working folder, and for a run from the one it "
            "was trained in; call gtpo there."
        ) from error
