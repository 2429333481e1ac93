"""The records that packages exchange: frozen plain Python without torch, with only small derived values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

FinishReason = Literal["stop", "length"]
Place = Literal["tags", "boxed", "last_line", "hashes"]  # of an answer in a completion
Turn = tuple[str, str]  # a chat message: role (system, user, assistant) and text


class CodeName(str):
    """A function that a recipe names: `pkg.module:function` or `file.py:function`.

    `runs/user_code.py` imports nothing but this type, and `recipe.section.code_names` finds all values of it. So a new
    key that names code cannot bypass the checks before a stranger's recipe runs.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Tags:
    """Where an answer stands, and the names of the tags, without angle brackets. `reasoning`: None if completions have
    no such block. `answer` counts only if the answer stands in tags. A recipe's are `RewardsRecipe.tags`."""

    reasoning: str | None = "reasoning"
    answer: str = "answer"
    place: Place = "tags"


STEADY = {"PYTHONHASHSEED": "0"}  # for processes that run tasks: sets of texts then have the same order in each


class Entry(NamedTuple):
    """A problem of a task that scores answers itself: the task's name, its configuration as JSON, its level (None: it
    has none), and its own row of the problem, pickled in base64."""

    task: str
    config: str
    level: int | None
    row: str

    @property
    def of_task(self) -> tuple[str, str, int | None]:
        """The task alone, as it must be loaded to score."""
        return self.task, self.config, self.level


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its gold answer.

    `source`: its origin for messages ("train.jsonl:17"). `solution`: the worked reference solution without its answer
    line, if the data has one (SFT trains on it). `turns`: the chat, ending with the user's turn, if it is more than the
    question. `prompt`: the model's input including the system prompt, once known: turns for the chat template, or text
    without one. `opened`: the tags that end the prompt and belong to its completions, such as `<think>`. `columns`: the
    unchanged row of the data, kept if the recipe has rewards of the user's own. `entry`: set if a task scores the
    answers; otherwise they are compared with `gold`. `part`: the source of the data that it comes from, and `level`:
    its level there, from 0, if `data.curriculum` moves them.
    """

    id: str
    question: str
    gold: str
    solution: str | None = None
    source: str = ""
    turns: tuple[Turn, ...] = ()
    prompt: str | tuple[Turn, ...] = field(default=(), compare=False, repr=False)
    opened: str = field(default="", compare=False, repr=False)
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    entry: Entry | None = field(default=None, compare=False, repr=False)
    part: str = field(default="", compare=False, repr=False)
    level: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """Tokens sampled for one prompt, up to and including the end-of-sequence token when one was sampled.

    `logprobs` are the natural log-probabilities of those tokens under the sampler's softmax(logits / temperature) over
    the whole vocabulary (before top-p and top-k). `finish_reason` is "length" if the completion reached
    `max_completion_tokens` (a *truncated* completion without end-of-sequence token). `text` is the decoded text without
    the tokens that begin, pad and end texts.
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
    """The scores of one completion, in training and in evaluation.

    `reward` is the weighted sum that training uses. `format_score` and `accuracy_score` are the unweighted parts
    (0..10). `strict_format`: all tags occur once each and in order, in any mode of the reward. `complete_format`: the
    reward's own mode gave the full score. `correct`: the extracted answer equals the gold answer, or the task gives it
    a score of 1. `score`: what a task that scores answers gives, 0 to 1; None where answers are compared. `timed_out`:
    the comparison ran out of time or memory. `failed`: what the task's verifier raised. `plugins` holds the unweighted
    score of each further reward by name: the user's own, and `length` if it has a weight.
    """

    reward: float
    format_score: float
    accuracy_score: float
    strict_format: bool
    complete_format: bool
    correct: bool
    extracted: str | None
    timed_out: bool = False
    score: float | None = None
    failed: str | None = None
    plugins: Mapping[str, float] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, float]:
        """The unweighted score of each part of the reward, by name."""
        return {"format": self.format_score, "accuracy": self.accuracy_score, **self.plugins}


@dataclass(frozen=True, slots=True)
class Group:
    """The completions sampled for one prompt, with their verdicts (empty before scoring)."""

    problem: Problem
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    verdicts: tuple[Verdict, ...] = ()
