"""One step of supervised fine-tuning: next-token cross-entropy on the reference completion only (prompt masked).

The reference solution is wrapped in the recipe's tags and ends as the chat template ends a turn. The loss is the mean
over all reference tokens of the step (docs/objective.md, section 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gtpo_cli.data import Prompt, PromptEncoder
from gtpo_cli.objective import Rows, Unit, mean_entropy
from gtpo_cli.policy import Policy
from gtpo_cli.policy.packing import Budget
from gtpo_cli.policy.sampler import collate
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.step_metrics import time_metrics
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Group


def sft_step(
    policy: Policy,
    updater: Updater,
    budget: Budget,
    prompts: Sequence[Prompt],
    encoder: PromptEncoder,
    *,
    clock: Stopwatch,
) -> dict[str, float]:
    """Update the policy once on the references of these problems, and return the step's metrics."""
    groups = [Group(problem, ids, (encoder.reference(problem),)) for problem, ids in prompts]
    return imitate(policy, updater, budget, groups, clock=clock)


def imitate(
    policy: Policy, updater: Updater, budget: Budget, groups: Sequence[Group], *, clock: Stopwatch
) -> dict[str, float]:
    """Update the policy once on all completions of these groups, and return the step's metrics."""
    with clock.phase("train"):
        rows = collate(groups, device=policy.device)
        learning_rate = updater.learning_rate
        loss, entropy = budget.run(
            lambda limit: _accumulate(policy, updater, rows, limit, budget.unit), at_most=rows.size(budget.unit)
        )
        grad_norm = math.nan
        if math.isfinite(loss):
            grad_norm = updater.update()
        else:
            updater.zero_grad()
        updater.advance_schedule()
    tokens = int(rows.mask_NT.sum())
    return {
        "optim/loss": loss,
        "optim/grad_norm": grad_norm,
        "optim/learning_rate": learning_rate,
        "optim/skipped": float(not math.isfinite(grad_norm)),
        "entropy/mean": entropy,
        "completions/length_mean": tokens / len(rows),
    } | time_metrics(clock, tokens=tokens, device=policy.device)


def _accumulate(policy: Policy, updater: Updater, rows: Rows, limit: int, unit: Unit) -> tuple[float, float]:
    """Accumulate the gradient of the mean loss over all reference tokens, in micro-batches of at most `limit`.

    Return the loss and the mean entropy, averaged within and then over references.
    """
    updater.zero_grad()
    tokens = rows.mask_NT.sum()
    loss_sum, entropy_sum = 0.0, 0.0
    for index in rows.split(limit, unit=unit, packed=policy.packs):
        part = rows[index]
        logp, H = policy.token_logprobs(part)
        loss = -logp.sum() / tokens  # 0 at padding; the denominator counts the whole step
        updater.backward(loss)
        loss_sum += float(loss.detach())
        entropy_sum += float(mean_entropy(H, part.mask_NT).sum())
    return loss_sum, entropy_sum / len(rows)
