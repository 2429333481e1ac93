"""The declared metrics of a finished step. Names, formulas and units: `gtpo_cli/tracking/metrics.py`."""

from __future__ import annotations

import math
import resource
import statistics

import torch
from torch import Tensor

from gtpo_cli.objective import TokenBatch
from gtpo_cli.training.step import StepResult
from gtpo_cli.training.stopwatch import Stopwatch


def step_metrics(result: StepResult, clock: Stopwatch) -> dict[str, float]:
    """Compute all metrics of one policy-gradient step, by declared name."""
    metrics = _reward_metrics(result) | _objective_metrics(result)
    sampled_by = result.logprobs_BGT if result.old_logprobs_BGT is None else result.old_logprobs_BGT
    metrics |= sampler_metrics(sampled_by, result.batch)  # of the policy that sampled
    metrics["optim/loss"] = statistics.fmean(result.losses)
    metrics["optim/grad_norm"] = statistics.fmean(result.grad_norms or [math.nan])
    metrics["optim/skipped"] = float(result.not_finite is not None)
    metrics["optim/learning_rate"] = result.learning_rate
    if result.resampled_share is not None:
        metrics["groups/resampled_share"] = result.resampled_share
    if result.kl:
        metrics["policy/kl"] = statistics.fmean(result.kl)
    if result.ratios:
        metrics["ratio/mean"] = statistics.fmean(ratios.mean for ratios in result.ratios)
        metrics["ratio/max"] = max(ratios.largest for ratios in result.ratios)
        metrics["ratio/clipped_share"] = statistics.fmean(ratios.clipped_share for ratios in result.ratios)
    metrics |= {"time/sample": 0.0, "time/reward": 0.0}  # stays 0 if an earlier generation sampled for this step
    return metrics | time_metrics(clock, tokens=int(result.batch.lengths_BG.sum()), device=result.advantages_BG.device)


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


def audit_metrics(result: StepResult, eos_token_ids: frozenset[int]) -> dict[str, float]:
    """Compute the `audit/...` metrics (`objective.audit`) of the step's first iteration, without the KL term."""
    from gtpo_cli.objective.gradient_audit import gradient_audit

    mask = result.batch.completion_mask_BGT
    eos = torch.tensor(sorted(eos_token_ids), device=mask.device)
    eos_BGT = torch.isin(result.batch.completion_ids_BGT, eos) & mask
    pull_BGT = result.coefficients_BGT * result.shares_BG[..., None]  # dJ / d ln pi(o_t) where the ratio is 1
    audit = gradient_audit(pull_BGT, result.spans, mask, eos_BGT)
    return {f"audit/{name}": value for name, value in audit.items()}


def _reward_metrics(result: StepResult) -> dict[str, float]:
    verdicts = [verdict for group in result.groups for verdict in group.verdicts]
    completions = [completion for group in result.groups for completion in group.completions]
    rewards = [verdict.reward for verdict in verdicts]
    mean = statistics.fmean(rewards)
    metrics = {
        "train/reward_mean": mean,
        "train/reward_std": math.dist(rewards, [mean] * len(rewards)) / math.sqrt(max(1, len(rewards) - 1)),
        "train/format_rate": statistics.fmean(verdict.complete_format for verdict in verdicts),
        "train/accuracy_rate": statistics.fmean(verdict.accuracy_score > 0 for verdict in verdicts),
        "train/strict_format_rate": statistics.fmean(verdict.strict_format for verdict in verdicts),
        "completions/length_mean": statistics.fmean(len(completion.token_ids) for completion in completions),
        "completions/truncated_share": statistics.fmean(completion.truncated for completion in completions),
        "completions/empty_share": statistics.fmean(not completion.token_ids for completion in completions),
        "rewards/timeouts": float(sum(verdict.timed_out for verdict in verdicts)),
    }
    for name in verdicts[0].plugins:
        metrics[f"rewards/{name}_mean"] = statistics.fmean(verdict.plugins[name] for verdict in verdicts)
    return metrics


def _objective_metrics(result: StepResult) -> dict[str, float]:
    """Compute the metrics of entropy, conflict tokens and reward spread."""
    tokens = max(1, int(result.batch.lengths_BG.sum()))
    forward, backward = result.spans
    entropy = result.mean_entropy_BG[result.batch.lengths_BG > 0]
    return {
        "entropy/mean": float(entropy.mean()) if len(entropy) else 0.0,
        "entropy/max": float(entropy.max()) if len(entropy) else 0.0,
        "entropy/filtered_share": _mean(result.filtered_BG),
        "conflict/share": int((forward | backward).sum()) / tokens,
        "conflict/forward_share": int(forward.sum()) / tokens,
        "conflict/backward_share": int(backward.sum()) / tokens,
        "groups/uninformative_share": _mean((result.advantages_BG == 0).all(dim=1)),
    }


def sampler_metrics(logprobs_BGT: Tensor, batch: TokenBatch) -> dict[str, float]:
    """Measure how far the policy's log-probabilities (nats) are from the sampler's, over real tokens."""
    gap = (logprobs_BGT - batch.sampled_logprobs_BGT)[batch.completion_mask_BGT].abs()
    return {
        "sampler/gap_mean": float(gap.mean()) if len(gap) else 0.0,
        "sampler/gap_max": float(gap.max()) if len(gap) else 0.0,
    }


def _mean(values: Tensor) -> float:
    return float(values.float().mean())
