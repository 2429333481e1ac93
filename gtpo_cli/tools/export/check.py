"""Check that an export is the trained model, by log-probabilities of the policy's own greedy answers.

The export is loaded as a user would load it. For each token of the answers, the check measures the difference of
log-probabilities in nats, and whether the token is still the likeliest. This shows rounding, and weights of another
model. An adapter that is missing, applied twice or scaled wrongly may change less than rounding does. So a second check
measures how much of training's change of log-probabilities is in the export. docs/export.md explains the bounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.data import PromptEncoder
from gtpo_cli.errors import ExportError
from gtpo_cli.evaluation.session import stream_text
from gtpo_cli.machine.memory import EXPORT_TOKENS
from gtpo_cli.policy import Policy
from gtpo_cli.policy.loading import ROUNDING, dtype_name
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.runs.files import read_json_lines
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tasks.making import arithmetic_problems

PROMPTS = 8
KEPT_TOLERANCE = 0.2  # of LogprobGap.kept around 1
# Without the 4-bit rounding of its base, or on another base, a policy is a different but related model.
BOUND_OF_ANOTHER_BASE = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The token ids of a prompt and of the policy's greedy completion."""

    question: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnswerLogprobs:
    """A model's log-probabilities of N answer tokens (nats, float32), and the likeliest ids at their places.

    `dtype`: the type the model computed in, e.g. "float32".
    """

    logprobs_N: Tensor
    likeliest_N: Tensor
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Reference:
    """The measurements to compare an export with: of the trained model and, for an adapter, without the adapter."""

    trained: AnswerLogprobs
    untrained: AnswerLogprobs | None = None


@dataclass(frozen=True, slots=True)
class LogprobGap:
    """The difference between an export and its reference over `tokens` tokens: mean and largest |difference| of
    log-probabilities in nats, and at how many tokens the likeliest one is the same.

    `effect`: mean |difference| between the trained and untrained reference in nats; None without an untrained model.
    `kept`: how much of the effect is in the export (1 all, 0 none, 2 twice), fitted by least squares with standard
    error `kept_error`; None without an effect, or if it is 0.
    """

    tokens: int
    mean: float
    largest: float
    same_likeliest: int
    effect: float | None = None
    kept: float | None = None
    kept_error: float = 0.0

    @property
    def is_hidden(self) -> bool:
        """Whether rounding hides the effect: `kept` is too inexact to tell all of it from none of it."""
        return 3 * self.kept_error >= 1.0

    def __str__(self) -> str:
        text = (
            f"log-probabilities differ by {self.mean:.2g} nats on average, {self.largest:.2g} at most; likeliest token "
            f"the same at {self.same_likeliest} of {self.tokens}"
        )
        if self.effect is None:
            return text
        if self.kept is None:
            return f"{text}; training changed none of them"
        text += f"; training changed them by {self.effect:.2g}"
        if self.is_hidden:
            return f"{text}, which is less than rounding, so the check cannot see how much of it is in the export"
        if self.kept < 0:
            return f"{text}, the export in the opposite direction"
        if self.kept > 1.005:
            return f"{text}, the export {self.kept:.2f} times as much"
        return f"{text}, of which {100 * self.kept:.0f} % are in the export"


@dataclass(frozen=True, slots=True)
class _Sample:
    question: str


def sample_questions(run: RunFolder) -> tuple[str, ...]:
    """Return questions from the run's newest stored step, or else from the built-in task.

    Only the run folder is read, because the data may not be on this machine.
    """
    questions: tuple[str, ...] = ()
    for file in sorted(run.samples.glob("step-*.jsonl"), reverse=True):
        with contextlib.suppress(ExportError):  # an incomplete line; an older step suffices
            rows = list(read_json_lines(file, _Sample, lambda _, why: ExportError(f"{file}: {why}")))  # noqa: B023
            questions = tuple(dict.fromkeys(row.question for row in rows))[:PROMPTS]
        if questions:
            return questions
    return tuple(problem.question for problem in arithmetic_problems(PROMPTS, split="test", seed=0))


def greedy_answers(
    policy: Policy, encoder: PromptEncoder, questions: Sequence[str], *, max_tokens: int
) -> tuple[Answer, ...]:
    """Sample the policy's greedy answers. Questions that fill its context are skipped; raises ExportError if all do."""
    params = SamplingParams(0.0, max_completion_tokens=min(max_tokens, EXPORT_TOKENS))
    answers = []
    for question in questions:
        prompt = encoder.encode(question, at_most=policy.max_seq_length)
        if len(prompt) >= policy.max_seq_length:
            continue
        stream = stream_text(policy, prompt, params)
        try:
            while True:
                next(stream)
        except StopIteration as end:
            answers.append(Answer(question, prompt, end.value.token_ids))
    if not answers:
        raise ExportError(
            f"none of the run's questions leaves room for an answer within {policy.max_seq_length} tokens, so the "
            "export cannot be compared"
        )
    return tuple(answers)


@torch.no_grad()
def measure(model: Any, answers: Sequence[Answer]) -> AnswerLogprobs:
    """Measure one answer at a time with the model's plain forward pass; softmax at temperature 1 in float32."""
    model.eval()
    device, dtype = model.device, dtype_name(model.dtype)
    logprobs, likeliest = [], []
    for answer in answers:
        ids = torch.tensor([[*answer.prompt_ids, *answer.completion_ids]], device=device)
        start, completion_N = len(answer.prompt_ids), ids[0, len(answer.prompt_ids) :]
        logp_NV = model(input_ids=ids, use_cache=False).logits[0, start - 1 : -1].float().log_softmax(dim=-1)
        logprobs.append(logp_NV.gather(1, completion_N[:, None])[:, 0].cpu())
        likeliest.append(logp_NV.argmax(dim=-1).cpu())
    return AnswerLogprobs(torch.cat(logprobs), torch.cat(likeliest), dtype)


def measure_both(model: Any, answers: Sequence[Answer]) -> Reference:
    """Measure the model, and if it has an adapter, also without it."""
    trained = measure(model, answers)
    if not hasattr(model, "peft_config"):
        return Reference(trained)
    with model.disable_adapter():
        return Reference(trained, measure(model, answers))


def compare(reference: Reference, found: AnswerLogprobs) -> LogprobGap:
    """Compare an export with its reference. Raises ExportError if a log-probability is not finite."""
    gaps_N = (reference.trained.logprobs_N - found.logprobs_N).abs()
    if not bool(torch.isfinite(gaps_N).all()):
        raise ExportError(
            "the export's log-probabilities are not finite: its weights do not fit the data type; try --dtype bfloat16 "
            "or float32"
        )
    same = int((reference.trained.likeliest_N == found.likeliest_N).sum())
    plain = LogprobGap(len(gaps_N), float(gaps_N.mean()), float(gaps_N.max()), same)
    if reference.untrained is None:
        return plain
    before_N = reference.untrained.logprobs_N.double()
    effect_N, export_N = reference.trained.logprobs_N.double() - before_N, found.logprobs_N.double() - before_N
    power = float((effect_N**2).sum())
    if power == 0.0:
        return replace(plain, effect=0.0)
    kept = float((effect_N * export_N).sum()) / power
    residual_N = export_N - kept * effect_N
    error = float((residual_N**2).mean() / power) ** 0.5
    return replace(plain, effect=float(effect_N.abs().mean()), kept=kept, kept_error=error)


def rounding_bound(*dtypes: str) -> float:
    """Return the bound for rounding to the coarsest of these types."""
    return max(ROUNDING[dtype] for dtype in dtypes)


def require(difference: LogprobGap, *, bound: float, where: str, remedy: str) -> None:
    """Raise ExportError for a difference that rounding does not explain: above `bound` on average, or if the export
    does not contain training's effect exactly once. An effect hidden by rounding passes."""
    if difference.mean > bound:
        problem = f"rounding explains {bound:g} nats on average"
    elif (
        difference.kept is not None
        and not difference.is_hidden
        and abs(difference.kept - 1.0) > KEPT_TOLERANCE + 3 * difference.kept_error
    ):
        problem = "it does not contain the adapter as trained"
    else:
        return
    raise ExportError(
        f"{where}: not exported, because the written model is not the trained one: {difference} ({problem}); {remedy}"
    )
