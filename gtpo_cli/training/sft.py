"""One step of supervised fine-tuning: next-token cross-entropy on the reference completion only (prompt masked).

The reference solution is wrapped in the recipe's tags and ends with the end-of-sequence token. The loss is the mean
over all reference tokens of the step (docs/objective.md, section 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gtpo_cli.data import DroppedRow, said_count, token_ids, wrap_solution
from gtpo_cli.models import Policy
from gtpo_cli.objective import TokenBatch
from gtpo_cli.rewards.extract import PAPER_TAGS, TagNames
from gtpo_cli.rollout import Prompt, collate
from gtpo_cli.training.microbatch import Cut, MicroBatchSize
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.step_metrics import time_metrics
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Completion, Group, Problem


@dataclass(slots=True)
class SftParts:
    """Everything an SFT step works with; made once for a run."""

    policy: Policy
    updater: Updater
    micro_batch: MicroBatchSize
    tags: TagNames = PAPER_TAGS


def reference_completion(
    problem: Problem, tokenizer: Any, tags: TagNames = PAPER_TAGS, *, at_most: int | None = None
) -> Completion:
    """The completion to imitate: solution and gold answer in their tags, then end-of-sequence. `at_most`: see
    `token_ids`."""
    return completion_of(wrap_solution(problem.solution or "", problem.gold, tags=tags), tokenizer, at_most=at_most)


def completion_of(text: str, tokenizer: Any, *, at_most: int | None = None) -> Completion:
    """A text as if it had been sampled, ended by the end-of-sequence token; its log-probabilities are not known (0)."""
    ids = (*token_ids(tokenizer, text, at_most=at_most, add_special_tokens=False), tokenizer.eos_token_id)
    return Completion(ids, (0.0,) * len(ids), "stop", text)


def drop_long_references(
    prompts: Sequence[Prompt],
    tokenizer: Any,
    *,
    max_completion_tokens: int,
    max_seq_length: int,
    tags: TagNames = PAPER_TAGS,
) -> tuple[list[Prompt], list[DroppedRow]]:
    """Problems whose reference fits, and those whose reference is too long or lacks the worked solution of the tags."""
    kept: list[Prompt] = []
    dropped: list[DroppedRow] = []
    for problem, prompt_ids in prompts:
        reference = reference_completion(problem, tokenizer, tags, at_most=max_completion_tokens)
        length = len(reference.token_ids)
        where = problem.source or problem.id
        if problem.solution is None and tags.reasoning is not None:
            dropped.append(DroppedRow(where, "no worked solution to imitate (SFT needs one)"))
        elif length > max_completion_tokens or length + len(prompt_ids) > max_seq_length:
            dropped.append(
                DroppedRow(
                    where, f"reference too long: {said_count(length, max_completion_tokens)} tokens with its tags"
                )
            )
        else:
            kept.append((problem, prompt_ids))
    return kept, dropped


def sft_step(parts: SftParts, prompts: Sequence[Prompt], *, clock: Stopwatch) -> dict[str, float]:
    """Update the policy once on the references of these problems; returns the step's metrics."""
    tokenizer = parts.policy.tokenizer
    groups = [Group(problem, ids, (reference_completion(problem, tokenizer, parts.tags),)) for problem, ids in prompts]
    return imitate(parts, groups, clock=clock)


def imitate(parts: SftParts, groups: Sequence[Group], *, clock: Stopwatch) -> dict[str, float]:
    """Update the policy once on the completions of these groups, whatever they are; returns the step's metrics."""
    with clock.phase("train"):
        batch = collate(groups, device=parts.policy.device)
        totals = {"loss": 0.0, "entropy": 0.0}
        learning_rate = parts.updater.learning_rate
        parts.micro_batch.run(lambda cut: totals.update(_accumulate(parts, batch, cut)), batch)
        grad_norm = math.nan
        if math.isfinite(totals["loss"]):
            grad_norm = parts.updater.update()
        else:
            parts.updater.zero_grad()
        parts.updater.advance_schedule()
    tokens = int(batch.lengths_BG.sum())
    return {
        "optim/loss": totals["loss"],
        "optim/grad_norm": grad_norm,
        "optim/learning_rate": learning_rate,
        "optim/skipped": float(not math.isfinite(grad_norm)),
        "entropy/mean": totals["entropy"],
        "completions/length_mean": tokens / int(batch.lengths_BG.numel()),
    } | time_metrics(clock, tokens=tokens, device=parts.policy.device)


def _accumulate(parts: SftParts, batch: TokenBatch, cut: Cut) -> dict[str, float]:
    """Gradients of the mean over all reference tokens, as much at a time as `cut` gives."""
    parts.updater.zero_grad()
    tokens = batch.lengths_BG.sum()
    loss_sum, entropy_sum = 0.0, 0.0
    for micro in cut(batch):
        logp, H = parts.policy.token_logprobs(micro.batch)
        loss = -logp.sum() / tokens  # 0 at padding; the denominator is the whole step's
        parts.updater.backward(loss)
        loss_sum += float(loss.detach())
        lengths = micro.batch.lengths_BG
        entropy_sum += float((H.sum(dim=-1) / lengths.clamp(min=1)).sum())
    return {"loss": loss_sum, "entropy": entropy_sum / (batch.shape[0] * batch.shape[1])}
