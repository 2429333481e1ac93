"""Gold answers as people's files have them: what is read, what drops the row, and what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gtpo_cli.data import PromptEncoder, prepare
from gtpo_cli.errors import DataError
from gtpo_cli.policy.loading import read_model
from gtpo_cli.recipe import build_recipe

BASE = {"model": {"name": "builtin:tiny"}}


def prepared(tmp_path: Path, golds: list[Any], *overrides: str, question: str = "{}+1") -> tuple[list[str], list[str]]:
    """The gold answers that are kept, and the notes. Question i is i + 1."""
    rows = [{"question": question.format(number), "answer": gold} for number, gold in enumerate(golds)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = build_recipe(BASE | {"data": {"path": str(tmp_path / "own.jsonl")}}, overrides, where="r")
    model = read_model(recipe.model)
    data = prepare(recipe, PromptEncoder(model.tokenizer, None), model.context)
    return [problem.gold for problem, _ in data.prompts], data.notes


@pytest.mark.parametrize(
    ("written", "gold"),
    [
        ("First 0+1=1. #### 1", "1"),
        ("0+1=1\n#### 1", "1"),
        ("1", "1"),
        (1, "1"),
        (1.0, "1"),
        (["1"], "1"),
        ([1], "1"),
        ('["1"]', "1"),
        ("[0, 1]", "[0, 1]"),  # an interval
        ("<answer>1</answer>", "1"),
        ("\u200b1\ufeff", "1"),
        ("\uff11\uff12", "12"),
        (r"So $\boxed{5}$. We use \boxed notation.", "5"),
        (r"$x = \boxed{5}$ or $x = \boxed{-3}$", "5, -3"),
        (r"It is $\boxed 7$.", "7"),
    ],
)
def test_a_gold_answer_is_read_as_its_author_meant_it(tmp_path: Path, written: Any, gold: str) -> None:
    golds, notes = prepared(tmp_path, [written])
    assert golds == [gold]
    assert not [note for note in notes if "gold" in note]


@pytest.mark.parametrize(
    "written", ["proof", "Proof", "notfound", r"\frac{1}{", "", "\u200b", ["1", "2"], '["1", "2"]', "<a></a>"]
)
def test_a_gold_answer_that_nothing_can_equal_drops_its_row(tmp_path: Path, written: Any) -> None:
    golds, notes = prepared(tmp_path, ["1", written])
    assert golds == ["1"]
    (dropped,) = [note for note in notes if note.startswith("dropped 1 row")]
    assert "own.jsonl:2" in dropped
    with pytest.raises(DataError, match=r"own\.jsonl"):
        prepared(tmp_path, [written])


def test_text_tasks_keep_the_word_proof(tmp_path: Path) -> None:
    assert prepared(tmp_path, ["proof"], "rewards.accuracy.equality=text")[0] == ["proof"]


def test_words_and_second_answers_are_said(tmp_path: Path) -> None:
    _, notes = prepared(tmp_path, ["1", "Evelyn", "Monday"])
    assert any(note.startswith("2 of 3 gold answers in words, which only the same words equal") for note in notes)
    rows = [{"question": "1+1", "answer": "2"}, {"question": "1+1 ", "answer": "3"}, {"question": "1+1", "answer": "2"}]
    (tmp_path / "twice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = build_recipe(BASE | {"data": {"path": str(tmp_path / "twice.jsonl")}}, where="r")
    model = read_model(recipe.model)
    notes = prepare(recipe, PromptEncoder(model.tokenizer, None), model.context).notes
    said = [note for note in notes if "again with another gold answer" in note]
    assert said == [
        f"1 question again with another gold answer; the first: '2' ({tmp_path}/twice.jsonl:1) and '3' "
        f"({tmp_path}/twice.jsonl:2)"
    ]


DAPO = "Solve it. The last line of your response should be of the form Answer: $Answer (without quotes).\n\n{}+1?"


@pytest.mark.parametrize(
    ("question", "answer", "asked"),
    [
        (DAPO, "tags", "behind Answer:"),
        (DAPO, "boxed", "behind Answer:"),
        (DAPO, "last_line", None),
        ("{}+1? Put your final answer within \\boxed{{}}.", "tags", "in \\boxed{}"),
        ("{}+1? Put your final answer within \\boxed{{}}.", "boxed", None),
        ("{}+1? End with #### and the number.", "last_line", "behind ####"),
        ("{}+1? End with #### and the number.", "hashes", None),
        ("{}+1? Write <answer>number</answer>.", "boxed", "in <answer> tags"),
        ("{}+1? What is the answer: more or less?", "tags", None),
        ("{}+1?", "boxed", None),
    ],
)
def test_prompts_that_ask_for_another_form_are_pointed_out(
    tmp_path: Path, question: str, answer: str, asked: str | None
) -> None:
    changes = (f"rewards.answer={answer}", "data.system_prompt=null")
    _, notes = prepared(tmp_path, [1, 2, 3], *changes, question=question)
    said = [note for note in notes if "ask for the answer" in note]
    if asked is None:
        assert said == []
    else:
        assert said[0].startswith(
            f"3 of 3 prompts in the data ask for the answer {asked}, but rewards.answer is {answer}"
        )


def test_columns_that_are_not_used_are_said(tmp_path: Path) -> None:
    rows = [{"question": "1+1?", "answer": "2", "difficulty": 1, "source": "x"}]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = build_recipe(BASE | {"data": {"path": str(tmp_path / "own.jsonl")}}, where="r")
    model = read_model(recipe.model)
    notes = prepare(recipe, PromptEncoder(model.tokenizer, None), model.context).notes
    assert f"{tmp_path / 'own.jsonl'}: no use is made of difficulty and source (data.columns)" in notes
