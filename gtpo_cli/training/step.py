"""One step of GTPO (arXiv 2508.03772): the algorithm, from prompts to the update, in the order of the paper.

Axes: B prompts, G completions of one prompt, T completion tokens. GRPO, its relatives and every ablation are the same
lines with other switches of the recipe (`objective/terms.py` hands each to one pure function of `objective/`).

Where this departs from the textbook:
- H, and with it <H> and delta, come out of the forward pass that gives ln pi its gradient, a micro-batch at a time; so
  what follows from them is in `accumulate`, which sees the step through one micro-batch after another.
- a step is one batch of completions, however many updates (`objective.num_iterations`) it gets; the first fixes H,
  delta, c and ln pi_old;
- a completion that is left out (filtered, truncated, in a group without reward spread) keeps its place in every
  denominator, and c = 0 costs it no backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from gtpo_cli.data import Prompt
from gtpo_cli.generation import Sampler, SamplingParams
from gtpo_cli.models import Policy
from gtpo_cli.objective import (
    ConflictSpans,
    MicroBatch,
    TokenBatch,
    coefficients,
    importance_weights,
    mean_entropy,
    policy_loss,
    terms,
)
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import ObjectiveRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.rollout import collate, sample
from gtpo_cli.seeds import derive_seed
from gtpo_cli.training.microbatch import Cut, MicroBatchSize
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Group

MorePrompts = Callable[[int, int], Sequence[Prompt]]  # (attempt, how many) -> prompts


@dataclass(slots=True)
class StepParts:
    """Everything a step works with; made once for a run."""

    recipe: Recipe
    policy: Policy
    sampler: Sampler
    scorer: Scorer
    updater: Updater
    initial_entropy: float  # <H>_ini, nats
    micro_batch: MicroBatchSize


@dataclass(slots=True)
class StepResult:
    """What a step saw and did, for metrics and sample logs. Tensors are detached; (B, G) or (B, G, T)."""

    groups: list[Group]
    batch: TokenBatch
    advantages_BG: Tensor
    spans: ConflictSpans
    weights_BGT: Tensor
    shares_BG: Tensor  # of each token of a completion in the step's average
    keep_BG: Tensor  # delta; also 0 for what the recipe leaves out
    # of the first iteration
    logprobs_BGT: Tensor
    entropy_BGT: Tensor
    mean_entropy_BG: Tensor
    filtered_BG: Tensor  # delta = 0 by Eq. 10
    coefficients_BGT: Tensor
    # one an iteration
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    learning_rate: float = 0.0
    resampled_share: float | None = None  # of the groups sampled, those thrown away; None without objective.resample
    not_finite: str | None = None  # what was infinite or NaN, so that the step stopped there without an update


def train_step(
    parts: StepParts, prompts: Sequence[Prompt], *, seed: int, clock: Stopwatch, more: MorePrompts | None = None
) -> StepResult:
    """Sample, score, and update the policy once (or `num_iterations` times) on the result.

    `more`: where `objective.resample` finds prompts in place of those whose groups have no reward spread.
    """
    policy, updater, objective, rollout = parts.policy, parts.updater, parts.recipe.objective, parts.recipe.rollout
    with clock.phase("sample"):
        parts.sampler.sync(policy)
    groups = _sample_and_score(parts, prompts, seed, clock)  # o_1 ... o_G and their rewards R
    groups, resampled_share = _resample(parts, groups, more, seed, clock)
    with clock.phase("train"):
        batch = collate(groups, device=policy.device)
        ids, mask = batch.completion_ids_BGT, batch.completion_mask_BGT
        A = terms.advantages(objective, batch.rewards_BG)  # Eq. 12
        spans, weights = terms.token_weights(objective, ids, mask, A)  # M, Section 5.1; lambda, Eq. 9
        shares = terms.shares(objective, rollout, mask, spans)  # 1 / (B G |o_i|), or as the method averages
        keep = terms.trainable(objective, A, batch.truncated_BG, mask_truncated=rollout.mask_truncated)
        tokens_BGT, completions_BG = torch.zeros_like(batch.sampled_logprobs_BGT), torch.zeros_like(A)
        step = StepResult(
            groups, batch, A, spans, weights, shares, keep,
            logprobs_BGT=tokens_BGT, entropy_BGT=tokens_BGT.clone(), mean_entropy_BG=completions_BG,
            filtered_BG=completions_BG.bool(), coefficients_BGT=tokens_BGT.clone(), learning_rate=updater.learning_rate,
            resampled_share=resampled_share,
        )  # fmt: skip
        reference = _reference_logprobs(parts, batch) if objective.kl_coef > 0 else None  # ln pi_ref, Eq. 1
        for iteration in range(objective.num_iterations):
            old = step.logprobs_BGT.clone() if iteration else None  # ln pi_old; in the first it is ln pi itself
            parts.micro_batch.run(partial(accumulate, parts, step, old, reference), batch)
            step.not_finite = _not_finite(step)
            if step.not_finite is None:
                step.grad_norms.append(updater.update())  # the update
                step.not_finite = None if math.isfinite(step.grad_norms[-1]) else "the gradient"
            if step.not_finite is not None:
                updater.zero_grad()
                break
        updater.advance_schedule()
    return step


def accumulate(parts: StepParts, step: StepResult, old: Tensor | None, reference: Tensor | None, cut: Cut) -> None:
    """The gradient of the step's loss, as many completions at a time as `cut` gives."""
    recipe, objective = parts.recipe, parts.recipe.objective
    gamma = objective.entropy_coef
    parts.updater.zero_grad()
    loss_sum = kl_sum = 0.0
    for micro, trains in _micro_batches(objective, step, cut, first=old is None):
        part, mask = micro.batch, micro.batch.completion_mask_BGT
        A, weights, keep = (micro.take(of) for of in (step.advantages_BG, step.weights_BGT, step.keep_BG))
        with torch.set_grad_enabled(trains):
            logp, H = parts.policy.token_logprobs(  # ln pi and H; no logits kept
                part,
                trained_BGT=weights != 0 if reference is None else None,
                clamp_entropy=objective.compat == "released_code",
            )
        if old is None:
            H_mean = mean_entropy(H, mask)  # <H>
            passes = terms.passes_filter(objective, H_mean, A, initial_entropy=parts.initial_entropy)
            delta = passes & keep  # Eq. 10
            c = coefficients(A, H_mean, delta, weights, mask, entropy_coef=gamma)  # delta (A - gamma <H>) lambda
            if recipe.rollout.importance_correction == "truncated":  # the sampler's probabilities are not the policy's
                c = c * importance_weights(logp, part.sampled_logprobs_BGT)
            for measured, place in (
                (logp.detach(), step.logprobs_BGT), (H, step.entropy_BGT), (H_mean, step.mean_entropy_BG),
                (~passes, step.filtered_BG), (delta, step.keep_BG), (c, step.coefficients_BGT),
            ):  # fmt: skip
                micro.put(measured, into=place)
        c = micro.take(step.coefficients_BGT).masked_fill(~mask, 0.0)  # the group's others are in other micro-batches
        if reference is None and not bool(c.any()):
            continue
        loss, metrics = policy_loss(  # Eq. 11 / Eq. 1
            logp,
            c,
            mask,
            old_logprobs_BGT=None if old is None else micro.take(old),
            ref_logprobs_BGT=None if reference is None else micro.take(reference),
            kl_coef=objective.kl_coef,
            ratio=objective.ratio,
            clip=(objective.clip.low, objective.clip.high),
            clipped=objective.clip.of,
            shares_BG=micro.take(step.shares_BG),
        )
        parts.updater.backward(loss)
        loss_sum += float(loss.detach())
        kl_sum += metrics.get("kl", 0.0) * int(part.lengths_BG.sum())
    step.losses.append(loss_sum)
    if reference is not None:
        step.kl.append(kl_sum / max(1, int(step.batch.lengths_BG.sum())))


def _micro_batches(
    objective: ObjectiveRecipe, step: StepResult, cut: Cut, *, first: bool
) -> Iterator[tuple[MicroBatch, bool]]:
    """Micro-batches, and whether they get a gradient.

    A completion whose c is known to be 0 needs none, unless a KL term asks: it is measured first, and that is all.
    """
    if objective.kl_coef > 0:
        trains_BG = torch.ones_like(step.keep_BG)
    elif not first:
        trains_BG = (step.coefficients_BGT != 0).any(dim=-1)
    else:
        trains_BG = step.keep_BG if objective.entropy_coef > 0 else step.keep_BG & (step.advantages_BG != 0)
        yield from ((micro, False) for micro in cut(step.batch, only_BG=~trains_BG))
    yield from ((micro, True) for micro in cut(step.batch, only_BG=trains_BG))


def _sample_and_score(parts: StepParts, prompts: Sequence[Prompt], seed: int, clock: Stopwatch) -> list[Group]:
    rollout = parts.recipe.rollout
    params = SamplingParams(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_completion_tokens, seed)
    with clock.phase("sample"):
        groups = sample(parts.sampler, prompts, rollout.group_size, params, ended=parts.scorer.begin)
    with clock.phase("reward"):
        return parts.scorer.score_groups(groups)


def _resample(
    parts: StepParts, groups: list[Group], more: MorePrompts | None, seed: int, clock: Stopwatch
) -> tuple[list[Group], float | None]:
    """The groups, with those without reward spread replaced by groups of new prompts (DAPO's dynamic sampling), and the
    share of all groups sampled that was thrown away. What has no spread at the last attempt stays."""
    attempts = parts.recipe.objective.resample
    if more is None or not attempts:
        return groups, None
    thrown_away = 0
    for attempt in range(attempts):
        even = [place for place, group in enumerate(groups) if len({v.reward for v in group.verdicts}) == 1]
        if not even:
            break
        thrown_away += len(even)
        fresh = _sample_and_score(parts, more(attempt, len(even)), derive_seed(seed, "resample", attempt), clock)
        for place, group in zip(even, fresh, strict=True):
            groups[place] = group
    return groups, thrown_away / (thrown_away + len(groups))


def _not_finite(step: StepResult) -> str | None:
    """What of the last iteration is infinite or NaN and must not reach the weights."""
    if not bool(torch.isfinite(step.logprobs_BGT).all()):
        return "a log-probability"
    return None if math.isfinite(step.losses[-1]) else "the loss"


def _reference_logprobs(parts: StepParts, batch: TokenBatch) -> Tensor:
    """ln pi_ref of every token (adapter off), without gradient."""
    reference = torch.zeros_like(batch.sampled_logprobs_BGT)

    def fill(cut: Cut) -> None:
        for micro in cut(batch):
            micro.put(parts.policy.reference_logprobs(micro.batch), into=reference)

    parts.micro_batch.run(fill, batch)
    return reference
