"""The built-in word problems: what they ask, what is right, and that no sentence of training is tested on."""

from __future__ import annotations

import collections
import operator
import re

import pytest

from gtpo_cli.data import load_problems
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import SourceRecipe
from gtpo_cli.tasks.making import task_problems
from gtpo_cli.tasks.word_problems import MOST, NAMES, THINGS
from gtpo_cli.types import Problem


def word_problems(count: int, *, split: str, seed: int) -> tuple[Problem, ...]:
    return task_problems("word_problems", {}, split, seed, count)


_SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def wording(question: str, split: str) -> str:
    """The question without its numbers, names and things."""
    words = re.sub(r"\d+", "#", question)
    return re.sub(r"\b(" + "|".join((*NAMES[split], *THINGS[split])) + r")\b", "@", words)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_solution_is_right_and_uses_the_numbers_of_the_question(split: str) -> None:
    problems = word_problems(2000, split=split, seed=3)
    assert len({problem.question for problem in problems}) == 2000
    for problem in problems:
        assert problem.solution is not None
        first, sign, second, equals, result = problem.solution.split()
        assert equals == "="
        assert _SIGNS[sign](int(first), int(second)) == int(result) == int(problem.gold) > 0
        assert sorted(re.findall(r"\d+", problem.question), key=int) == sorted([first, second], key=int)
        assert 2 <= int(second) <= 9
        assert int(first) <= 99
        assert 2 <= int(result) <= 108
        assert "{" not in problem.question


def test_no_wording_name_or_thing_of_training_is_tested_on() -> None:
    trained = word_problems(2000, split="train", seed=1)
    tested = word_problems(480, split="test", seed=1)
    counts = collections.Counter(wording(problem.question, "test") for problem in tested)
    assert len(counts) == 12
    assert set(counts.values()) == {40}
    assert len({wording(problem.question, "train") for problem in trained}) == 24
    assert not counts.keys() & {wording(problem.question, "train") for problem in trained}
    words = {word.strip("?.,;") for problem in trained for word in problem.question.split()}
    assert not words & {*NAMES["test"], *THINGS["test"]}


def test_seeds_draw_the_training_set_and_leave_the_test_set_alone() -> None:
    assert word_problems(50, split="train", seed=1) == word_problems(90, split="train", seed=1)[:50]
    assert word_problems(50, split="train", seed=1) != word_problems(50, split="train", seed=2)
    assert word_problems(50, split="test", seed=1) == word_problems(50, split="test", seed=2)


def test_one_by_hand() -> None:
    (problem,) = word_problems(1, split="test", seed=0)
    assert problem.question == "75 cookies were already in the basket when Jack added 4. How many are in it after that?"
    assert (problem.gold, problem.solution) == ("79", "75 + 4 = 79")
    assert (problem.id, problem.source) == ("word_problems/test/1", "word_problems[test]:1")


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(DataError, match=r"data\.split: word_problems has no split dev; it has train and test"):
        load_problems(SourceRecipe(benchmark="word_problems", split="dev"), seed=5)
    with pytest.raises(DataError, match=rf"data\.limit: word_problems has {MOST} train problems; {MOST + 1} were"):
        word_problems(MOST + 1, split="train", seed=0)
    assert len(word_problems(MOST, split="test", seed=0)) == MOST
    assert SourceRecipe(benchmark="word_problems", path="x.jsonl").problems() == [
        "data.path: word_problems is generated; remove data.path, or use benchmark: local"
    ]
