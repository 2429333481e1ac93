"""Load a policy for evaluation: the untrained model of a recipe, or one of a run's checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtpo_cli.checkpoints import Checkpoint
from gtpo_cli.errors import CheckpointError, ModelError, translated
from gtpo_cli.files import guarded, open_regular
from gtpo_cli.generation import Sampler, load_sampler
from gtpo_cli.models import Engines, Policy, choose_engines, load_policy, read_model
from gtpo_cli.models.engines import about_compiling, on_transformers
from gtpo_cli.models.loading import set_threads
from gtpo_cli.models.tiny import BUILTIN_PREFIX, resolve_name
from gtpo_cli.recipe import Recipe

# Files of a model's folder that decide its answers: weights, configurations, tokenizer, chat template.
_DECISIVE_FILES = ("*.safetensors", "*model*.bin", "*config.json", "*.jinja", "tokenizer.*", "vocab.*", "merges.txt")


@dataclass(frozen=True, slots=True)
class PolicyAndSampler:
    """A policy at the evaluation's temperature, and its sampler."""

    policy: Policy
    sampler: Sampler


def _with_temperature(recipe: Recipe, temperature: float) -> Recipe:
    """Return the recipe that measures at `temperature`; at 1 for greedy sampling, whose entropy is 0 by itself."""
    return recipe.with_values({"rollout.temperature": temperature or 1.0})


def load_frozen(
    recipe: Recipe,
    checkpoint: Checkpoint | None,
    *,
    temperature: float,
    engines: Engines | None = None,
    streaming: bool = False,
) -> Policy:
    """Load the recipe's policy for measuring: at a checkpoint (full weights, or an adapter on its base) or untrained.

    It measures at `temperature`, for 0 at 1. `engines`: as in `load_policy`. `streaming` always uses transformers,
    because `gtpo_cli.generation.stream` calls the model for every token. Raises ModelError, CheckpointError.
    """
    full_weights = checkpoint is not None and checkpoint.has_full_weights
    try:
        with _relative_names_explained(recipe):
            resolved = _resolve_weights(recipe, checkpoint)
            resolved = on_transformers(resolved) if streaming else resolved
            without_reference = _with_temperature(resolved, temperature).with_values({"objective.kl_coef": 0.0})
            policy = load_policy(without_reference, engines=engines, trains=False)
        if checkpoint is not None and not full_weights:
            policy.load(checkpoint.model)
    except ModelError as error:
        if checkpoint is None or not full_weights:
            raise  # the base model is at fault
        raise CheckpointError(
            f"{checkpoint.model}: the weights cannot be read ({error}); choose another checkpoint"
        ) from error
    set_threads(policy)
    return policy


class PolicyLoader:
    """Loads the untrained model and then the trained one, with one model in memory at a time.

    If the checkpoint is an adapter, its base is loaded only once and gets the adapter later. Loading takes minutes, and
    one process cannot hold two engines that share their policy's weights.
    """

    def __init__(
        self,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        *,
        start: Checkpoint | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`checkpoint` is None if only the untrained model is evaluated. The untrained model is the checkpoint `start`
        that the run started from, or else the recipe's model. `say` prints what is loaded."""
        self._recipe, self._checkpoint, self._start, self._say = recipe, checkpoint, start, say
        self._loaded: tuple[bool, PolicyAndSampler] | None = None  # (trained, policy and sampler)

    def load(self, *, trained: bool) -> PolicyAndSampler:
        """Load the trained or the untrained model. Raises ModelError, CheckpointError, GenerationError."""
        if self._loaded is not None and self._loaded[0] == trained:
            return self._loaded[1]
        assert trained or self._loaded is None, "the untrained model comes first"
        checkpoint = self._checkpoint if trained else self._start
        if self._loaded is not None and checkpoint is not None and not checkpoint.has_full_weights:
            subject = self._loaded[1]
            subject.policy.load(checkpoint.model)
            subject.sampler.sync(subject.policy)
        else:
            self._loaded = None  # free the memory
            temperature, engines = self._recipe.evaluation.temperature, choose_engines(self._recipe)
            self._say(f"loading {self._recipe.model.name} ({engines})")
            if compiling := about_compiling(self._recipe, engines):
                self._say(compiling)
            policy = load_frozen(self._recipe, checkpoint, temperature=temperature, engines=engines)
            subject = PolicyAndSampler(
                policy, load_sampler(policy, _with_temperature(self._recipe, temperature), engines)
            )
        self._loaded = trained, subject
        return subject


def local_weights(recipe: Recipe, checkpoint: Checkpoint | None = None) -> str:
    """Return a digest (sixteen hexadecimal digits) of the decisive files in the model's local folder and in a
    checkpoint. A copy of the files has the same digest. It is "" for a model that is built in or on the hub. Raises
    ModelError."""
    folders = [] if recipe.model.name.startswith(BUILTIN_PREFIX) else [Path(resolve_name(recipe.model.name))]
    folders += [] if checkpoint is None else [checkpoint.model]
    files = [file for folder in folders for pattern in _DECISIVE_FILES for file in sorted(folder.glob(pattern))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {_digest(file)}\n".encode())
    return digest.hexdigest()[:16] if files else ""


def _digest(file: Path) -> str:
    with guarded(lambda why: ModelError(f"{file}: cannot be read ({why})")), open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def load_prompting(recipe: Recipe, checkpoint: Checkpoint | None) -> tuple[Any, int]:
    """Load the tokenizer, and the limit on tokens of prompt and completion together, without loading weights.

    Raises ModelError.
    """
    with _relative_names_explained(recipe):
        own = _resolve_weights(recipe, checkpoint).model
        files = read_model(own)
        return files.tokenizer, files.context(own.max_seq_length)


def _resolve_weights(recipe: Recipe, checkpoint: Checkpoint | None) -> Recipe:
    """Point the recipe's model to a checkpoint with full weights, so that the base model is not needed."""
    if checkpoint is None or not checkpoint.has_full_weights:
        return recipe
    return recipe.with_values({"model.name": str(checkpoint.model), "model.revision": None})


def _relative_names_explained(recipe: Recipe) -> AbstractContextManager[None]:
    """Add to an error about a missing model that it may be a relative path from the folder where training ran."""
    folder = Path(recipe.model.name)
    if recipe.model.name.startswith(BUILTIN_PREFIX) or folder.is_absolute() or folder.exists():
        return nullcontext()
    hint = (
        "If it is a folder: a relative path starts at the working folder, for a run at the one it was trained in; call "
        "gtpo there."
    )
    return translated(ModelError, lambda error: ModelError(f"{error} {hint}"), passing=())
