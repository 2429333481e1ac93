"""<H>_ini: the mean entropy of the untrained policy, which decides whether completions are filtered (Section 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gtpo_cli.data import Prompt
from gtpo_cli.errors import EvaluationError
from gtpo_cli.estimators import Interval, bootstrap_mean
from gtpo_cli.generation import Sampler, SamplingParams
from gtpo_cli.models import Policy
from gtpo_cli.objective import mean_entropy
from gtpo_cli.recipe import Recipe
from gtpo_cli.rollout import collate, sample
from gtpo_cli.seeds import derive_seed
from gtpo_cli.types import Group

_PROMPTS_AT_ONCE = 16
_TOKENS_AT_ONCE = 16_384  # prompt, completion and padding of one forward: bounds its memory


@torch.no_grad()
def mean_entropies(policy: Policy, groups: Sequence[Group]) -> list[tuple[float, ...]]:
    """<H>_i in nats at the policy's temperature, one tuple a group, by one forward pass; 0 for an empty completion."""
    batch = collate(groups, device=policy.device)
    entropies_BG = torch.zeros(batch.shape, device=policy.device)
    for micro in batch.split(_TOKENS_AT_ONCE, unit="tokens", packed=policy.packs):
        _, entropy_BGT = policy.token_logprobs(micro.batch)
        micro.put(mean_entropy(entropy_BGT, micro.batch.completion_mask_BGT), into=entropies_BG)
    return [tuple(row) for row in entropies_BG.tolist()]


@dataclass(frozen=True, slots=True)
class EntropyProbe:
    """`by_prompt`: <H>_i in nats of every completion, one tuple a prompt. `interval`: mean and 95 % bootstrap interval
    over prompts. `truncated_share`: completions that ran into the length limit. `mean_tokens`: mean length. `groups`:
    the completions themselves, not scored."""

    by_prompt: tuple[tuple[float, ...], ...]
    interval: Interval
    truncated_share: float
    mean_tokens: float
    groups: tuple[Group, ...]

    @property
    def initial_entropy(self) -> float:
        """<H>_ini in nats."""
        return self.interval.estimate


def probe_entropy(
    policy: Policy,
    sampler: Sampler,
    prompts: Sequence[Prompt],
    recipe: Recipe,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EntropyProbe:
    """Sample `objective.probe` completions of the first training problems, in file order, and average their <H>_i.

    The policy must be the untrained one. Draws from seeds of its own, so probing changes nothing in a later run.
    Raises EvaluationError when every completion is empty or an entropy is not finite.
    """
    probe, rollout = recipe.objective.probe, recipe.rollout
    chosen = list(prompts[: probe.num_prompts])
    by_prompt: list[tuple[float, ...]] = []
    sampled: list[Group] = []
    progress(0, len(chosen))
    for start in range(0, len(chosen), _PROMPTS_AT_ONCE):
        block = chosen[start : start + _PROMPTS_AT_ONCE]
        seed = derive_seed(recipe.seed, "probe", start)
        params = SamplingParams(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_completion_tokens, seed)
        groups = sample(sampler, block, probe.completions_per_prompt, params)
        by_prompt.extend(mean_entropies(policy, groups))
        sampled.extend(groups)
        progress(len(by_prompt), len(chosen))
    values = torch.tensor([value for group in by_prompt for value in group])
    if not bool(torch.isfinite(values).all()):
        raise EvaluationError("the probe's entropies are not finite: the model's weights or their type are broken")
    interval = bootstrap_mean(by_prompt, seed=derive_seed(recipe.seed, "probe bootstrap"))
    completions = [completion for group in sampled for completion in group.completions]
    truncated = sum(completion.truncated for completion in completions) / len(completions)
    tokens = sum(len(completion.token_ids) for completion in completions) / len(completions)
    return EntropyProbe(tuple(by_prompt), interval, truncated, tokens, tuple(sampled))
