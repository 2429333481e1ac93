"""Every metric of a training run, declared once: name, formula, unit, range.

The names are the same in metrics.jsonl, on the console, in wandb and TensorBoard, and in the documentation; people
build dashboards on them. "The step's completions" are all `B * G` completions sampled in the step, whatever their keep
mask (in SFT the reference completions); "completion tokens" are the tokens of all of them, the end-of-sequence token
included, padding not. Symbols are those of the paper (arXiv 2508.03772): R reward, A advantage, `<H>_i` mean entropy of
completion i, M conflict mask.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

Direction = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a step: what it is called, how it is computed, its unit, the range it can take, and which of two
    values is the better one (None: neither)."""

    name: str
    formula: str
    unit: str
    low: float = -math.inf
    high: float = math.inf
    better: Direction | None = None


def _share(name: str, formula: str, better: Direction | None = None) -> Metric:
    return Metric(name, formula, "share", 0.0, 1.0, better)


_DECLARED = (
    Metric("step", "steps finished since the run began (a step = one batch of sampled completions)", "steps", 1),
    Metric(
        "train/reward_mean",
        "mean of R, the weighted sum of all rewards, over the step's completions",
        "points",
        better="more",
    ),
    Metric(
        "train/reward_std",
        "standard deviation (divisor n - 1) of R over the step's completions, all groups together; 0 for a single one",
        "points",
        0.0,
    ),
    _share(
        "train/format_rate",
        "completions with full marks for format, in the reward's own mode, / completions",
        better="more",
    ),
    _share(
        "train/accuracy_rate", "completions whose extracted answer equals the gold answer / completions", better="more"
    ),
    _share(
        "train/strict_format_rate",
        "completions whose tags stand once each and in order, whatever the reward's mode / completions",
        better="more",
    ),
    Metric("entropy/mean", "mean of <H>_i over the step's completions that are not empty", "nats", 0.0),
    Metric("entropy/max", "largest <H>_i among the step's completions", "nats", 0.0),
    _share("entropy/filtered_share", "completions with delta_i = 0 (Eq. 10) / completions"),
    _share("conflict/share", "completion tokens with M = 1 (forward or backward) / completion tokens"),
    _share("conflict/forward_share", "completion tokens in the forward mask / completion tokens"),
    _share(
        "conflict/backward_share",
        "completion tokens in the backward mask / completion tokens (a token can be in both masks)",
    ),
    _share("groups/uninformative_share", "groups whose rewards are all equal (every A is 0) / groups"),
    Metric("completions/length_mean", "completion tokens / completions", "tokens", 0.0, better="less"),
    _share(
        "completions/truncated_share",
        "completions that ran into rollout.max_completion_tokens / completions",
        better="less",
    ),
    _share("completions/empty_share", "completions of no token / completions", better="less"),
    Metric(
        "optim/loss",
        "the loss that was minimised (GTPO: -J of Eq. 11); mean over the step's iterations",
        "loss",
        better="less",
    ),
    Metric(
        "optim/grad_norm",
        "2-norm of the gradient of all trained weights before clipping; mean over the step's iterations",
        "norm",
        0.0,
    ),
    Metric("optim/learning_rate", "learning rate of the step's update", "1", 0.0),
    Metric(
        "optim/skipped",
        "1 where a log-probability, the loss or the gradient was infinite or NaN, so that the step (or what was left "
        "of its iterations) made no update; else 0",
        "steps",
        0.0,
        1.0,
        better="less",
    ),
    Metric(
        "guard/alarms", "what the guard saw in this step (training.guard); 0 = nothing", "alarms", 0.0, better="less"
    ),
    Metric(
        "policy/kl",
        "mean over completion tokens of exp(d) - d - 1, d = logp_reference - logp_policy; only with a reference",
        "nats",
        0.0,
        better="less",
    ),
    Metric(
        "sampler/gap_mean",
        "mean over completion tokens of the absolute difference of logp_policy and logp_sampler",
        "nats",
        0.0,
        better="less",
    ),
    Metric("sampler/gap_max", "largest such difference among the completion tokens", "nats", 0.0, better="less"),
    Metric(
        "rewards/timeouts",
        "completions whose answer ran out of time or memory while compared (accuracy 0)",
        "completions",
        0.0,
        better="less",
    ),
    Metric("time/sample", "wall-clock time of sampling", "s", 0.0, better="less"),
    Metric("time/reward", "wall-clock time of scoring", "s", 0.0, better="less"),
    Metric("time/train", "wall-clock time of forward, backward and update, all iterations", "s", 0.0, better="less"),
    Metric("time/step", "wall-clock time of the whole step", "s", 0.0, better="less"),
    Metric("speed/tokens_per_second", "completion tokens / time/step", "tokens/s", 0.0, better="more"),
    Metric(
        "memory/peak_bytes",
        "peak so far: allocated CUDA memory on a GPU, else resident set size",
        "bytes",
        0.0,
        better="less",
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _DECLARED})
"""All metrics by name, in the order in which they are written and documented."""

_ORDER = {name: place for place, name in enumerate(METRICS)}
# Names that hold a name of the user's: (pattern, declaration; its name shows the pattern in the documentation).
_EVALUATED = "one completion of each of the first evaluation.limit test problems, sampled with the current weights"
_PATTERNS = (
    (
        re.compile(r"rewards/.+_mean"),
        Metric(
            "rewards/<name>_mean",
            "mean of the unweighted score of a user reward over the step's completions",
            "points",
            better="more",
        ),
    ),
    (
        re.compile(r"audit/(prefix|suffix|eos|middle)_(positive|negative)_share"),
        _share(
            "audit/<place>_<sign>_share",
            "sum of the absolute policy-gradient coefficients of that sign at that place (prefix: forward span, "
            "suffix: backward span, eos: end-of-sequence tokens, middle: the rest) / sum over all tokens; only with "
            "objective.audit",
        ),
    ),
    (
        re.compile(r"audit/(prefix|eos)_negative_groups"),
        _share(
            "audit/<place>_negative_groups",
            "groups whose coefficients on shared prefix (or end-of-sequence) tokens sum to less than 0 / groups in "
            "which they do not cancel; only with objective.audit",
        ),
    ),
    (
        re.compile(r"eval/[a-z0-9]+/accuracy_rate"),
        _share("eval/<benchmark>/accuracy_rate", f"right answers / completions; {_EVALUATED}", better="more"),
    ),
    (
        re.compile(r"eval/[a-z0-9]+/strict_format_rate"),
        _share(
            "eval/<benchmark>/strict_format_rate",
            "as train/strict_format_rate, of the completions evaluated",
            better="more",
        ),
    ),
    (
        re.compile(r"eval/[a-z0-9]+/truncated_share"),
        _share(
            "eval/<benchmark>/truncated_share",
            "completions that ran into evaluation.max_completion_tokens / all",
            better="less",
        ),
    ),
    (
        re.compile(r"eval/[a-z0-9]+/length_mean"),
        Metric(
            "eval/<benchmark>/length_mean",
            "completion tokens / completions, of those evaluated",
            "tokens",
            0.0,
            better="less",
        ),
    ),
    (
        re.compile(r"eval/[a-z0-9]+/entropy_mean"),
        Metric(
            "eval/<benchmark>/entropy_mean",
            "mean of <H>_i over the completions evaluated, at rollout.temperature",
            "nats",
            0.0,
        ),
    ),
    (
        re.compile(r"eval/time"),
        Metric(
            "eval/time",
            "wall-clock time of the evaluation after the step (not part of time/step)",
            "s",
            0.0,
            better="less",
        ),
    ),
)


def find_metric(name: str) -> Metric:
    """The declaration of `name`: one of METRICS, or of the metrics with a user's name in them. Raises ValueError."""
    if (declared := METRICS.get(name)) is not None:
        return declared
    for pattern, metric in _PATTERNS:
        if pattern.fullmatch(name):
            return replace(metric, name=name)
    raise ValueError(f"{name} is not a declared metric; declare it in gtpo_cli/tracking/metrics.py")


def check_metrics(names: Iterable[str]) -> None:
    """Raises ValueError, naming the first of `names` that is declared nowhere (a programming error)."""
    for name in names:
        if name not in METRICS:
            find_metric(name)


def in_order(names: Iterable[str]) -> list[str]:
    """`names` in the declared order; user rewards last, by name."""
    return sorted(names, key=lambda name: (_ORDER.get(name, len(_ORDER)), name))


def metrics_table() -> str:
    """The declarations as a Markdown table, for the documentation."""
    rows = [*METRICS.values(), *(metric for _, metric in _PATTERNS)]
    lines = ["| name | unit | range | better | what it is |", "|---|---|---|---|---|"]
    lines += [f"| `{row.name}` | {row.unit} | {_range(row)} | {row.better or ''} | {row.formula} |" for row in rows]
    return "\n".join(lines) + "\n"


def _range(metric: Metric) -> str:
    if metric.low == -math.inf:
        return "any"
    return f"≥ {metric.low:g}" if metric.high == math.inf else f"{metric.low:g} to {metric.high:g}"
