"""Column names of data sets: find the nearest to a missing one, and guess all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gtpo_cli.text import nearest_of

# Names of columns by meaning, the surest first.
MEANINGS: dict[str, tuple[str, ...]] = {
    "question": (
        "question", "prompt", "problem", "query", "instruction", "messages", "conversations", "conversation", "chat",
        "input", "task", "exercise", "request", "user", "x", "q", "text",
    ),
    "answer": (
        "answer", "gold", "ground_truth", "groundtruth", "gt", "target", "label", "expected", "final", "correct",
        "truth", "reward_model", "reference", "reply", "result", "output", "completion", "response", "solution", "y",
        "a", "messages", "conversations", "conversation", "chat",
    ),
    "solution": (
        "solution", "rationale", "reasoning", "cot", "chain_of_thought", "explanation", "thought", "worked", "steps",
        "generation", "response", "completion", "output",
    ),
}  # fmt: skip
# A name with one of these words describes a text but does not hold it: question_id, answer_type, prompt_tokens.
_ABOUT = frozenset(
    "id ids idx index uuid url type kind level count num number length len tokens source name date score".split()
)
_INSIDE = {"reward_model": "reward_model.ground_truth"}  # in verl's data sets


def nearest_column(meaning: str, columns: Sequence[str]) -> str | None:
    """Return the column that means "question", "answer" or "solution", or else the one with the most similar name; None
    if there is none."""
    columns = [column for column in columns if column.isprintable()]
    plain = {column: "_".join(_words(column)) for column in columns}
    for name in MEANINGS[meaning]:
        if (found := next((column for column in columns if plain[column] == name), None)) is not None:
            return _INSIDE.get(found, found)
    texts = [column for column in columns if not _ABOUT & set(_words(column))]
    if (alike := nearest_of(meaning, texts, cutoff=0.75)) is not None:
        return alike
    for name in MEANINGS[meaning]:
        if (found := next((column for column in texts if name in _words(column)), None)) is not None:
            return found
    return None


def guessed_columns(columns: Sequence[str]) -> dict[str, str]:
    """Guess the columns of question and answer, and of the solution if it is a third one, for `gtpo init`."""
    found: dict[str, str] = {}
    for meaning in MEANINGS:
        left = [column for column in columns if column not in found.values()]
        column = nearest_column(meaning, left)
        if column is None and meaning == "answer":
            column = nearest_column(meaning, columns)  # a chat that ends in the answer
        if column is not None:
            found[meaning] = column
    return found


def suggestion(missing: Mapping[str, str], columns: Sequence[str], known: dict[str, str]) -> str:
    """Return '; did you mean prompt?' for missing columns. `missing` maps meanings to the names that are not there,
    `known` to the columns found."""
    left = [column for column in columns if column not in known.values()]
    near = {
        meaning: column
        for meaning, name in missing.items()
        if (column := nearest_of(name, left, cutoff=0.75) or nearest_column(meaning, left)) is not None
    }
    return f"; did you mean {' and '.join(near.values())}?" if near else ""


def _words(column: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", column)]
