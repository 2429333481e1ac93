"""One step of supervised fine-tuning: next-token cross-entropy on the reference completion only (prompt masked).

The reference solution is wrapped in the recipe's tags and ends with the end-of-sequence token. The loss is the mean
over all reference tokens of the step (docs/objective.md, section 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gtpo_cli.data import Prompt, reference_completion
from gtpo_cli.models import Policy
from gtpo_cli.objective import TokenBatch
from gtpo_cli.rewards.extract import PAPER_TAGS, TagNames
from gtpo_cli.rollout import collate
from gtpo_cli.training.microbatch import Cut, MicroBatchSize
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.step_metrics import time_metrics
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Group


def sft_step(
    policy: Policy,
    updater: Updater,
    micro_batch: MicroBatchSize,
    prompts: Sequence[Prompt],
    *,
    tags: TagNames = PAPER_TAGS,
    clock: Stopwatch,
) -> dict[str, float]:
    """Update the policy once on the references of these problems; returns the step's metrics."""
    groups = [Group(problem, ids, (reference_completion(problem, policy.tokenizer, tags),)) for problem, ids in prompts]
    return imitate(policy, updater, micro_batch, groups, clock=clock)


def imitate(
    policy: Policy, updater: Updater, micro_batch: MicroBatchSize, groups: Sequence[Group], *, clock: Stopwatch
) -> dict[str, float]:
    """Update the policy once on the completions of these groups, whatever they are; returns the step's metrics."""
    with clock.phase("train"):
        batch = collate(groups, device=policy.device)
        totals = {"loss": 0.0, "entropy": 0.0}
        learning_rate = updater.learning_rate
        micro_batch.run(lambda cut: totals.update(_accumulate(policy, updater, batch, cut)), batch)
        grad_norm = math.nan
        if math.isfinite(totals["loss"]):
            grad_norm = updater.update()
        else:
            updater.zero_grad()
        updater.advance_schedule()
    tokens = int(batch.lengths_BG.sum())
    return {
        "optim/loss": totals["loss"],
        "optim/grad_norm": grad_norm,
        "optim/learning_rate": learning_rate,
        "optim/skipped": float(not math.isfinite(grad_norm)),
        "entropy/mean": totals["entropy"],
        "completions/length_mean": tokens / int(batch.lengths_BG.numel()),
    } | time_metrics(clock, tokens=tokens, device=policy.device)


def _accumulate(policy: Policy, updater: Updater, batch: TokenBatch, cut: Cut) -> dict[str, float]:
    """Gradients of the mean over all reference tokens, as much at a time as `cut` gives."""
    updater.zero_grad()
    tokens = batch.lengths_BG.sum()
    loss_sum, entropy_sum = 0.0, 0.0
    for micro in cut(batch):
        logp, H = policy.token_logprobs(micro.batch)
        loss = -logp.sum() / tokens  # 0 at padding; the denominator is the whole step's
        updater.backward(loss)
        loss_sum += float(loss.detach())
        lengths = micro.batch.lengths_BG
        entropy_sum += float((H.sum(dim=-1) / lengths.clamp(min=1)).sum())
    return {"loss": loss_sum, "entropy": entropy_sum / (batch.shape[0] * batch.shape[1])}
