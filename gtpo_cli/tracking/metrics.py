"""Every metric of a training run, declared once: name, unit, which of two values is better, formula, range.

A metric has a better value only where that holds for every run. An entropy, a length, a gradient norm, a KL term and
the loss of a policy gradient may rise or fall while a policy learns.

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

from gtpo_cli.text import markdown_table


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a step: what it is called, its unit, which of two values is the better one (None: neither), and how
    it is computed. Its range follows from the unit, or is `at_least` and `at_most`."""

    name: str
    unit: str
    better: Literal["more", "less", "less in SFT"] | None
    formula: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def low(self) -> float:
        return self.at_least if self.at_least is not None else -math.inf if self.unit in ("points", "loss") else 0.0

    @property
    def high(self) -> float:
        return self.at_most if self.at_most is not None else 1.0 if self.unit == "share" else math.inf


_DECLARED = (
    Metric("step", "steps", None,
           "steps finished since the run began (a step = one batch of sampled completions)", at_least=1),
    Metric("train/reward_mean", "points", "more",
           "mean of R, the weighted sum of all rewards, over the step's completions"),
    Metric("train/reward_std", "points", None,
           "standard deviation (divisor n - 1) of R over the step's completions, all groups together; 0 for a single"
           " one", at_least=0),
    Metric("train/format_rate", "share", "more",
           "completions with full marks for format, in the reward's own mode, / completions"),
    Metric("train/accuracy_rate", "share", "more",
           "completions whose extracted answer equals the gold answer / completions"),
    Metric("train/strict_format_rate", "share", "more",
           "completions whose tags stand once each and in order, whatever the reward's mode / completions"),
    Metric("entropy/mean", "nats", None, "mean of <H>_i over the step's completions that are not empty"),
    Metric("entropy/max", "nats", None, "largest <H>_i among the step's completions"),
    Metric("entropy/filtered_share", "share", None, "completions with delta_i = 0 (Eq. 10) / completions"),
    Metric("conflict/share", "share", None, "completion tokens with M = 1 (forward or backward) / completion tokens"),
    Metric("conflict/forward_share", "share", None, "completion tokens in the forward mask / completion tokens"),
    Metric("conflict/backward_share", "share", None,
           "completion tokens in the backward mask / completion tokens (a token can be in both masks)"),
    Metric("groups/uninformative_share", "share", None, "groups whose rewards are all equal (every A is 0) / groups"),
    Metric("groups/resampled_share", "share", None,
           "groups thrown away for want of reward spread / groups sampled; only with objective.resample"),
    Metric("completions/length_mean", "tokens", None, "completion tokens / completions"),
    Metric("completions/truncated_share", "share", "less",
           "completions that ran into rollout.max_completion_tokens / completions"),
    Metric("completions/empty_share", "share", "less", "completions of no token / completions"),
    Metric("optim/loss", "loss", "less in SFT",
           "the loss of the step, mean over its iterations (GTPO: -J of Eq. 11; SFT: nats a token). Each step of a"
           " policy gradient has another J, so its level and trend say nothing of progress"),
    Metric("optim/grad_norm", "norm", None,
           "2-norm of the gradient of all trained weights before clipping; mean over the step's iterations"),
    Metric("optim/learning_rate", "1", None, "learning rate of the step's update"),
    Metric("optim/skipped", "steps", "less",
           "1 where a log-probability, the loss or the gradient was infinite or NaN, so that the step (or what was "
           "left of its iterations) made no update; else 0", at_most=1),
    Metric("guard/alarms", "alarms", "less", "what the guard saw in this step (training.guard); 0 = nothing"),
    Metric("policy/kl", "nats", None,
           "mean over completion tokens of exp(d) - d - 1, d = logp_reference - logp_policy; only with a reference"),
    Metric("sampler/gap_mean", "nats", "less",
           "mean over completion tokens of the absolute difference of logp_policy and logp_sampler"),
    Metric("sampler/gap_max", "nats", "less", "largest such difference among the completion tokens"),
    Metric("rewards/timeouts", "completions", "less",
           "completions whose answer ran out of time or memory while compared (accuracy 0)"),
    Metric("time/sample", "s", "less", "wall-clock time of sampling"),
    Metric("time/reward", "s", "less", "wall-clock time of scoring"),
    Metric("time/train", "s", "less", "wall-clock time of forward, backward and update, all iterations"),
    Metric("time/step", "s", "less", "wall-clock time of the whole step"),
    Metric("speed/tokens_per_second", "tokens/s", "more", "completion tokens / time/step"),
    Metric("memory/peak_bytes", "bytes", "less", "peak so far: allocated CUDA memory on a GPU, else resident set size"),
)  # fmt: skip
# Metrics with a name of the user's, or one of several, in angle brackets.
_FAMILIES = (
    Metric("rewards/<name>_mean", "points", "more",
           "mean of the unweighted score of a user reward over the step's completions (of one with a negative weight"
           " less is better); rewards/length_mean: of DAPO's length penalty"),
    Metric("audit/<place>_<sign>_share", "share", None,
           "sum of the absolute policy-gradient coefficients of that sign at that place (prefix: forward span, "
           "suffix: backward span, eos: end-of-sequence tokens, middle: the rest) / sum over all tokens; only with "
           "objective.audit"),
    Metric("audit/<place>_negative_groups", "share", None,
           "groups whose coefficients on shared prefix (or end-of-sequence) tokens sum to less than 0 / groups in "
           "which they do not cancel; only with objective.audit"),
    Metric("eval/<benchmark>/accuracy_rate", "share", "more",
           "right answers / completions; one completion of each of the first evaluation.limit test problems, sampled"
           " with the current weights"),
    Metric("eval/<benchmark>/strict_format_rate", "share", "more",
           "as train/strict_format_rate, of the completions evaluated"),
    Metric("eval/<benchmark>/truncated_share", "share", "less",
           "completions that ran into evaluation.max_completion_tokens / all"),
    Metric("eval/<benchmark>/length_mean", "tokens", None, "completion tokens / completions, of those evaluated"),
    Metric("eval/<benchmark>/entropy_mean", "nats", None,
           "mean of <H>_i over the completions evaluated, at rollout.temperature"),
    Metric("eval/time", "s", "less", "wall-clock time of the evaluation after the step (not part of time/step)"),
)  # fmt: skip

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _DECLARED})
"""All metrics by name, in the order in which they are written and documented."""


def reward_words(name: str) -> str:
    """What a reward beside format and accuracy is called where people read it. `length` is DAPO's penalty, in points:
    the length itself is another figure, in tokens."""
    return "length penalty" if name == "length" else name


_ORDER = {name: place for place, name in enumerate(METRICS)}
_PLACEHOLDERS = {
    "<name>": ".+",
    "<benchmark>": "[a-z0-9]+",
    "<place>": "(prefix|suffix|eos|middle)",
    "<sign>": "(positive|negative)",
}


def find_metric(name: str) -> Metric:
    """The declaration of `name`: one of METRICS, or of the metrics with a user's name in them. Raises ValueError."""
    if (declared := METRICS.get(name)) is not None:
        return declared
    for metric in _FAMILIES:
        pattern = re.sub("<[a-z]+>", lambda found: _PLACEHOLDERS[found[0]], metric.name)
        if re.fullmatch(pattern, name):
            return replace(metric, name=name)
    raise ValueError(f"{name} is not a declared metric; declare it in gtpo_cli/tracking/metrics.py")


def in_order(names: Iterable[str]) -> list[str]:
    """`names` in the declared order; user rewards last, by name."""
    return sorted(names, key=lambda name: (_ORDER.get(name, len(_ORDER)), name))


def metrics_table() -> str:
    """The declarations as a Markdown table, for the documentation."""
    rows = []
    for row in (*_DECLARED, *_FAMILIES):
        bounds = f"{row.low:g} to {row.high:g}" if math.isfinite(row.high) else f"≥ {row.low:g}"
        bounds = bounds if math.isfinite(row.low) else "any"
        rows.append((f"`{row.name}`", row.unit, bounds, row.better or "", row.formula))
    return markdown_table(("name", "unit", "range", "better", "what it is"), rows)
