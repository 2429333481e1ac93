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
from gtpo_cli.rewards import accuracy_reward

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
        ("<think>2? No, <answer>2</answer> is too much.</think>\n\n<answer>1</answer>", "1"),
        ("\u200b1\ufeff", "1"),
        ("\uff11\uff12", "12"),
        ("\uff21\uff22\u200d", "AB"),
        ("1\u200b000", "1000"),
        ("<think>\\boxed{3}</think> <answer>4</answer>", "4"),
        ("<Final-Answer>1</Final-Answer>", "1"),
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
    "written",
    ["proof", "Proof", "notfound", r"\frac{1}{", "", "\u200b", ["1", "2"], '["1", "2"]', "<answer> </answer>"],
)
def test_a_gold_answer_that_nothing_can_equal_drops_its_row(tmp_path: Path, written: Any) -> None:
    golds, notes = prepared(tmp_path, ["1", written])
    assert golds == ["1"]
    (dropped,) = [note for note in notes if note.startswith("dropped 1 row")]
    assert "own.jsonl:2" in dropped
    with pytest.raises(DataError, match=r"own\.jsonl"):
        prepared(tmp_path, [written])


def test_the_recipe_s_own_answer_tag_goes_and_other_tags_stay(tmp_path: Path) -> None:
    text = "rewards.accuracy.equality=text"
    golds = ["<label>good</label>", "<b>bold</b>"]
    assert prepared(tmp_path, golds, text)[0] == golds
    assert prepared(tmp_path, golds, text, "rewards.format.tags.answer=label")[0] == ["good", "<b>bold</b>"]


def test_text_tasks_keep_the_word_proof(tmp_path: Path) -> None:
    assert prepared(tmp_path, ["proof"], "rewards.accuracy.equality=text")[0] == ["proof"]


def test_invisible_characters_and_full_width_forms_count_on_neither_side(tmp_path: Path) -> None:
    """What stands in the file earns the reward when a model repeats it."""
    for equality, written in (("text", ["\uff21\u200b b", "1\ufeff"]), ("mathematics", ["\uff12\uff58", "\u200b1"])):
        golds, _ = prepared(tmp_path, written, f"rewards.accuracy.equality={equality}")
        for gold, text in zip(golds, written, strict=True):
            answer = f"<reasoning>\n</reasoning>\n<answer>{text}</answer>"
            assert accuracy_reward(answer, gold, equality=equality) == 10.0  # type: ignore[arg-type]


def test_long_texts_are_said(tmp_path: Path) -> None:
    _, notes = prepared(tmp_path, ["Monday", " ".join(["word"] * 13)], "rewards.accuracy.equality=text")
    assert any(
        note.startswith("1 of 2 gold answers in words, which only the same words equal; the first is") for note in notes
    )
    _, notes = prepared(tmp_path, [" ".join(["word"] * 13)], "rewards.accuracy.weight=0", "rewards.format.weight=1")
    assert not [note for note in notes if "gold answers in words" in note]


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([], None),  # the default prompt shows the tags
        (["data.system_prompt=Solve it."], "<reasoning> or <answer>"),
        (["data.system_prompt=Solve it.", "rewards.format.tags.reasoning=null"], "<answer>"),
        (["data.system_prompt=Put it in <answer> tags.", "rewards.format.tags.reasoning=null"], None),
        (["data.system_prompt=Solve it.", "rewards.answer=boxed", "rewards.format.tags.reasoning=null"], "\\boxed"),
        (["data.system_prompt=Use \\boxed{}.", "rewards.answer=boxed", "rewards.format.tags.reasoning=null"], None),
        (["data.system_prompt=Solve it.", "model.name=builtin:tiny"], None),  # it has learned the tags
        (["data.system_prompt=Solve.", "objective.name=sft", "rewards.format.tags.reasoning=null"], None),  # learns it
    ],
)
def test_prompts_that_do_not_show_what_is_rewarded_are_pointed_out(
    tmp_path: Path, changes: list[str], said: str | None
) -> None:
    (tmp_path / "own.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    data = {"path": str(tmp_path / "own.jsonl")}
    recipe = build_recipe({"model": {"name": "some/model"}, "data": data}, changes, where="r")
    tokenizer = read_model(recipe.model.model_copy(update={"name": "builtin:tiny"})).tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    encoder = PromptEncoder(tokenizer, recipe.data.system_prompt, tags=recipe.rewards.tags)
    notes = prepare(recipe, encoder, 4096).notes
    begin = "most prompts do not show "
    found = [note.removeprefix(begin).split(",")[0] for note in notes if note.startswith(begin)]
    assert found == ([] if said is None else [said])


def test_columns_that_are_not_used_are_said(tmp_path: Path) -> None:
    rows = [{"question": "1+1?", "answer": "2", "difficulty": 1, "source": "x"}]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = build_recipe(BASE | {"data": {"path": str(tmp_path / "own.jsonl")}}, where="r")
    model = read_model(recipe.model)
    notes = prepare(recipe, PromptEncoder(model.tokenizer, None), model.context).notes
    assert f"{tmp_path / 'own.jsonl'}: no use is made of difficulty and source (data.columns)" in notes
