"""One step of GTPO (arXiv 2508.03772): the algorithm, from prompts to the update, in the order of the paper.

Axes: B prompts, G completions of one prompt, N = B G rows, T completion tokens. GRPO, its relatives and every ablation
run the same lines with other switches in the recipe.

A step works in two shapes. Advantages and conflict weights need whole groups, (B, G, T). The rest goes row by row,
(N, T), with as many rows at a time as fit into memory.

Where this departs from the textbook:
- one forward pass computes ln pi with its gradient and H, from which <H> and delta follow;
- a step is one batch of completions, however many updates (`objective.num_iterations`) it makes. The first iteration
  fixes H, delta, c and ln pi_old;
- if one generation serves several steps (`rollout.steps_per_generation`), ln pi_old belongs to the policy that sampled.
  `sample_steps` measures it in an extra forward pass for every step but the first, which makes its first forward pass
  with that very policy;
- a completion that is left out (filtered, truncated, in a group without reward spread) still counts in every
  denominator. Its c is 0, so it needs no backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gtpo_cli.data import Prompt
from gtpo_cli.generation import Sampler, SamplingParams
from gtpo_cli.models import Policy
from gtpo_cli.models.budget import Budget, measure_rows
from gtpo_cli.objective import (
    ConflictSpans,
    GroupTerms,
    Method,
    Rows,
    TokenBatch,
    group_terms,
    importance_weights,
    policy_loss,
    row_terms,
)
from gtpo_cli.recipe import Recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.rollout import collate, sample
from gtpo_cli.seeds import derive_seed
from gtpo_cli.training.method import method_of
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Group

MorePrompts = Callable[[int, int], Sequence[Prompt]]  # (attempt, how many) -> prompts


@dataclass(frozen=True, slots=True)
class StepPrompts:
    """The prompts of one step and the seed for sampling them.

    `more` supplies new prompts when `objective.resample` replaces groups without reward spread.
    """

    prompts: Sequence[Prompt]
    seed: int
    more: MorePrompts | None = None


@dataclass(frozen=True, slots=True)
class StepSamples:
    """The scored completions that one step trains on."""

    groups: list[Group]
    resampled_share: float | None = None  # discarded groups / sampled groups; None without objective.resample
    age: int = 0  # steps since these completions were generated
    old_logprobs_BGT: Tensor | None = (
        None  # ln pi_old, nats, on the CPU; None at age 0: the first forward pass gives it
    )


class Ratios(NamedTuple):
    """Statistics of r = pi / pi_old over `tokens` trained tokens, whose coefficient is not 0."""

    tokens: int
    mean: float
    largest: float
    clipped_share: float  # share of tokens outside the clip range

    @classmethod
    def from_metrics(cls, coefficients: Tensor, metrics: dict[str, float]) -> Ratios:
        """Read the ratios from the metrics of `policy_loss`. `coefficients`: c, 0 at padding."""
        means = (metrics[name] for name in ("ratio_mean", "ratio_max", "clipped_share"))
        return cls(int((coefficients != 0).sum()), *means)

    @classmethod
    def merge(cls, parts: Sequence[Ratios]) -> Ratios:
        tokens = sum(part.tokens for part in parts)
        mean = sum(part.tokens * part.mean for part in parts) / max(1, tokens)
        clipped_share = sum(part.tokens * part.clipped_share for part in parts) / max(1, tokens)
        return cls(tokens, mean, max(part.largest for part in parts), clipped_share)


class IterationSums(NamedTuple):
    """Totals over the micro-batches of one iteration.

    `kl`: mean over tokens; None without a KL term. `ratios`: None while ln pi_old is ln pi itself.
    """

    loss: float
    kl: float | None
    ratios: Ratios | None


@dataclass(slots=True)
class StepParts:
    """The objects that all steps of a run share."""

    recipe: Recipe
    policy: Policy
    sampler: Sampler
    scorer: Scorer
    updater: Updater
    initial_entropy: float  # <H>_ini, nats
    budget: Budget  # size of a micro-batch

    @property
    def method(self) -> Method:
        return method_of(self.recipe.objective, max_completion_tokens=self.recipe.rollout.max_completion_tokens)


@dataclass(slots=True, eq=False)
class StepRows(Rows):
    """The completions of a step with what the loss needs of each.

    The first iteration fills in the fields from `logprobs_NT` on. They stay 0 for an empty completion.
    """

    advantages_N: Tensor  # A, float64
    weights_NT: Tensor  # lambda
    shares_N: Tensor  # weight of each token of a completion in the step's average
    included_N: Tensor  # bool: False if the recipe leaves the completion out
    sampled_NT: Tensor  # ln of the sampler's probability
    old_NT: Tensor | None  # ln pi_old; None until the first iteration has measured it
    reference_NT: Tensor | None  # ln pi_ref; None without a KL term
    logprobs_NT: Tensor  # ln pi
    entropy_NT: Tensor  # H
    mean_entropy_N: Tensor  # <H>
    filtered_N: Tensor  # bool: delta = 0 by Eq. 10
    keep_N: Tensor  # bool: delta; also False if the recipe leaves the completion out
    coefficients_NT: Tensor  # c


@dataclass(slots=True)
class StepResult:
    """The record of a step for metrics and sample logs. Tensors are detached, (B, G) or (B, G, T)."""

    groups: list[Group]
    batch: TokenBatch
    advantages_BG: Tensor
    spans: ConflictSpans
    weights_BGT: Tensor
    shares_BG: Tensor
    # from the first iteration, see StepRows
    logprobs_BGT: Tensor
    entropy_BGT: Tensor
    mean_entropy_BG: Tensor
    filtered_BG: Tensor
    keep_BG: Tensor
    coefficients_BGT: Tensor
    # one value for each iteration
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    ratios: list[Ratios] = field(default_factory=list)  # only of iterations whose ln pi_old is not ln pi itself
    learning_rate: float = 0.0
    age: int = 0  # this and the next two: see StepSamples
    resampled_share: float | None = None
    old_logprobs_BGT: Tensor | None = None
    not_finite: str | None = None  # the quantity that was infinite or NaN and so stopped the step without an update


def sample_steps(parts: StepParts, steps: Sequence[StepPrompts], *, clock: Stopwatch) -> list[StepSamples]:
    """Sample and score the prompts of these steps with the current weights, in one generation.

    One call of the sampler takes all prompts, with the seed of the first step. Each step then resamples with its own
    seed.
    """
    policy = parts.policy
    with clock.phase("sample"):
        parts.sampler.sync(policy)
    groups = _sample_and_score(parts, [prompt for step in steps for prompt in step.prompts], steps[0].seed, clock)
    samples = []
    for age, step in enumerate(steps):
        chosen, groups = groups[: len(step.prompts)], groups[len(step.prompts) :]
        chosen, resampled_share = _resample(parts, chosen, step, clock)
        old = None
        if age > 0:  # by then the weights will have moved
            with clock.phase("train"):
                batch = collate(chosen, device=policy.device)
                old_NT = measure_rows(  # ln pi_old
                    batch.rows(), lambda rows: policy.token_logprobs(rows)[0], parts.budget, packed=policy.packs
                )
                old = batch.by_group(old_NT).cpu()
        samples.append(StepSamples(chosen, resampled_share, age, old))
    return samples


def train_step(parts: StepParts, samples: StepSamples, *, clock: Stopwatch) -> StepResult:
    """Update the policy once (or `num_iterations` times) on the samples of this step."""
    policy, updater, method, recipe = parts.policy, parts.updater, parts.method, parts.recipe
    with clock.phase("train"):
        batch = collate(samples.groups, device=policy.device)  # o_1 ... o_G and their rewards R
        by_group = group_terms(  # A, Eq. 12; M and lambda, Eq. 9; token shares, 1 / (B G |o_i|) in GTPO
            method,
            completion_ids_BGT=batch.completion_ids_BGT,
            completion_mask_BGT=batch.completion_mask_BGT,
            rewards_BG=batch.rewards_BG,
            left_out_BG=batch.truncated_BG if recipe.rollout.mask_truncated else None,
        )
        rows = _step_rows(batch, by_group, samples.old_logprobs_BGT)  # from here on row by row
        if method.kl_coef > 0:
            rows.reference_NT = measure_rows(  # ln pi_ref, Eq. 1
                rows, policy.reference_logprobs, parts.budget, packed=policy.packs
            )
        sums: list[IterationSums] = []
        grad_norms: list[float] = []
        learning_rate, not_finite = updater.learning_rate, None
        for iteration in range(recipe.objective.num_iterations):
            work = partial(accumulate, parts, rows, first=iteration == 0)
            sums.append(parts.budget.run(work, at_most=rows.size(parts.budget.unit)))
            if rows.old_NT is None:
                rows.old_NT = rows.logprobs_NT  # ln pi_old; only the first iteration writes logprobs_NT
            not_finite = _not_finite(rows, sums[-1])
            if not_finite is None:
                grad_norms.append(updater.update())
                not_finite = None if math.isfinite(grad_norms[-1]) else "the gradient"
            if not_finite is not None:
                updater.zero_grad()
                break
        updater.advance_schedule()
    return StepResult(
        samples.groups, batch, by_group.advantages_BG, by_group.spans, by_group.weights_BGT, by_group.shares_BG,
        logprobs_BGT=batch.by_group(rows.logprobs_NT),
        entropy_BGT=batch.by_group(rows.entropy_NT),
        mean_entropy_BG=batch.by_group(rows.mean_entropy_N),
        filtered_BG=batch.by_group(rows.filtered_N),
        keep_BG=batch.by_group(rows.keep_N),
        coefficients_BGT=batch.by_group(rows.coefficients_NT),
        old_logprobs_BGT=None if rows.old_NT is None else batch.by_group(rows.old_NT),
        losses=[each.loss for each in sums],
        grad_norms=grad_norms,
        kl=[each.kl for each in sums if each.kl is not None],
        ratios=[each.ratios for each in sums if each.ratios is not None],
        learning_rate=learning_rate,
        age=samples.age,
        resampled_share=samples.resampled_share,
        not_finite=not_finite,
    )  # fmt: skip


def accumulate(parts: StepParts, rows: StepRows, limit: int, *, first: bool) -> IterationSums:
    """Accumulate the gradient of the step's loss in micro-batches of at most `limit`.

    `first`: whether this is the step's first iteration, which also fills in the rows.
    """
    policy, method = parts.policy, parts.method
    parts.updater.zero_grad()
    loss_sum = kl_sum = 0.0
    ratios: list[Ratios] = []
    for index, trains in _micro_batches(parts, rows, limit, first=first):
        part = rows[index]
        mask, old, reference = part.mask_NT, part.old_NT, part.reference_NT
        with torch.set_grad_enabled(trains):
            logp, H = policy.token_logprobs(  # ln pi and H; no logits kept
                part, trained_NT=part.weights_NT != 0 if reference is None else None
            )
        c = part.coefficients_NT
        if first:
            by_row = row_terms(  # <H>; delta, Eq. 10; c = delta (A - gamma <H>) lambda
                method,
                advantages_N=part.advantages_N,
                weights_NT=part.weights_NT,
                included_N=part.included_N,
                completion_mask_NT=mask,
                entropy_NT=H,
                initial_entropy=parts.initial_entropy,
            )
            c = by_row.coefficients_NT
            if parts.recipe.rollout.importance_correction == "truncated":
                c = c * importance_weights(logp if old is None else old, part.sampled_NT)
            rows.write(index, logprobs_NT=logp.detach(), entropy_NT=H, **by_row._asdict() | {"coefficients_NT": c})
        if reference is None and not bool(c.any()):  # nothing in it has a gradient
            continue
        loss, metrics = policy_loss(  # Eq. 11 / Eq. 1
            logp,
            c,
            mask,
            old_logprobs_BGT=old,
            ref_logprobs_BGT=reference,
            kl_coef=method.kl_coef,
            shares_BG=part.shares_N,
            **method.loss_arguments(),
        )
        if old is not None:
            ratios.append(Ratios.from_metrics(c, metrics))
        parts.updater.backward(loss)
        loss_sum += float(loss.detach())
        kl_sum += metrics.get("kl", 0.0) * int(mask.sum())
    kl = None if rows.reference_NT is None else kl_sum / max(1, int(rows.mask_NT.sum()))
    return IterationSums(loss_sum, kl, Ratios.merge(ratios) if ratios else None)


def _micro_batches(parts: StepParts, rows: StepRows, limit: int, *, first: bool) -> Iterator[tuple[Tensor, bool]]:
    """Yield the row numbers of each micro-batch and whether it gets a gradient.

    A completion whose c is known to be 0 needs no gradient unless there is a KL term. The first iteration only
    measures it, before the others.
    """
    split = partial(rows.split, limit, unit=parts.budget.unit, packed=parts.policy.packs)
    if rows.reference_NT is not None:
        included_N = torch.ones_like(rows.included_N)
    elif not first:
        included_N = (rows.coefficients_NT != 0).any(dim=-1)
    else:
        included_N = rows.included_N if parts.method.entropy_coef > 0 else rows.included_N & (rows.advantages_N != 0)
        yield from ((index, False) for index in split(chosen_N=~included_N))
    yield from ((index, True) for index in split(chosen_N=included_N))


def _sample_and_score(parts: StepParts, prompts: Sequence[Prompt], seed: int, clock: Stopwatch) -> list[Group]:
    rollout = parts.recipe.rollout
    params = SamplingParams(rollout.temperature, max_completion_tokens=rollout.max_completion_tokens, seed=seed)
    with clock.phase("sample"):
        groups = sample(parts.sampler, prompts, rollout.group_size, params, ended=parts.scorer.begin)
    with clock.phase("reward"):
        return parts.scorer.score_groups(groups)


def _resample(
    parts: StepParts, groups: list[Group], step: StepPrompts, clock: Stopwatch
) -> tuple[list[Group], float | None]:
    """Replace groups without reward spread by groups of new prompts (DAPO's dynamic sampling).

    Return the groups and the discarded share of all sampled groups. A group without spread after the last attempt
    stays.
    """
    attempts = parts.recipe.objective.resample
    if step.more is None or not attempts:
        return groups, None
    thrown_away = 0
    for attempt in range(attempts):
        without_spread = [place for place, group in enumerate(groups) if len({v.reward for v in group.verdicts}) == 1]
        if not without_spread:
            break
        thrown_away += len(without_spread)
        seed = derive_seed(step.seed, "resample", attempt)
        fresh = _sample_and_score(parts, step.more(attempt, len(without_spread)), seed, clock)
        for place, group in zip(without_spread, fresh, strict=True):
            groups[place] = group
    return groups, thrown_away / (thrown_away + len(groups))


def _step_rows(batch: TokenBatch, by_group: GroupTerms, old_BGT: Tensor | None) -> StepRows:
    rows, A_N = batch.rows(), by_group.advantages_BG.flatten()
    zeros_NT = torch.zeros_like(batch.sampled_logprobs_BGT).flatten(0, 1)
    return StepRows(
        **{field.name: getattr(rows, field.name) for field in fields(rows)},
        advantages_N=A_N,
        weights_NT=by_group.weights_BGT.flatten(0, 1),
        shares_N=by_group.shares_BG.flatten(),
        included_N=by_group.included_BG.flatten(),
        sampled_NT=batch.sampled_logprobs_BGT.flatten(0, 1),
        old_NT=None if old_BGT is None else old_BGT.flatten(0, 1).to(A_N.device),
        reference_NT=None,
        logprobs_NT=zeros_NT,
        entropy_NT=zeros_NT.clone(),
        mean_entropy_N=torch.zeros_like(A_N, dtype=zeros_NT.dtype),
        filtered_N=torch.zeros_like(A_N, dtype=torch.bool),
        keep_N=by_group.included_BG.flatten().clone(),
        coefficients_NT=zeros_NT.clone(),
    )


def _not_finite(rows: StepRows, sums: IterationSums) -> str | None:
    """Name the quantity of the last iteration that is infinite or NaN and must not reach the weights."""
    if not bool(torch.isfinite(rows.logprobs_NT).all()):
        return "a log-probability"
    return None if math.isfinite(sums.loss) else "the loss"
