"""User rewards: what can go wrong with code that is not ours."""

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest

from gtpo_cli.errors import RewardError
from gtpo_cli.rewards.user_reward import call_plugin, load_plugin
from gtpo_cli.runs.user_code import import_function
from gtpo_cli.types import CodeName, Completion, Problem

PROBLEM = Problem(id="train.jsonl:17", question="1+1?", gold="2")
COMPLETION = Completion(token_ids=(), logprobs=(), finish_reason="stop", text="two" + "!" * 500)


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pkg_a").mkdir()
    (tmp_path / "pkg_a" / "__init__.py").write_text("")
    (tmp_path / "pkg_a" / "good.py").write_text(
        "def length(problem, completion):\n    return len(completion.text)\nX = 3\n"
    )
    (tmp_path / "pkg_a" / "broken.py").write_text("raise ZeroDivisionError('at import')\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("dotted", "message"),
    [
        ("pkg_a.good", "write it as pkg.module:function"),
        ("pkg_a.good:", "write it as pkg.module:function"),
        ("pkg_a.missing:f", "pkg_a.missing cannot be imported.*PYTHONPATH"),
        ("pkg_a.broken:f", "ZeroDivisionError: at import"),
        ("pkg_a.good:width", "no function width"),
        ("pkg_a.good:X", "no function X"),
    ],
)
def test_a_plugin_that_cannot_be_loaded(dotted: str, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        load_plugin(CodeName(dotted))


@pytest.mark.parametrize("score", [float("nan"), float("inf"), True, None, "1", [1.0], 1j, numpy.bool_(True)])
def test_anything_else_is_an_error_that_names_everything(score: object) -> None:
    with pytest.raises(RewardError) as caught:
        call_plugin("m:f", lambda problem, completion: score, PROBLEM, COMPLETION)  # type: ignore[arg-type, return-value]
    message = str(caught.value)
    assert "m:f" in message
    assert "train.jsonl:17" in message
    assert "two" + "!" * 197 in message
    assert "!" * 198 not in message  # 200 characters of the completion


class Odd(float):
    def __float__(self) -> float:
        sys.exit(3)


def exits(problem: Problem, completion: Completion) -> float:
    sys.exit("out of patience")


def returns_more_digits_than_can_be_shown(problem: Problem, completion: Completion) -> float:
    return 10**5000


def returns_what_cannot_be_shown(problem: Problem, completion: Completion) -> object:
    class Hidden:
        def __repr__(self) -> str:
            raise RuntimeError

    return Hidden()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (exits, "in exits: SystemExit: out of patience"),
        (lambda problem, completion: 10**400, "which is not finite"),
        (lambda problem, completion: -(10**400), "which is not finite"),
        (lambda problem, completion: Fraction(10**400, 3), "which is not finite"),
        (lambda problem, completion: 1e200, "returned 1e+200, which is beyond 1e+09 in size; scale it down"),
        (lambda problem, completion: -1.1e9, "returned -1100000000.0, which is beyond 1e+09 in size"),
        (returns_more_digits_than_can_be_shown, "returned a int, which is not finite"),
        (returns_what_cannot_be_shown, "returned a Hidden, which is a Hidden, not a float"),
        (lambda problem, completion: Odd(1.0), "in Odd.__float__: SystemExit: 3"),
    ],
)
def test_whatever_a_reward_does_is_an_error_in_a_line(function: Any, words: str) -> None:
    with pytest.raises(RewardError) as caught:
        call_plugin("mine:it", function, PROBLEM, COMPLETION)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_may_hold_a_dataclass_and_import_its_neighbours_also_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "with_a_class.py").write_text(
        "from __future__ import annotations\nimport sys\nfrom dataclasses import dataclass\nimport next_door\n"
        "sys.path.append('of_its_own')\n"
        "@dataclass\nclass Row:\n    text: str\n"
        "def gold(row):\n    import later_on\n    return Row(next_door.WORD + later_on.WORD).text\n"
    )
    (tmp_path / "next_door.py").write_text("WORD = 'next '\n")
    (tmp_path / "later_on.py").write_text("WORD = 'later'\n")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    function = import_function(CodeName("with_a_class.py:gold"), RewardError)
    assert function({}) == "next later"
    assert "of_its_own" in sys.path, "what it put on the path itself stays"
