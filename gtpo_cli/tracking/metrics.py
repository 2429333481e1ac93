"""The declaration of every metric of a training run: name, unit, better direction, formula, range.

A metric has a better direction only if that holds in every run. An entropy, a length, a gradient norm, a KL term and
the loss of a policy gradient may rise or fall while a policy learns.

The names are the same in metrics.jsonl, on the console, in wandb and TensorBoard, and in the documentation; people
build dashboards on them. "The step's completions" are all `B * G` completions sampled in the step, kept or filtered (in
SFT the reference completions). "Completion tokens" are all their tokens with the end-of-sequence token, without
padding. Symbols are those of the paper (arXiv 2508.03772): R reward, A advantage, `<H>_i` mean entropy of completion i,
M conflict mask.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Literal

from gtpo_cli.text import counted, markdown_table


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a step: name, unit, better direction (None: neither), and formula.

    Its range follows from the unit, or is `at_least` to `at_most`.
    """

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
           "steps finished since the run began", at_least=1),
    Metric("train/reward_mean", "points", "more",
           "mean of R, the weighted sum of all rewards"),
    Metric("train/reward_std", "points", None,
           "standard deviation (divisor n - 1) of R over all groups together", at_least=0),
    Metric("train/format_rate", "share", "more",
           "completions with full marks for format, in the reward's mode / completions"),
    Metric("train/accuracy_rate", "share", "more",
           "completions with the right answer / completions, those of groups that objective.resample replaced among"
           " them; what else is said of completions is of the groups that were kept"),
    Metric("train/strict_format_rate", "share", "more",
           "completions with all tags once and in order, whatever the mode / completions"),
    Metric("entropy/mean", "nats", None, "mean of <H>_i over completions that are not empty"),
    Metric("entropy/max", "nats", None, "largest <H>_i of the step"),
    Metric("entropy/filtered_share", "share", None, "completions with delta_i = 0 (Eq. 10) / completions"),
    Metric("conflict/share", "share", None, "completion tokens with M = 1 (forward or backward) / completion tokens"),
    Metric("conflict/forward_share", "share", None, "tokens in the forward mask / completion tokens"),
    Metric("conflict/backward_share", "share", None,
           "tokens in the backward mask / completion tokens"),
    Metric("tokens/weighted_share", "share", None,
           "completion tokens with lambda other than 1 / completion tokens: how many the rule for tokens weighs"),
    Metric("tokens/learning_share", "share", None,
           "completion tokens with c other than 0 / completion tokens"),
    Metric("groups/uninformative_share", "share", None,
           "groups whose every A is 0 (with most rules: whose rewards are equal) / groups"),
    Metric("groups/resampled_share", "share", None,
           "groups replaced for equal rewards / groups sampled; only with objective.resample"),
    Metric("completions/length_mean", "tokens", None, "completion tokens / completions"),
    Metric("completions/truncated_share", "share", "less",
           "completions cut at rollout.max_completion_tokens / completions"),
    Metric("completions/empty_share", "share", "less", "completions without a token / completions"),
    Metric("optim/loss", "loss", "less in SFT",
           "loss of the step, mean over its iterations (GTPO: -J of Eq. 11; SFT: nats a token); except in SFT its trend"
           " says nothing of progress"),
    Metric("optim/grad_norm", "norm", None,
           "2-norm of the whole gradient before clipping, mean over the step's iterations"),
    Metric("optim/learning_rate", "1", None, "learning rate of the step's update"),
    Metric("optim/skipped", "steps", "less",
           "1 if a log-probability, the loss or the gradient was not finite and the rest of the step made no update",
           at_most=1),
    Metric("guard/alarms", "alarms", "less", "alarms of the guard in this step (training.guard)"),
    Metric("policy/kl", "nats", None,
           "mean over completion tokens of exp(d) - d - 1, d = logp_reference - logp_policy; only with a reference"),
    Metric("sampler/gap_mean", "nats", "less",
           "absolute difference of logp_policy and logp_sampler when sampled, mean over completion tokens"),
    Metric("sampler/gap_max", "nats", "less", "largest such difference"),
    Metric("samples/age", "steps", None,
           "steps since the generation of the completions; only with rollout.steps_per_generation above 1"),
    Metric("ratio/mean", "1", None,
           "mean of r = pi / pi_old (objective.loss.rule) over the trained tokens (those with a coefficient) and the"
           " iterations after an update on the policy that sampled; before it r is 1, and nothing is logged"),
    Metric("ratio/max", "1", None, "largest such r"),
    Metric("ratio/clipped_share", "share", None,
           "such tokens with r outside the clip range, whatever the sign of their coefficient / such tokens"),
    Metric("tasks/resting", "prompts", None, "prompts that rest; only with data.rest_after"),
    Metric("rewards/timeouts", "completions", "less",
           "completions whose comparison ran out of time or memory (accuracy 0)"),
    Metric("rewards/errors", "completions", "less",
           "completions over which a task's verifier raised an exception (accuracy 0)"),
    Metric("time/sample", "s", "less",
           "sampling, all of it in a generation's first step"),
    Metric("time/reward", "s", "less", "scoring, likewise"),
    Metric("time/weigh", "s", "less",
           "measuring all tokens of the step; only with a rule for token weights that compares them"),
    Metric("time/train", "s", "less",
           "forward, backward and update; in a generation's first step also measuring ln pi_old"),
    Metric("time/step", "s", "less", "the whole step; all times are wall-clock"),
    Metric("speed/tokens_per_second", "tokens/s", "more", "completion tokens / time/step"),
    Metric("memory/peak_bytes", "bytes", "less", "peak so far: allocated CUDA memory, without a GPU resident set size"),
)  # fmt: skip
# Metrics whose name has a variable part in angle brackets.
_FAMILIES = (
    Metric("rewards/<name>_mean", "points", "more",
           "mean of the unweighted score of a user reward (less is better with a negative weight);"
           " rewards/length_mean: of DAPO's length penalty"),
    Metric("audit/<place>_<sign>_share", "share", None,
           "sum of the absolute policy-gradient coefficients (before the ratio) of that sign and place (prefix: forward"
           " span, suffix: backward span, eos: end-of-sequence, middle: the rest) / sum over all tokens; only with"
           " objective.audit"),
    Metric("audit/<place>_negative_groups", "share", None,
           "groups whose coefficients on shared prefix (or eos) tokens sum to less than 0 / groups where they do not"
           " cancel; only with objective.audit"),
    Metric("tasks/<benchmark>/accuracy_rate", "share", None,
           "as train/accuracy_rate, of the completions of one part of the data; with a mixture, data.curriculum or"
           " data.rest_after"),
    Metric("tasks/<benchmark>/level", "level", None, "its level, from 0; only with data.curriculum"),
    Metric("eval/<benchmark>/accuracy_rate", "share", "more",
           "right answers / completions, one of each of evaluation.limit test problems; of each part of a mixture too"),
    Metric("eval/<benchmark>/strict_format_rate", "share", "more",
           "as train/strict_format_rate, of those completions"),
    Metric("eval/<benchmark>/truncated_share", "share", "less",
           "completions cut at evaluation.max_completion_tokens / all"),
    Metric("eval/<benchmark>/length_mean", "tokens", None, "tokens / completions, of those evaluated"),
    Metric("eval/<benchmark>/entropy_mean", "nats", None,
           "mean of <H>_i over those completions, at rollout.temperature (1 in SFT)"),
    Metric("eval/time", "s", "less", "the evaluation after the step, beside time/step"),
)  # fmt: skip

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _DECLARED})
"""All metrics by name, in the order in which they are written and documented."""


def reward_words(name: str) -> str:
    """Return the displayed name of a further reward. `length` is DAPO's penalty, in points, not a length in tokens."""
    return "length penalty" if name == "length" else name


_ORDER = {name: place for place, name in enumerate(METRICS)}
_PLACEHOLDERS = {
    "<name>": ".+",
    "<benchmark>": ".+",
    "<place>": "(prefix|suffix|eos|middle)",
    "<sign>": "(positive|negative)",
}


def find_metric(name: str) -> Metric:
    """Return the declaration of `name`, which may have a variable part. Raises ValueError."""
    if (declared := METRICS.get(name)) is not None:
        return declared
    for metric in _FAMILIES:
        pattern = re.sub("<[a-z]+>", lambda found: _PLACEHOLDERS[found[0]], metric.name)
        if re.fullmatch(pattern, name):
            return replace(metric, name=name)
    raise ValueError(f"{name} is not a declared metric; declare it in gtpo_cli/tracking/metrics.py")


def in_order(names: Iterable[str]) -> list[str]:
    """Sort `names` in the declared order; user rewards come last, by name."""
    return sorted(names, key=lambda name: (_ORDER.get(name, len(_ORDER)), name))


def metrics_table() -> str:
    """Return the declarations as a Markdown table for the documentation, which explains the range of each unit."""
    rows = [
        (f"`{row.name}`", row.unit, row.better or "", row.formula.replace("<H>_i", "`<H>_i`"))  # no HTML
        for row in (*_DECLARED, *_FAMILIES)
    ]
    return markdown_table(("name", "unit", "better", "what it is"), rows)


# The metrics a user asks for first: name, words, format.
_SUMMARISED = (
    ("train/accuracy_rate", "accuracy", "{:.1%}"),
    ("train/strict_format_rate", "strict format", "{:.1%}"),
    ("optim/loss", "loss", "{:z.4f}"),
    ("entropy/mean", "entropy", "{:.3f} nats"),
    ("completions/length_mean", "length", "{:.1f} tokens"),
)
_REWARD = re.compile(r"rewards/(.*)_mean")
_ENOUGH = 100  # completions: a share of them is known to 10 points then


@dataclass(frozen=True, slots=True)
class Change:
    """Means of one metric over the first and the last `steps` steps, each of so many completions (0: not known)."""

    name: str
    words: str
    first: float
    last: float
    steps: int
    shown: str
    completions: int = 0

    def __str__(self) -> str:
        return f"{self.shown.format(self.first)} -> {self.shown.format(self.last)}"

    @property
    def span(self) -> str:
        """The averaged steps, in words."""
        steps = "the first and the last step" if self.steps == 1 else f"the first and the last {self.steps} steps"
        few = 0 < self.completions < _ENOUGH
        return f"{steps}, only {counted(self.completions, 'completion')} each" if few else steps


def changes(rows: Sequence[Mapping[str, float]], *, completions: int = 0) -> list[Change]:
    """Return the changes of the main metrics and of user rewards that at least two steps have.

    Each side is a twentieth of the steps, or as many as have 100 completions, but at most half of the run.
    `completions`: of one step; 0 if not known.
    """
    rewards = dict.fromkeys(match[0] for row in rows for name in row if (match := _REWARD.fullmatch(name)))
    result: list[Change] = []
    called = [(name, reward_words(_REWARD.sub(r"\1", name)), "{:z.2f}") for name in rewards]
    for name, words, shown in (*_SUMMARISED, *called):
        if name == "optim/loss" and result:
            continue  # only the loss of SFT measures progress, a policy-gradient loss does not
        values = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
        if len(values) > 1:
            enough = math.ceil(_ENOUGH / completions) if completions else 1
            steps = min(max(math.ceil(len(values) / 20), enough), len(values) // 2)
            means = fmean(values[:steps]), fmean(values[-steps:])
            result.append(Change(name, words, *means, steps, shown, steps * completions))
    return result
