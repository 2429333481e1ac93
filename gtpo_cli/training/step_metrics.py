"""What is recorded of a finished step: its declared metrics, and sample completions with GTPO's values.

Names, formulas and units of the metrics: `gtpo_cli/tracking/metrics.py`. samples/step-000050.jsonl has one completion a
line.
"""

from __future__ import annotations

import json
import math
import resource
import statistics
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.errors import CheckpointError
from gtpo_cli.objective import SampledRows
from gtpo_cli.runs.files import write_aside, writing_run
from gtpo_cli.training.step import StepRows
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Completion, Group, Verdict


def step_metrics(rows: StepRows, clock: Stopwatch) -> dict[str, float]:
    """Compute all metrics of one policy-gradient step, by declared name."""
    metrics = _reward_metrics(rows.samples.groups) | _objective_metrics(rows)
    metrics["train/accuracy_rate"] = statistics.fmean(
        chain.from_iterable(each.correct for each in rows.samples.outcomes)
    )
    sampled_by_NT = rows.logprobs_NT if rows.old_NT is None else rows.old_NT  # the policy that sampled
    metrics |= sampler_metrics(sampled_by_NT, rows)
    norms = [each.grad_norm for each in rows.iterations if each.grad_norm is not None]
    metrics["optim/loss"] = statistics.fmean(each.loss for each in rows.iterations)
    metrics["optim/grad_norm"] = statistics.fmean(norms or [math.nan])
    metrics["optim/skipped"] = float(rows.not_finite is not None)
    metrics["optim/learning_rate"] = rows.iterations[0].learning_rate
    if (discarded := rows.samples.discarded) is not None:
        metrics["groups/resampled_share"] = len(discarded) / (len(discarded) + len(rows.samples.groups))
    if kl := [each.kl for each in rows.iterations if each.kl is not None]:
        metrics["policy/kl"] = statistics.fmean(kl)
    if ratios := [each.ratios for each in rows.iterations if each.ratios is not None]:
        metrics["ratio/mean"] = statistics.fmean(each.mean for each in ratios)
        metrics["ratio/max"] = max(each.largest for each in ratios)
        metrics["ratio/clipped_share"] = statistics.fmean(each.clipped_share for each in ratios)
    metrics |= {"time/sample": 0.0, "time/reward": 0.0}  # stays 0 if an earlier generation sampled for this step
    return metrics | time_metrics(clock, tokens=int(rows.mask_NT.sum()), device=rows.mask_NT.device)


def time_metrics(clock: Stopwatch, *, tokens: int, device: torch.device) -> dict[str, float]:
    """Compute seconds by phase, speed and memory. `tokens`: completion tokens of the step."""
    total = clock.total
    metrics = {f"time/{phase}": seconds for phase, seconds in clock.seconds.items()}
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
    return metrics | {
        "time/step": total,
        "speed/tokens_per_second": tokens / total,
        "memory/peak_bytes": float(peak),
    }


def audit_metrics(rows: StepRows, eos_token_ids: frozenset[int]) -> dict[str, float]:
    """Compute the `audit/...` metrics (`objective.audit`) of the step's first iteration, without the KL term."""
    from gtpo_cli.objective.gradient_audit import gradient_audit

    eos_NT = torch.isin(rows.ids_NT, torch.tensor(sorted(eos_token_ids), device=rows.ids_NT.device)) & rows.mask_NT
    pull_NT = rows.coefficients_NT * rows.shares_N[..., None]  # dJ / d ln pi(o_t) where the ratio is 1
    audit = gradient_audit(rows.by_group(pull_NT), rows.spans, rows.by_group(rows.mask_NT), rows.by_group(eos_NT))
    return {f"audit/{name}": value for name, value in audit.items()}


def _reward_metrics(groups: Sequence[Group]) -> dict[str, float]:
    verdicts = [verdict for group in groups for verdict in group.verdicts]
    completions = [completion for group in groups for completion in group.completions]
    rewards = [verdict.reward for verdict in verdicts]
    mean = statistics.fmean(rewards)
    metrics = {
        "train/reward_mean": mean,
        "train/reward_std": math.dist(rewards, [mean] * len(rewards)) / math.sqrt(max(1, len(rewards) - 1)),
        "train/format_rate": statistics.fmean(verdict.complete_format for verdict in verdicts),
        "train/strict_format_rate": statistics.fmean(verdict.strict_format for verdict in verdicts),
        "completions/length_mean": statistics.fmean(len(completion.token_ids) for completion in completions),
        "completions/truncated_share": statistics.fmean(completion.truncated for completion in completions),
        "completions/empty_share": statistics.fmean(not completion.token_ids for completion in completions),
        "rewards/timeouts": float(sum(verdict.timed_out for verdict in verdicts)),
        "rewards/errors": float(sum(verdict.failed is not None for verdict in verdicts)),
    }
    for name in verdicts[0].plugins:
        metrics[f"rewards/{name}_mean"] = statistics.fmean(verdict.plugins[name] for verdict in verdicts)
    return metrics


def _objective_metrics(rows: StepRows) -> dict[str, float]:
    """Compute the metrics of entropy, conflict tokens, weights of tokens and reward spread."""
    tokens = max(1, int(rows.mask_NT.sum()))
    entropy = rows.mean_entropy_N[rows.mask_NT.any(dim=1)]
    return {
        "entropy/mean": float(entropy.mean()) if len(entropy) else 0.0,
        "entropy/max": float(entropy.max()) if len(entropy) else 0.0,
        "entropy/filtered_share": _mean(rows.filtered_N),
        "conflict/share": int((rows.forward_NT | rows.backward_NT).sum()) / tokens,
        "conflict/forward_share": int(rows.forward_NT.sum()) / tokens,
        "conflict/backward_share": int(rows.backward_NT.sum()) / tokens,
        "tokens/weighted_share": int((rows.weights_NT != 1)[rows.mask_NT].sum()) / tokens,
        "tokens/learning_share": int((rows.coefficients_NT != 0)[rows.mask_NT].sum()) / tokens,
        "groups/uninformative_share": _mean((rows.by_group(rows.advantages_N) == 0).all(dim=1)),
    }


def sampler_metrics(logprobs_NT: Tensor, rows: SampledRows) -> dict[str, float]:
    """Measure how far the policy's log-probabilities (nats) are from the sampler's, over real tokens."""
    gap = (logprobs_NT - rows.sampled_NT)[rows.mask_NT].abs()
    return {
        "sampler/gap_mean": float(gap.mean()) if len(gap) else 0.0,
        "sampler/gap_max": float(gap.max()) if len(gap) else 0.0,
    }


def _mean(values: Tensor) -> float:
    return float(values.float().mean())


def sample_rows(rows: StepRows) -> list[dict[str, Any]]:
    """Make one mapping for each completion.

    It has problem, text, rewards, advantage, <H>_i, delta, and for each token: id, log-probability, entropy, forward
    and backward mask (0/1), lambda, and c (times the weight of `rollout.importance_correction`, if on). The caller adds
    the tokens' texts.
    """
    made = []
    for row, (group, number, completion, verdict) in enumerate(_completions(rows)):
        length = len(completion.token_ids)

        def of_tokens(values_NT: Tensor, row: int = row, length: int = length) -> list[float]:
            return [round(value, 6) for value in values_NT[row, :length].tolist()]

        made.append(
            {
                "problem": group.problem.id,
                "question": group.problem.question,
                "gold": group.problem.gold,
                "completion": number,
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "reward": verdict.reward,
                "format": verdict.format_score,
                "accuracy": verdict.accuracy_score,
                "correct": verdict.correct,
                "score": verdict.score,
                "extracted": verdict.extracted,
                "plugins": dict(verdict.plugins),
                "advantage": float(rows.advantages_N[row]),
                "mean_entropy": float(rows.mean_entropy_N[row]),
                "kept": bool(rows.keep_N[row]),
                "token_ids": list(completion.token_ids),
                "logprobs": of_tokens(rows.logprobs_NT),
                "entropy": of_tokens(rows.entropy_NT),
                "forward": of_tokens(rows.forward_NT.int()),
                "backward": of_tokens(rows.backward_NT.int()),
                "lambda": of_tokens(rows.weights_NT),
                "coefficient": of_tokens(rows.coefficients_NT),
            }
        )
    return made


def sample_table(rows: StepRows, tokenizer: Any) -> list[dict[str, str | float | None]]:
    """Make a row for people to read for each completion of a step.

    It has the prompt as the model got it, the completion, its rewards, its advantage, and the reason why it was left
    out of training, if any.
    """
    made: list[dict[str, str | float | None]] = []
    for row, (group, _, completion, verdict) in enumerate(_completions(rows)):
        why = {
            "mean entropy over the threshold": bool(rows.filtered_N[row]),
            "truncated": not rows.included_N[row],
        }
        made.append(
            {
                "problem": group.problem.id,
                "prompt": tokenizer.decode(list(group.prompt_ids)),
                "gold": group.problem.gold,
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "answer": verdict.extracted,
                "reward": verdict.reward,
                **verdict.scores,
                "advantage": float(rows.advantages_N[row]),
                "mean_entropy": float(rows.mean_entropy_N[row]),
                "filtered": "; ".join(reason for reason, holds in why.items() if holds),
            }
        )
    return made


def _completions(rows: StepRows) -> Iterator[tuple[Group, int, Completion, Verdict]]:
    """Yield group, number within the group, completion and verdict of each row."""
    for group in rows.samples.groups:
        for number, (completion, verdict) in enumerate(zip(group.completions, group.verdicts, strict=True)):
            yield group, number, completion, verdict


def write_samples(folder: Path, step: int, rows: StepRows, tokenizer: Any) -> Path:
    """Write the step's completions, replacing a file from before an interruption.

    Raises CheckpointError if they cannot be written.
    """
    made = sample_rows(rows)
    for row in made:
        row["tokens"] = tokenizer.batch_decode([[token] for token in row["token_ids"]])
    target = folder / f"step-{step:06d}.jsonl"
    with writing_run(
        folder.parent,
        lambda why, remedy: CheckpointError(
            f"{target}: sample completions cannot be written ({why}); {remedy}, then continue with gtpo train --resume "
            f"{folder.parent}"
        ),
    ):
        folder.mkdir(exist_ok=True)
        write_aside(target, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made))
    return target
