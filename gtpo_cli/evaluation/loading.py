"""Loading what is evaluated: the untrained model of a recipe, or one of a run's checkpoints."""

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
from gtpo_cli.models import Engines, Policy, choose_engines, load_policy, load_tokenizer
from gtpo_cli.models.engines import about_compiling, on_transformers
from gtpo_cli.models.loading import set_threads
from gtpo_cli.models.tiny import BUILTIN_PREFIX, resolve_name
from gtpo_cli.recipe import Recipe

# Of a model's folder: weights, configurations, tokenizer, chat template.
_DECISIVE_FILES = ("*.safetensors", "*model*.bin", "*config.json", "*.jinja", "tokenizer.*", "vocab.*", "merges.txt")


@dataclass(frozen=True, slots=True)
class PolicyAndSampler:
    """What is evaluated; the policy's temperature is the evaluation's."""

    policy: Policy
    sampler: Sampler


def _measuring(recipe: Recipe, temperature: float) -> Recipe:
    return recipe.with_values({"rollout.temperature": temperature})


def load_frozen(
    recipe: Recipe,
    checkpoint: Checkpoint | None,
    *,
    temperature: float,
    engines: Engines | None = None,
    streaming: bool = False,
) -> Policy:
    """The recipe's policy at a checkpoint (full weights, or an adapter on its base) or untrained, to measure.

    It measures at `temperature`. `engines`: as in `load_policy`. `streaming`: on transformers whatever the recipe says,
    for `gtpo_cli.generation.stream`, which asks the model token by token. Raises ModelError, CheckpointError.
    """
    full_weights = checkpoint is not None and checkpoint.has_full_weights
    try:
        with _relative_names_explained(recipe):
            of_checkpoint = _of_checkpoint(recipe, checkpoint)
            measured = on_transformers(of_checkpoint) if streaming else of_checkpoint
            without_reference = _measuring(measured, temperature).with_values({"objective.kl_coef": 0.0})
            policy = load_policy(without_reference, engines=engines, trains=False)
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


class PolicyLoader:
    """Loads what is evaluated, the untrained model before the trained one, and one model in memory at a time.

    Where the checkpoint is an adapter its base is loaded once, and gets the adapter when its turn comes: loading takes
    minutes, and two engines that share their policy's weights cannot be in one process.
    """

    def __init__(
        self,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        *,
        start: Checkpoint | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`checkpoint`: None where only the untrained model is evaluated, which is what the run started from (`start`),
        or the recipe's model. `say` is told what is loaded, and where that takes minutes."""
        self._recipe, self._checkpoint, self._start, self._say = recipe, checkpoint, start, say
        self._loaded: tuple[bool, PolicyAndSampler] | None = None  # whether it is the trained one

    def load(self, *, trained: bool) -> PolicyAndSampler:
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
            temperature, engines = self._recipe.evaluation.temperature, choose_engines(self._recipe)
            self._say(f"loading {self._recipe.model.name} ({engines})")
            if compiling := about_compiling(self._recipe, engines):
                self._say(compiling)
            policy = load_frozen(self._recipe, checkpoint, temperature=temperature, engines=engines)
            subject = PolicyAndSampler(policy, load_sampler(policy, _measuring(self._recipe, temperature), engines))
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
        digest.update(f"{file.name} {_digest(file)}\n".encode())
    return digest.hexdigest()[:16] if files else ""


def _digest(file: Path) -> str:
    with guarded(lambda why: ModelError(f"{file}: cannot be read ({why})")), open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
    return recipe.with_values({"model.name": str(checkpoint.model), "model.revision": None})


def _relative_names_explained(recipe: Recipe) -> AbstractContextManager[None]:
    """A model that is not there may be a folder whose relative path counted from where training ran: say so."""
    folder = Path(recipe.model.name)
    if recipe.model.name.startswith(BUILTIN_PREFIX) or folder.is_absolute() or folder.exists():
        return nullcontext()
    hint = (
        "If it is a folder: a relative path counts from the working folder, and for a run from the one it was trained "
        "in; call gtpo there."
    )
    return translated(ModelError, lambda error: ModelError(f"{error} {hint}"), passing=())
