"""Worked solutions: every step is true, they begin with the question's numbers, and they end at the answer."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("reasoning_gym")

from gtpo_cli.tasks.making import task_problems
from gtpo_cli.tasks.worked import worked_solution


@pytest.mark.parametrize(
    ("name", "question", "steps"),
    [
        ("chain_sum", "State the answer: 27 + 28 - 69 =", "27+28=55 55-69=-14"),
        ("products", "Multiply: 24 * 31. Give the result.", "24*1=24 24*30=720 24+720=744"),
        ("products", "Multiply: 7 * 20.", "7*20=140"),
        ("products", "Multiply: 7 * 0 * 3.", "7*0=0 0*3=0"),
        ("products", "Multiply: -12 * -13.", "-12*-3=36 -12*-10=120 36+120=156"),
        ("chain_sum", "State the answer: 2 + -3 - 4 =", "2+-3=-1 -1-4=-5"),
        ("gcd", "Find the GCD of these numbers: 60, 105.", "105%60=45 60%45=15 45%15=0"),
        ("gcd", "Find the GCD of these numbers: 12, 18, 8.", "18%12=6 12%6=0 8%6=2 6%2=0"),
    ],
)
def test_by_hand(name: str, question: str, steps: str) -> None:
    assert worked_solution(name, {"question": question}) == steps
    assert worked_solution("lcm", {"question": question}) is None


@pytest.mark.parametrize("name", ["chain_sum", "products", "gcd"])
@pytest.mark.parametrize("how", ["usual", "leveled", "negative"])
def test_every_step_is_true_and_the_last_gives_the_answer(name: str, how: str) -> None:
    config = {"allow_negation": True} if how == "negative" and name != "gcd" else {}
    for problem in task_problems(f"reasoning_gym/{name}", config, "train", 1, 60, leveled=how == "leveled"):
        assert problem.solution
        steps = [step.split("=") for step in problem.solution.split(" ")]
        assert all(eval(left) == int(right) for left, right in steps)
        given = set(re.findall(r"\d+", problem.question))
        assert re.findall(r"\d+", steps[0][0])[0] in given
        last = re.split("%", steps[-1][0])[1] if name == "gcd" else steps[-1][1]
        assert last == problem.gold
