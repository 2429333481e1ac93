"""One step of GTPO (arXiv 2508.03772): the algorithm, from scored completions to the update, in the order of the paper.

Axes: B prompts, G completions of one prompt, N = B G rows, T completion tokens. GRPO, its relatives and every ablation
run the same lines with other switches in the recipe.

A step works in two shapes. Advantages and conflict weights need whole groups, (B, G, T). The rest goes row by row,
(N, T), with as many rows at a time as fit into memory. All that is known of a row stands in one record, `StepRows`.

Where this departs from the textbook:
- one forward pass computes ln pi with its gradient and H, from which <H> and delta follow;
- a step is one batch of completions, however many updates (`objective.num_iterations`) it makes. The first iteration
  fixes H, delta, c and ln pi_old;
- if one generation serves several steps (`rollout.steps_per_generation`), ln pi_old belongs to the policy that sampled.
  `generations.py` measures it in an extra forward pass for every step but the first, which makes its first forward pass
  with that very policy;
- a completion that is left out (filtered, truncated, in a group without reward spread) still counts in every
  denominator. Its c is 0, so it needs no backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gtpo_cli.objective import (
    ConflictSpans,
    Method,
    Rewards,
    SampledRows,
    Tokens,
    covariance_ranks,
    group_terms,
    importance_weights,
    policy_loss,
    row_terms,
)
from gtpo_cli.policy import Policy
from gtpo_cli.policy.packing import Budget, measure_rows
from gtpo_cli.policy.sampler import Sampler, collate
from gtpo_cli.recipe.schema import ObjectiveRecipe, RolloutRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.setup import method_of
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Group, Problem


@dataclass(slots=True)
class StepParts:
    """The objects that all steps of a run share."""

    objective: ObjectiveRecipe
    rollout: RolloutRecipe
    policy: Policy
    sampler: Sampler
    scorer: Scorer
    updater: Updater
    initial_entropy: float  # <H>_ini, nats
    budget: Budget  # size of a micro-batch
    method: Method = field(init=False)

    def __post_init__(self) -> None:
        self.method = method_of(self.objective, max_completion_tokens=self.rollout.max_completion_tokens)


class Outcome(NamedTuple):
    """What a group showed: whether each of its completions was right."""

    problem: Problem
    correct: Sequence[bool]

    @classmethod
    def of(cls, group: Group) -> Outcome:
        return cls(group.problem, [verdict.correct for verdict in group.verdicts])


@dataclass(frozen=True, slots=True)
class StepSamples:
    """The scored completions that one step trains on."""

    groups: list[Group]
    seed: int = 0  # of what the step draws
    discarded: Sequence[Outcome] | None = None  # groups that objective.resample replaced; None without it
    age: int = 0  # steps since these completions were generated
    old_NT: Tensor | None = None  # ln pi_old, nats, on the CPU; None at age 0: the first forward pass gives it

    @property
    def outcomes(self) -> list[Outcome]:
        """Of every group that was sampled, those that were replaced among them."""
        return [*(self.discarded or ()), *map(Outcome.of, self.groups)]


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
    def merge(cls, parts: Sequence[Ratios]) -> Ratios | None:
        """Return the statistics over all parts; None without any."""
        if not parts:
            return None
        tokens = sum(part.tokens for part in parts)
        mean = sum(part.tokens * part.mean for part in parts) / max(1, tokens)
        clipped_share = sum(part.tokens * part.clipped_share for part in parts) / max(1, tokens)
        return cls(tokens, mean, max(part.largest for part in parts), clipped_share)


@dataclass(slots=True)
class Iteration:
    """One update of a step, or an attempt at one.

    `kl`: mean over tokens; None without a KL term. `ratios`: None while ln pi_old is ln pi itself. `grad_norm`: before
    clipping; None if no gradient was tried. `not_finite`: the infinite or NaN quantity that prevented the update.
    """

    loss: float
    kl: float | None
    ratios: Ratios | None
    learning_rate: float
    grad_norm: float | None = None
    not_finite: str | None = None


@dataclass(slots=True, eq=False)
class StepRows(SampledRows):
    """The record of a step: what is known of each of its completions, and of its updates.

    The fields from `logprobs_NT` on get their values in the first iteration. They stay 0 for an empty completion.
    """

    samples: StepSamples
    forward_NT: Tensor  # M, bool, measured even if the objective does not use it
    backward_NT: Tensor
    advantages_N: Tensor  # A, float64
    noise_NT: Tensor  # uniform in [0, 1), for rules that draw tokens
    weights_NT: Tensor  # lambda
    shares_N: Tensor  # weight of each token of a completion in the step's average
    included_N: Tensor  # bool: False if the recipe leaves the completion out
    old_NT: Tensor | None  # ln pi_old; None until the first iteration has measured it
    reference_NT: Tensor | None  # ln pi_ref; None without a KL term
    ranks_NT: Tensor | None  # `covariance_ranks`; None without ln pi_old, and if the rule for the loss does without
    logprobs_NT: Tensor  # ln pi
    entropy_NT: Tensor  # H
    mean_entropy_N: Tensor  # <H>
    filtered_N: Tensor  # bool: delta = 0 by Eq. 10
    keep_N: Tensor  # bool: delta; also False if the recipe leaves the completion out
    coefficients_NT: Tensor  # c
    iterations: list[Iteration] = field(default_factory=list)

    @property
    def not_finite(self) -> str | None:
        """The quantity that was infinite or NaN and so stopped the step without an update."""
        return self.iterations[-1].not_finite

    @property
    def spans(self) -> ConflictSpans:
        """M by group, (B, G, T)."""
        return ConflictSpans(self.by_group(self.forward_NT), self.by_group(self.backward_NT))

    def tokens(self, logprobs_NT: Tensor, entropy_NT: Tensor) -> Tokens:
        """Return what a rule for lambda may read of these rows."""
        return Tokens(
            self.ids_NT, self.mask_NT, self.advantages_N, self.forward_NT, self.backward_NT, self.noise_NT,
            logprobs_NT.detach(), entropy_NT.detach(),
        )  # fmt: skip


def train_step(
    parts: StepParts,
    samples: StepSamples,
    *,
    clock: Stopwatch,
    check: Callable[[StepParts, StepRows], None] | None = None,
) -> StepRows:
    """Update the policy once (or `num_iterations` times) on the samples of this step.

    `check` looks at the rows between the first forward pass and the first update.
    """
    policy, updater, method = parts.policy, parts.updater, parts.method
    with clock.phase("train"):
        rows = step_rows(
            samples,
            method,
            parts.scorer.weights,
            mask_truncated=parts.rollout.mask_truncated,
            device=policy.device,
        )
    if method.needs == "step":
        with clock.phase("weigh"):
            rows.weights_NT = _weights_of_step(parts, rows)
    with clock.phase("train"):
        if method.kl_coef > 0:
            rows.reference_NT = measure_rows(  # ln pi_ref, Eq. 1
                rows, policy.reference_logprobs, parts.budget, packed=policy.packs
            )
        for number in range(parts.objective.num_iterations):
            if method.ranks and rows.old_NT is not None and rows.ranks_NT is None:
                learning_NT = rows.coefficients_NT != 0
                if number == 0:  # H, the filter and the rules for a row come with the first iteration
                    learning_NT = rows.mask_NT & (rows.weights_NT != 0) & _may_learn(parts, rows)[:, None]
                rows.ranks_NT = covariance_ranks(rows.old_NT, rows.advantages_N, learning_NT)
            work = partial(accumulate, parts, rows, first=number == 0)
            iteration = parts.budget.run(work, at_most=rows.size(parts.budget.unit))
            if rows.old_NT is None:
                rows.old_NT = rows.logprobs_NT  # ln pi_old; only the first iteration writes logprobs_NT
            rows.iterations.append(iteration)
            iteration.not_finite = _not_finite(rows, iteration)
            if check is not None and number == 0 and iteration.not_finite is None:
                check(parts, rows)
            if iteration.not_finite is None:
                iteration.grad_norm = updater.update()
                iteration.not_finite = None if math.isfinite(iteration.grad_norm) else "the gradient"
            if iteration.not_finite is not None:
                updater.zero_grad()
                break
        updater.advance_schedule()
    return rows


def step_rows(
    samples: StepSamples,
    method: Method,
    weights: Mapping[str, float],
    *,
    mask_truncated: bool,
    device: torch.device,
) -> StepRows:
    """Open the record of a step with what depends on whole groups: advantages, conflict weights and token shares.

    `weights`: of each reward, by its name in `Verdict.scores`.
    """
    batch = collate(samples.groups, device=device)  # o_1 ... o_G and their rewards R
    noise_NT = torch.rand(batch.ids_NT.shape, generator=torch.Generator().manual_seed(samples.seed)).to(device)
    groups = group_terms(  # A, Eq. 12; M and lambda, Eq. 9; token shares, 1 / (B G |o_i|) in GTPO
        method,
        completion_ids_BGT=batch.by_group(batch.ids_NT),
        completion_mask_BGT=batch.by_group(batch.mask_NT),
        rewards=_rewards(samples.groups, weights, batch),
        noise_BGT=batch.by_group(noise_NT),
        left_out_BG=batch.by_group(batch.truncated_N) if mask_truncated else None,
    )
    A_N, included_N = groups.advantages_BG.flatten(), groups.included_BG.flatten()
    zeros_NT = torch.zeros_like(batch.sampled_NT)
    return StepRows(
        **{each.name: getattr(batch, each.name) for each in fields(batch)},
        samples=samples,
        forward_NT=groups.spans.forward_BGT.flatten(0, 1),
        backward_NT=groups.spans.backward_BGT.flatten(0, 1),
        advantages_N=A_N,
        noise_NT=noise_NT,
        weights_NT=groups.weights_BGT.flatten(0, 1),
        shares_N=groups.shares_BG.flatten(),
        included_N=included_N,
        old_NT=None if samples.old_NT is None else samples.old_NT.to(device),
        reference_NT=None,
        ranks_NT=None,
        logprobs_NT=zeros_NT,
        entropy_NT=zeros_NT.clone(),
        mean_entropy_N=torch.zeros_like(A_N, dtype=zeros_NT.dtype),
        filtered_N=torch.zeros_like(included_N),
        keep_N=included_N.clone(),
        coefficients_NT=zeros_NT.clone(),
    )


def _rewards(groups: Sequence[Group], weights: Mapping[str, float], batch: SampledRows) -> Rewards:
    total_BG = batch.by_group(batch.rewards_N)
    verdicts = [verdict for group in groups for verdict in group.verdicts]
    kind, device = total_BG.dtype, total_BG.device
    return Rewards(
        total_BG,
        right_BG=torch.tensor([verdict.correct for verdict in verdicts], device=device).view_as(total_BG),
        scores_RBG=torch.tensor(
            [[verdict.scores[name] for verdict in verdicts] for name in weights], dtype=kind, device=device
        ).view(-1, *total_BG.shape),
        weights_R=torch.tensor([*weights.values()], dtype=kind, device=device),
        names=tuple(weights),
    )


def _weights_of_step(parts: StepParts, rows: StepRows) -> Tensor:
    """Return lambda of a rule that compares all tokens of the step, after a forward pass that measures them."""
    policy = parts.policy
    measured = measure_rows(
        rows,
        lambda part: torch.stack(policy.token_logprobs(part), dim=-1),  # ln pi and H
        parts.budget,
        packed=policy.packs,
        each=(2,),
    )
    tokens = rows.tokens(*measured.unbind(dim=-1))
    grouped = Tokens(*(rows.by_group(getattr(tokens, each.name)) for each in fields(tokens)))
    return parts.method.weigh(grouped).flatten(0, 1)


def accumulate(parts: StepParts, rows: StepRows, limit: int, *, first: bool) -> Iteration:
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
            only = part.weights_NT != 0 if reference is None and method.is_built_in else None
            logp, H = policy.token_logprobs(part, trained_NT=only)  # ln pi and H; no logits kept
        c = part.coefficients_NT
        if first:
            weights = part.weights_NT
            if method.needs == "row":
                weights = method.weigh(part.tokens(logp, H))  # lambda
            terms = row_terms(  # <H>; delta, Eq. 10; c = delta (A - gamma <H>) lambda
                method,
                advantages_N=part.advantages_N,
                weights_NT=weights,
                included_N=part.included_N,
                completion_mask_NT=mask,
                entropy_NT=H,
                initial_entropy=parts.initial_entropy,
            )
            c = terms.coefficients_NT
            if parts.rollout.importance_correction == "truncated":
                c = c * importance_weights(logp if old is None else old, part.sampled_NT)
            measured = {"logprobs_NT": logp.detach(), "entropy_NT": H, "weights_NT": weights}
            rows.write(index, **measured, **terms._asdict() | {"coefficients_NT": c})
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
            ranks_BGT=part.ranks_NT,
            **method.loss_arguments(),
        )
        if old is not None:
            ratios.append(Ratios.from_metrics(c, metrics))
        parts.updater.backward(loss)
        loss_sum += float(loss.detach())
        kl_sum += metrics.get("kl", 0.0) * int(mask.sum())
    kl = None if rows.reference_NT is None else kl_sum / max(1, int(rows.mask_NT.sum()))
    return Iteration(loss_sum, kl, Ratios.merge(ratios), parts.updater.learning_rate)


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
        included_N = _may_learn(parts, rows)
        yield from ((index, False) for index in split(chosen_N=~included_N))
    yield from ((index, True) for index in split(chosen_N=included_N))


def _may_learn(parts: StepParts, rows: StepRows) -> Tensor:
    """Return which completions can have c != 0, (N,), as far as is known before the first forward pass."""
    return rows.included_N if parts.method.entropy_coef > 0 else rows.included_N & (rows.advantages_N != 0)


def _not_finite(rows: StepRows, iteration: Iteration) -> str | None:
    """Name the quantity of an iteration that is infinite or NaN and must not reach the weights."""
    if not bool(torch.isfinite(rows.logprobs_NT).all()):
        return "a log-probability"
    return None if math.isfinite(iteration.loss) else "the loss"
