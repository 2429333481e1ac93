from __future__ import annotations

import re

import pytest
from build_tiny_model import imperfect_demonstrations
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_cli import arithmetic_problems
from gtpo_cli.data import wrap_solution
from gtpo_cli.errors import DataError
from gtpo_cli.rewards.extract import TAGS
from gtpo_cli.tasks.arithmetic import running_sums, worked_solution
from gtpo_cli.types import Problem


def test_running_sums_by_hand() -> None:
    assert running_sums("3+8-2+5") == [11, 9, 14]
    assert running_sums("0-9-9-9") == [-9, -18, -27]
    assert running_sums("9+9+9+9") == [18, 27, 36]


def test_worked_solutions_by_hand() -> None:
    assert worked_solution("3+8-2+5") == "3+8=11 11-2=9 9+5=14"
    assert worked_solution("0-9-9+4") == "0-9=-9 -9-9=-18 -18+4=-14"


@given(st.lists(st.integers(0, 9), min_size=4, max_size=4), st.lists(st.sampled_from("+-"), min_size=3, max_size=3))
def test_running_sums_agree_with_python(digits: list[int], signs: list[str]) -> None:
    terms = [f"{sign}{digit}" for sign, digit in zip(signs, digits[1:], strict=True)]
    prefixes = [str(digits[0]) + "".join(terms[:length]) for length in (1, 2, 3)]
    assert running_sums(prefixes[-1]) == [eval(prefix) for prefix in prefixes]


def test_the_two_splits_are_disjoint_and_together_hold_all_questions() -> None:
    with pytest.raises(DataError, match=r"has \d+ train problems; 80000 were asked for") as error:
        arithmetic_problems(80_000, split="train", seed=0)
    size = re.search(r"has (\d+)", str(error.value))
    assert size is not None
    sizes = {"train": int(size[1]), "test": len(arithmetic_problems(80_000, split="test", seed=0))}
    assert sizes["train"] + sizes["test"] == 80_000
    assert 3_500 < sizes["test"] < 4_500  # one in twenty, by a hash
    train = {problem.question for problem in arithmetic_problems(sizes["train"], split="train", seed=1)}
    test = {problem.question for problem in arithmetic_problems(sizes["test"], split="test", seed=2)}
    assert (len(train), len(test)) == (sizes["train"], sizes["test"])
    assert not train & test
    assert all(re.fullmatch(r"\d([+-]\d){3}", question) for question in train | test)


def test_a_drawn_problem_is_pinned() -> None:
    """The held-out set must be the same on every machine and Python: a model is trained on one, tested on another."""
    first = arithmetic_problems(1, split="test", seed=0)[0]
    assert first == Problem(
        id="arithmetic/test/1", question="1+5+0-5", gold="1", solution="1+5=6 6+0=6 6-5=1", source="arithmetic[test]:1"
    )


def test_bad_arguments() -> None:
    with pytest.raises(DataError, match="arithmetic has no split dev"):
        arithmetic_problems(1, split="dev", seed=0)
    with pytest.raises(DataError, match="0 were asked for"):
        arithmetic_problems(0, split="train", seed=0)
    with pytest.raises(DataError, match="arithmetic has 76006 train problems; 80000 were asked for"):
        arithmetic_problems(80_000, split="train", seed=0)


def test_all_of_the_test_split_are_asked_where_more_are_asked_for() -> None:
    assert len(arithmetic_problems(5000, split="test", seed=0)) == 3994


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_each_fault_alone_and_certain(seed: int) -> None:
    problem = Problem("x", "3+8-2+5", "14", "3+8=11 11-2=9 9+5=14")
    right = wrap_solution("3+8=11 11-2=9 9+5=14", "14")
    assert right == "<reasoning>3+8=11 11-2=9 9+5=14</reasoning><answer>14</answer>"

    def one(**rates: float) -> str:
        return imperfect_demonstrations(
            [problem], **{"skip_steps": 0, "forget_last": 0, "miss_tag": 0, "wrong_answer": 0, **rates}, seed=seed
        )[0]

    assert one(skip_steps=1) == "<reasoning></reasoning><answer>14</answer>"
    assert one(skip_steps=1, forget_last=1) == "<reasoning></reasoning><answer>9</answer>"
    assert one(forget_last=1) == right  # who shows the steps forgets nothing
    assert one(wrong_answer=1) in {
        f"<reasoning>3+8=11 11-2=9 9+5=14</reasoning><answer>{n}</answer>" for n in (11, 12, 13, 15, 16, 17)
    }
    without = one(miss_tag=1)
    assert without in {right.replace(tag, "") for tag in TAGS}
    assert sum(tag in without for tag in TAGS) == 3
