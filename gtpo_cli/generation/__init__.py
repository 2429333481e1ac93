"""Sample completions from the policy's current weights. `load_sampler` chooses the sampler by the job's engine."""

from __future__ import annotations

from collections.abc import Callable

from gtpo_cli.generation.sampler import Sampler, SamplingParams
from gtpo_cli.job import Job
from gtpo_cli.models.policy import Policy

__all__ = ["SAMPLERS", "Sampler", "SamplingParams", "load_sampler"]

Warn = Callable[[str], None]


def _transformers(policy: Policy, job: Job, warn: Warn | None) -> Sampler:
    from gtpo_cli.generation.transformers_sampler import TransformersSampler
    from gtpo_cli.models.transformers_policy import TransformersPolicy

    assert isinstance(policy, TransformersPolicy)
    return TransformersSampler(policy, warn=warn)


def _vllm(policy: Policy, job: Job, warn: Warn | None) -> Sampler:
    from gtpo_cli.generation.vllm_sampler import load_vllm_sampler

    return load_vllm_sampler(policy, job)


SAMPLERS: dict[str, Callable[[Policy, Job, Warn | None], Sampler]] = {"transformers": _transformers, "vllm": _vllm}


def load_sampler(policy: Policy, job: Job, *, warn: Warn | None = None) -> Sampler:
    """Return the job's sampler with the policy's current weights.

    `warn` gets a sentence if memory runs out and fewer completions are sampled at a time. Raises ModelError and
    GenerationError with the remedy.
    """
    return SAMPLERS[job.engines.engine](policy, job, warn)
