"""Measure <H>_ini, the mean entropy of the untrained policy, which decides about the entropy filter (Section 6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch

from gtpo_cli.data import Prompt
from gtpo_cli.entropy_filter import LN_2, FilterMode
from gtpo_cli.errors import EvaluationError
from gtpo_cli.estimators import Interval, mean_interval
from gtpo_cli.objective import mean_entropy
from gtpo_cli.policy import Policy
from gtpo_cli.policy.packing import measure_rows
from gtpo_cli.policy.sampler import Sampler, SamplingParams, collate, sample_blocks
from gtpo_cli.recipe.rewards import LengthRewardRecipe, RewardsRecipe
from gtpo_cli.recipe.schema import RolloutRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.seeds import derive_seed
from gtpo_cli.text import counted
from gtpo_cli.types import Group, Verdict

_BLOCK = 16  # prompts that share a seed and a measurement


def mean_entropies(policy: Policy, groups: Sequence[Group], *, first: int | None = None) -> list[tuple[float, ...]]:
    """Measure <H>_i in nats at the policy's temperature, one tuple per group; 0 for an empty completion.

    `first`: only of so many completions of each group. Raises EvaluationError if memory does not suffice for a single
    completion.
    """
    rows = collate([replace(group, completions=group.completions[:first]) for group in groups], device=policy.device)
    H_NT = measure_rows(rows, lambda part: policy.token_logprobs(part)[1], policy.measuring, packed=policy.packs)
    return [tuple(row) for row in rows.by_group(mean_entropy(H_NT, rows.mask_NT)).tolist()]


@dataclass(frozen=True, slots=True)
class EntropyProbe:
    """The result of a probe. `by_prompt`: <H>_i in nats of every completion, one tuple per prompt. `interval`: mean and
    95 % interval over prompts. `truncated_share`: completions that reached the length limit. `mean_tokens`:
    mean length. `groups`: the completions, not scored."""

    by_prompt: tuple[tuple[float, ...], ...]
    interval: Interval
    truncated_share: float
    mean_tokens: float
    groups: tuple[Group, ...]

    @property
    def initial_entropy(self) -> float:
        """Return <H>_ini in nats."""
        return self.interval.estimate

    @property
    def interval_words(self) -> str:
        if not self.interval.is_bounded:
            return "no interval: it needs several prompts whose entropies differ"
        return f"95 % interval {self.interval.low:.4f} to {self.interval.high:.4f}"


def probe_entropy(
    policy: Policy,
    sampler: Sampler,
    prompts: Sequence[Prompt],
    rollout: RolloutRecipe,
    seed: int,
    *,
    n: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EntropyProbe:
    """Sample n completions of each prompt, as training samples, and average their <H>_i. `seed`: the run's.

    The policy must be the untrained one. The probe has its own seeds, so it changes nothing in a later run. Raises
    EvaluationError if every completion is empty or an entropy is not finite.
    """
    params = SamplingParams(rollout.temperature, max_completion_tokens=rollout.max_completion_tokens)
    starts = range(0, len(prompts), _BLOCK)
    seeds = [derive_seed(seed, "probe", start) for start in starts]
    groups: dict[int, Group] = {}
    progress(0, len(prompts))
    with closing(sample_blocks(sampler, prompts, n, params, size=_BLOCK, seeds=seeds)) as numbered:
        for number, group in numbered:
            groups[number] = group
            progress(len(groups), len(prompts))
    sampled = [groups[number] for number in range(len(prompts))]
    # Only now, because in a run the engine needs memory while it samples.
    by_prompt = [row for start in starts for row in mean_entropies(policy, sampled[start : start + _BLOCK])]
    values = torch.tensor([value for group in by_prompt for value in group])
    if not bool(torch.isfinite(values).all()):
        raise EvaluationError("the probe's entropies are not finite: the model's weights or their data type are broken")
    interval = mean_interval(values.view(len(sampled), -1).mean(dim=1).tolist())  # as many completions of each prompt
    completions = [completion for group in sampled for completion in group.completions]
    truncated = sum(completion.truncated for completion in completions) / len(completions)
    tokens = sum(len(completion.token_ids) for completion in completions) / len(completions)
    return EntropyProbe(tuple(by_prompt), interval, truncated, tokens, tuple(sampled))


def undecided(probe: EntropyProbe, filter_mode: FilterMode) -> str | None:
    """Return a sentence if the probe does not decide about the entropy filter, since ln 2 lies inside its interval.

    It names the prompts that would tell: an interval narrows with the root of their number. None if it decides, if
    the recipe does, or if there is no interval (`interval_words` says so).
    """
    estimate, low, high = probe.interval
    if filter_mode != "auto" or not probe.interval.is_bounded or not low <= LN_2 <= high:
        return None
    distance, half = abs(estimate - LN_2), (high - low) / 2
    most = 100 * len(probe.by_prompt)
    needed = len(probe.by_prompt) * (half / distance) ** 2 if distance * 10 > half else math.inf
    digits = 10 ** max(0, int(math.log10(min(needed, most))) - 1)
    would = f"about {math.ceil(needed / digits) * digits:,} would tell" if needed <= most else "more would hardly tell"
    return (
        f"ln 2 = {LN_2:.3f} lies inside the interval, so {counted(len(probe.by_prompt), 'prompt')} cannot tell whether "
        f"the entropy filter should be on; {would} (objective.probe.num_prompts), or decide with "
        "objective.filter.enabled"
    )


def right_at_first(rewards: RewardsRecipe, probe: EntropyProbe) -> tuple[list[Verdict], str]:
    """Return the verdicts on a probe's completions, and words that count the right ones and those in the format.

    Only format and accuracy are scored, because the user's own rewards may cost money. Raises RewardError.
    """
    own = rewards.model_copy(update={"plugins": (), "length": LengthRewardRecipe()})
    with Scorer(own) as scorer:
        verdicts = [verdict for group in scorer.score_groups(probe.groups) for verdict in group.verdicts]
    right, formatted = sum(v.correct for v in verdicts), sum(v.complete_format for v in verdicts)
    return verdicts, f"right at first: {right} of {len(verdicts)}, in the format: {formatted} of {len(verdicts)}"
