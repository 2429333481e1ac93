"""One step of GTPO (arXiv 2508.03772): the algorithm, from prompts to the update, in the order of the paper.

Axes: B prompts, G completions of one prompt, T completion tokens. Every line names the room that does the work; the
mathematics and its readings are in `gtpo_cli/objective`, GRPO and the ablations are switches of the same lines.
What this file settles itself: a step is one batch of completions, however many optimiser updates
(`objective.num_iterations`) it gets, and a completion that is left out (filtered, truncated, in a group without reward
spread) keeps its place in every denominator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from gtpo_cli.generation import Sampler, SamplingParams
from gtpo_cli.models import Policy
from gtpo_cli.objective import (
    ConflictSpans,
    MicroBatch,
    TokenBatch,
    conflict_spans,
    conflict_weights,
    group_advantages,
    importance_weights,
    mean_entropy,
    policy_loss,
    released_divisor,
    released_weights,
)
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import ObjectiveRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.rollout import Prompt, collate, sample
from gtpo_cli.training.microbatch import Cut, MicroBatchSize
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.owed import kept_by_entropy, kept_whatever_the_entropy, likely_filtered, owe_gradient
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Group


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
    logprobs_BGT: Tensor  # of the first iteration, as the next four
    entropy_BGT: Tensor
    mean_entropy_BG: Tensor
    filtered_BG: Tensor  # delta = 0 by Eq. 10
    keep_BG: Tensor  # delta; also 0 for what the recipe leaves out
    losses: list[float] = field(default_factory=list)  # one an iteration, as the next two
    grad_norms: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    learning_rate: float = 0.0
    not_finite: str | None = None  # what was infinite or NaN, so that the step stopped there without an update


def train_step(parts: StepParts, prompts: Sequence[Prompt], *, seed: int, clock: Stopwatch) -> StepResult:
    """Sample, score, and update the policy once (or `num_iterations` times) on the result."""
    objective, rollout = parts.recipe.objective, parts.recipe.rollout
    with clock.phase("sample"):
        parts.sampler.sync(parts.policy)
        params = SamplingParams(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_completion_tokens, seed)
        groups = sample(parts.sampler, prompts, rollout.group_size, params, ended=parts.scorer.begin)
    with clock.phase("reward"):
        groups = parts.scorer.score_groups(groups)
    with clock.phase("train"):
        batch = collate(groups, device=parts.policy.device)
        ids, mask = batch.completion_ids_BGT, batch.completion_mask_BGT
        A_BG = group_advantages(batch.rewards_BG, scale=objective.advantage_scale)  # Eq. 12
        conflict = objective.conflict
        spans = conflict_spans(ids, mask, A_BG, alignment=conflict.alignment, span=conflict.span)  # M, Section 5.1
        w_BGT, divisor_BG = token_weights(objective, spans, A_BG, mask)  # lambda, Eq. 9
        result = StepResult(
            groups, batch, A_BG, spans, w_BGT,
            logprobs_BGT=torch.zeros_like(batch.sampled_logprobs_BGT),
            entropy_BGT=torch.zeros_like(batch.sampled_logprobs_BGT),
            mean_entropy_BG=torch.zeros_like(A_BG),
            filtered_BG=torch.zeros_like(A_BG, dtype=torch.bool),
            keep_BG=torch.ones_like(A_BG, dtype=torch.bool),
        )  # fmt: skip
        result.learning_rate = parts.updater.learning_rate
        ref_BGT = _reference(parts, batch) if objective.kl_coef > 0 else None
        for iteration in range(objective.num_iterations):
            first = iteration == 0
            accumulate = partial(_accumulate, parts, result, divisor_BG, ref_BGT, first=first)
            parts.micro_batch.run(accumulate, batch)
            result.not_finite = _not_finite(result)
            if result.not_finite is None:
                result.grad_norms.append(parts.updater.update())
                result.not_finite = None if math.isfinite(result.grad_norms[-1]) else "the gradient"
            if result.not_finite is not None:
                parts.updater.zero_grad()
                break
        parts.updater.advance_schedule()
    return result


def token_weights(
    objective: ObjectiveRecipe, spans: ConflictSpans, advantages_BG: Tensor, completion_mask_BGT: Tensor
) -> tuple[Tensor, Tensor | None]:
    """lambda (B, G, T), and the released code's divisor (B, G) where the recipe asks for that."""
    conflict = objective.conflict
    weights = {"positive_weight": conflict.positive_weight, "negative_weight": conflict.negative_weight}
    if not conflict.enabled:
        return torch.ones(completion_mask_BGT.shape, device=completion_mask_BGT.device), None
    if objective.compat == "released_code":
        divisor_BG = released_divisor(spans, completion_mask_BGT)
        return released_weights(spans, advantages_BG, **weights), divisor_BG
    M_BGT = spans.forward_BGT | spans.backward_BGT
    return conflict_weights(M_BGT, advantages_BG, **weights), None


def _accumulate(
    parts: StepParts, result: StepResult, divisor_BG: Tensor | None, ref_BGT: Tensor | None, cut: Cut, *, first: bool
) -> None:
    """Gradients of the step's loss, as much at a time as `cut` gives. The first iteration fixes H, delta, logp_old.

    A completion whose coefficient is 0 owes no gradient: it is measured in the first iteration, and that is all.
    """
    recipe, objective, policy = parts.recipe, parts.recipe.objective, parts.policy
    batch, A_BG = result.batch, result.advantages_BG
    released = objective.compat == "released_code"
    parts.updater.zero_grad()
    loss_sum = kl_sum = 0.0
    old_BGT = None if first else result.logprobs_BGT.clone()
    if first:
        result.keep_BG = kept_whatever_the_entropy(recipe, batch, A_BG)
        likely_filtered_BG = likely_filtered(recipe, batch, A_BG, initial_entropy=parts.initial_entropy)
        with torch.no_grad():
            for micro in cut(batch, only_BG=~owe_gradient(recipe, result.keep_BG, A_BG) | likely_filtered_BG):
                _measure(parts, result, micro, *policy.token_logprobs(micro.batch, clamp_entropy=released))
    for micro in cut(batch, only_BG=owe_gradient(recipe, result.keep_BG, A_BG)):
        w_BGT = micro.take(result.weights_BGT)
        trained_BGT = None if objective.kl_coef > 0 else w_BGT != 0
        logp, H = policy.token_logprobs(micro.batch, trained_BGT=trained_BGT, clamp_entropy=released)  # no logits kept
        if first:
            _measure(parts, result, micro, logp, H)
        if recipe.rollout.importance_correction == "truncated":  # the sampler's probabilities are not the policy's
            w_BGT = w_BGT * importance_weights(micro.take(result.logprobs_BGT), micro.batch.sampled_logprobs_BGT)
        loss, metrics = policy_loss(  # Eq. 11 / Eq. 1
            logp,
            old_logprobs_BGT=None if old_BGT is None else micro.take(old_BGT),
            ref_logprobs_BGT=None if ref_BGT is None else micro.take(ref_BGT),
            advantages_BG=micro.take(A_BG),
            mean_entropy_BG=micro.take(result.mean_entropy_BG),
            keep_BG=micro.take(result.keep_BG),
            weights_BGT=w_BGT,
            completion_mask_BGT=micro.batch.completion_mask_BGT,
            entropy_coef=objective.entropy_coef,
            kl_coef=objective.kl_coef,
            clip_epsilon=objective.clip_epsilon,
            compat=objective.compat,
            divisor_BG=None if divisor_BG is None else micro.take(divisor_BG),
        )
        scaled = loss * _share_of_step(micro, batch, released=released)
        if bool((micro.take(owe_gradient(recipe, result.keep_BG, A_BG)) & micro.rows_BG).any()):
            parts.updater.backward(scaled)
        loss_sum += float(scaled.detach())
        kl_sum += metrics.get("kl", 0.0) * int(micro.batch.lengths_BG.sum())
    result.losses.append(loss_sum)
    if ref_BGT is not None:
        result.kl.append(kl_sum / max(1, int(batch.lengths_BG.sum())))


def _measure(parts: StepParts, result: StepResult, micro: MicroBatch, logp: Tensor, H: Tensor) -> None:
    """Note ln pi, H and delta (Eq. 10) of a micro-batch before the first update."""
    micro.put(logp.detach(), into=result.logprobs_BGT)
    micro.put(H, into=result.entropy_BGT)
    mean_entropy_BG = mean_entropy(H, micro.batch.completion_mask_BGT)
    micro.put(mean_entropy_BG, into=result.mean_entropy_BG)
    A_BG = micro.take(result.advantages_BG)
    objective, initial_entropy = parts.recipe.objective, parts.initial_entropy
    keep_BG = kept_by_entropy(objective, mean_entropy_BG, A_BG, initial_entropy=initial_entropy)
    micro.put(~keep_BG, into=result.filtered_BG)
    micro.put(keep_BG & micro.take(result.keep_BG), into=result.keep_BG)


def _not_finite(result: StepResult) -> str | None:
    """What of the last iteration is infinite or NaN and must not reach the weights."""
    if not bool(torch.isfinite(result.logprobs_BGT).all()):
        return "a log-probability"
    return None if math.isfinite(result.losses[-1]) else "the loss"


def _share_of_step(micro: MicroBatch, whole: TokenBatch, *, released: bool) -> float:
    """policy_loss averages over what it is given; this makes the micro-batches add up to the step's average.

    The released code sums the completions of a group, so there only the groups are shared out.
    """
    (B, G), (b, g) = whole.shape, micro.batch.shape
    return b / B if released else (b * g) / (B * G)


def _reference(parts: StepParts, batch: TokenBatch) -> Tensor:
    """ln pi_ref of every token (adapter off), without gradient."""
    ref_BGT = torch.zeros_like(batch.sampled_logprobs_BGT)

    def fill(cut: Cut) -> None:
        for micro in cut(batch):
            micro.put(parts.policy.reference_logprobs(micro.batch), into=ref_BGT)

    parts.micro_batch.run(fill, batch)
    return ref_BGT
