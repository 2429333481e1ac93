"""The records that packages hand to each other. Frozen plain Python: no torch, only small derived values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length"]
Turn = tuple[str, str]  # of a chat: role (system, user, assistant) and text


class CodeName(str):
    """A function that a recipe asks for: `pkg.module:function` or `file.py:function`.

    `user_code.py` imports nothing that is called otherwise, and `recipe.section.code_names` finds all of this type. So
    a new key that names code cannot pass by what is checked before a stranger's recipe is run.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its gold answer.

    `source` says where it came from, for messages ("train.jsonl:17"). `solution` is the worked reference solution
    without its answer line, where the data has one (SFT trains on it). `turns`: the chat that asks it, the user's turn
    last, where that is more than the question alone. `prompt`: what the model is asked, system prompt included, once
    that is known: the turns that its chat template renders, or the text where it has none. `columns`: the row of the
    data as it stands there, kept where the recipe has rewards of the user's own.
    """

    id: str
    question: str
    gold: str
    solution: str | None = None
    source: str = ""
    turns: tuple[Turn, ...] = ()
    prompt: str | tuple[Turn, ...] = field(default=(), compare=False, repr=False)
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """Tokens sampled for one prompt, up to and including the end-of-sequence token when one was sampled.

    `logprobs` are the natural log-probabilities of those tokens under the sampler's softmax(logits / temperature) over
    the whole vocabulary (before top-p and top-k cut it). `finish_reason` is "length" when the completion ran into
    `max_completion_tokens` (a *truncated* completion: it has no end-of-sequence token). `text` is the decoded text
    without special tokens.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    text: str

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.logprobs), "one log-probability per token"

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of one completion, in training and in evaluation.

    `reward` is the weighted sum that training uses. `format_score` and `accuracy_score` are the unweighted parts
    (0..10). `strict_format` is true when all tags are there once each and in order, whatever mode the reward has;
    `complete_format` when the reward's own mode gave full marks. `correct` is true when the extracted answer equals
    the gold answer; the accuracy score asks more and less in mode released_code. `timed_out`: the comparison ran out of
    time or memory. `plugins` holds the unweighted score of each further reward
    by name: the user's own, and `length` where that has a weight.
    """

    reward: float
    format_score: float
    accuracy_score: float
    strict_format: bool
    complete_format: bool
    correct: bool
    extracted: str | None
    timed_out: bool = False
    plugins: Mapping[str, float] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, float]:
        """The unweighted score of each part of the reward, by name."""
        return {"format": self.format_score, "accuracy": self.accuracy_score, **self.plugins}


@dataclass(frozen=True, slots=True)
class Group:
    """The completions sampled for one prompt, with their verdicts once they are scored (empty before)."""

    problem: Problem
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    verdicts: tuple[Verdict, ...] = ()
