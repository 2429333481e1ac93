"""Columns by what they mean, chats as prompts, and which questions are held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gtpo_cli.data import load_problems
from gtpo_cli.data.reading import guessed_columns, held_out_questions, nearest_column
from gtpo_cli.errors import DataError, RecipeError
from gtpo_cli.recipe import build_recipe
from gtpo_cli.recipe.data import SourceRecipe


@pytest.mark.parametrize(
    ("columns", "guessed"),
    [
        ("question answer", {"question": "question", "answer": "answer"}),
        ("id prompt completion", {"question": "prompt", "answer": "completion"}),
        ("problem solution answer", {"question": "problem", "answer": "answer", "solution": "solution"}),
        ("problem level solution type", {"question": "problem", "answer": "solution"}),
        ("question_id Question final_answer", {"question": "Question", "answer": "final_answer"}),
        ("mathProblem expectedAnswer cot", {"question": "mathProblem", "answer": "expectedAnswer", "solution": "cot"}),
        ("data_source prompt ability reward_model", {"question": "prompt", "answer": "reward_model.ground_truth"}),
        ("messages", {"question": "messages", "answer": "messages"}),
        ("conversations source", {"question": "conversations", "answer": "conversations"}),
        ("instruction output", {"question": "instruction", "answer": "output"}),
    ],
)  # fmt: skip
def test_columns_are_known_by_what_they_mean(columns: str, guessed: dict[str, str]) -> None:
    assert guessed_columns(columns.split()) == guessed


def test_the_nearest_is_by_meaning_before_letters_and_none_where_nothing_is_near() -> None:
    assert nearest_column("question", ["questionnaire_id", "prompt"]) == "prompt"
    assert nearest_column("answer", ["answer_type", "target"]) == "target"
    assert nearest_column("question", ["questoin", "zzz"]) == "questoin"
    assert nearest_column("answer", ["url", "created"]) is None


def load(path: Path, rows: list[Any], **changes: Any) -> Any:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = SourceRecipe.model_validate({"path": str(path), **changes})
    return load_problems(data, seed=0, is_usable=lambda golds: [True] * len(golds))


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_a_chat_is_the_prompt_and_its_last_turn_what_was_answered(tmp_path: Path) -> None:
    system, parts = said("system", "Add."), [{"type": "text", "text": "1+1"}, {"type": "text", "text": "?"}]
    rows = [
        {"chat": [system, said("user", parts), said("assistant", "two: 2")], "answer": 2},
        {"chat": [said("user", "1+1?"), said("assistant", "2"), said("user", "3+3?")], "answer": 6},
        {"chat": [said("user", "4?")], "answer": 4},
        {"chat": [said("assistant", "hello")], "answer": 4},
        {"chat": [said("tool", "4?")], "answer": 4},
        {"chat": [said("user", [{"type": "image"}])], "answer": 4},
    ]
    loaded = load(tmp_path / "a.jsonl", rows, columns={"question": "chat"})
    assert [(p.question, p.gold, p.solution, p.turns) for p in loaded.problems] == [
        ("1+1?", "2", "two: 2", (("system", "Add."), ("user", "1+1?"))),
        ("1+1?\n\n2\n\n3+3?", "6", None, (("user", "1+1?"), ("assistant", "2"), ("user", "3+3?"))),
        ("4?", "4", None, ()),
    ]
    assert [row.reason.partition(":")[0] for row in loaded.dropped] == [
        "no user message to answer in chat", "a message in chat has an unknown role", "a message in chat is not text",
    ]  # fmt: skip


def test_which_questions_are_held_out_follows_from_their_texts() -> None:
    questions = [f"{number}?" for number in range(50)]
    chosen = held_out_questions(questions, 0.2, where="f")
    assert len(chosen) == 10
    assert held_out_questions([*reversed(questions), *questions], 0.2, where="f") == chosen
    assert held_out_questions(questions, 0.4, where="f") > chosen
    assert [len(held_out_questions(["a", "b"], share, where="f")) for share in (0.01, 0.99)] == [1, 1]
    with pytest.raises(DataError, match="has fewer than two different questions"):
        held_out_questions(["a", "a"], 0.5, where="f")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"benchmark": "hub"}, "data.dataset: benchmark: hub needs a data set's id"),
        ({"benchmark": "gsm8k", "dataset": "a/b"}, "data.dataset: is for benchmark: hub, not gsm8k"),
        ({"benchmark": "gsm8k", "gold": "boxed"}, "data.gold: gsm8k has its own rule"),
        ({"benchmark": "gsm8k", "held_out": 0.1}, "data.held_out: gsm8k has its own test split"),
        ({"path": "a", "gold": "box"}, "data.gold: is neither one of auto, column, hashes, boxed nor a function"),
        ({"benchmark": "mixture"}, "data.mixture: benchmark: mixture needs sources"),
        ({"benchmark": "mixture", "mixture": {"a.csv": 1}, "path": "b"}, "data.path: is for one source"),
        ({"benchmark": "gsm8k", "mixture": {"a.csv": 1}}, "data.mixture: is for benchmark: mixture, not gsm8k"),
        ({"mixture": {"a.csv": 0}}, "data.mixture.a.csv: input should be greater than 0, got 0"),
        ({"mixture": {"a.csv": float("inf")}}, "data.mixture.a.csv: "),
        ({"mixture": {"a.csv": True}}, "data.mixture: expected a number, not true or false"),
        ({"mixture": ["a.csv"]}, "data.mixture: "),
        ({"mixture": {"mixture": 1}}, "data.mixture: mixture is no source"),
        ({"mixture": {"gsm8k": 1, "math": 1}, "gold": "boxed"}, "data.gold: is for files and hub sets, and this mix"),
        ({"mixture": {"gsm8k": 1}, "held_out": 0.1}, "data.held_out: is for files and hub sets, and this mixture has"),
    ],
)
def test_keys_that_do_not_go_together_are_named(data: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        build_recipe({"model": {"name": "builtin:tiny"}, "data": data}, where="r.yaml")
    assert words in str(caught.value)


def test_a_source_of_a_mixture_is_a_benchmark_a_file_or_an_id() -> None:
    names = {"gsm8k": 1, "mine.jsonl": 2, "data/mine.csv": 1, "./folder/of": 1, "owner/set": 0.5, "/somewhere": 1}
    data = {"mixture": names, "columns": {"question": "q"}, "held_out": 0.1, "limit": 9}
    recipe = build_recipe({"model": {"name": "builtin:tiny"}, "data": data}, where="r.yaml")
    assert [source.name for source in recipe.data.sources] == list(names)
    assert [source.benchmark for source in recipe.data.sources] == ["gsm8k", *["local"] * 3, "hub", "local"]
    assert [source.columns.question for source in recipe.data.sources] == ["question", *["q"] * 5]
    assert [source.held_out for source in recipe.data.sources] == [0.0, *[0.1] * 5]
    assert {source.limit for source in recipe.data.sources} == {9}
