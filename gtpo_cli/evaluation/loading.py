"""Load a policy for evaluation: the untrained model of a recipe, or one of a run's checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gtpo_cli.errors import CheckpointError, ModelError
from gtpo_cli.job import Job
from gtpo_cli.policy import Policy, load_policy
from gtpo_cli.policy.engines import about_compiling
from gtpo_cli.policy.loading import set_threads
from gtpo_cli.policy.sampler import Sampler, load_sampler
from gtpo_cli.policy.tiny import BUILTIN_PREFIX
from gtpo_cli.runs.checkpoints import Checkpoint
from gtpo_cli.runs.files import guarded, open_regular

BASE = "base"  # the untrained model
# Files of a model's folder that decide its answers: weights, configurations, tokenizer, chat template.
_DECISIVE_FILES = ("*.safetensors", "*model*.bin", "*config.json", "*.jinja", "tokenizer.*", "vocab.*", "merges.txt")


@dataclass(frozen=True, slots=True)
class PolicyAndSampler:
    """A policy at the evaluation's temperature, and its sampler."""

    policy: Policy
    sampler: Sampler


@dataclass(frozen=True)
class Subject:
    """What is measured: the model of a job, with the adapter of a checkpoint unless the job's model is the checkpoint.

    `name`: BASE, or a checkpoint such as "step-000600". `kept`: the weights are in a run's folder, which never changes.
    """

    name: str
    job: Job
    checkpoint: Checkpoint | None = None
    kept: bool = False

    @property
    def adapter(self) -> Path | None:
        """The folder with the adapter of the checkpoint."""
        return None if self.checkpoint is None or self.checkpoint.has_full_weights else self.checkpoint.model

    @cached_property
    def weights(self) -> str:
        """A digest (sixteen hexadecimal digits) of the files that decide the answers.

        Of a checkpoint of the run with all weights that is its manifest, of a model on the hub its commit. It is "" for
        a built-in model. A copy of the files has the same digest. Raises ModelError.
        """
        if self.kept and self.checkpoint is not None and self.adapter is None:
            manifest = self.checkpoint.manifest
            return _digest(manifest)[:16] if manifest.is_file() else ""
        path = Path(self.job.model.path)
        built_in = self.job.recipe.model.name.startswith(BUILTIN_PREFIX)
        tokenizer = Path(self.job.model.tokenizer_path)
        folders = [] if built_in else [path]
        if self.adapter is not None:
            folders.append(self.adapter)
        elif tokenizer != path:
            folders.append(tokenizer)
        files = [file for folder in folders for pattern in _DECISIVE_FILES for file in sorted(folder.glob(pattern))]
        found = [f"{file.name} {_digest(file)}" for file in files]
        found += [commit] if (commit := self.job.commit) is not None else []
        return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16] if found else ""


def _digest(file: Path) -> str:
    with guarded(lambda why: ModelError(f"{file}: cannot be read ({why})")), open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def load_frozen(subject: Subject) -> Policy:
    """Load a policy for measuring. Raises ModelError, CheckpointError."""
    checkpoint = subject.checkpoint
    try:
        policy = load_policy(subject.job, trains=False)
    except ModelError as error:
        if checkpoint is None or not checkpoint.has_full_weights:
            raise  # the base model is at fault
        raise CheckpointError(
            f"{checkpoint.model}: the weights cannot be read ({error}); choose another checkpoint"
        ) from error
    if subject.adapter is not None:
        policy.load(subject.adapter)
    set_threads(policy)
    return policy


class PolicyLoader:
    """Loads subjects one after the other, with one model in memory at a time.

    Subjects with the same job differ in their adapters, so the model is loaded only once and gets the next adapter.
    Loading takes minutes, and one process cannot hold two engines that share their policy's weights.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        """`say` prints what is loaded."""
        self._say = say
        self._loaded: tuple[Subject, PolicyAndSampler] | None = None

    def load(self, subject: Subject) -> PolicyAndSampler:
        """Load a subject, unless it is loaded. Raises ModelError, CheckpointError, GenerationError."""
        if self._loaded is not None and self._loaded[0] is subject:
            return self._loaded[1]
        job = subject.job
        if self._loaded is not None and self._loaded[0].job is job and subject.adapter is not None:
            loaded = self._loaded[1]
            loaded.policy.load(subject.adapter)
            loaded.sampler.sync(loaded.policy)
        else:
            self._loaded = None  # free the memory
            self._say(f"loading {job.recipe.model.name} ({job.engines})")
            if compiling := about_compiling(job.recipe.rollout, job.engines):
                self._say(compiling)
            policy = load_frozen(subject)
            loaded = PolicyAndSampler(policy, load_sampler(policy, job))
        self._loaded = subject, loaded
        return loaded
