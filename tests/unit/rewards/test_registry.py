"""User rewards: what can go wrong with code that is not ours."""

from pathlib import Path

import numpy
import pytest

from gtpo_cli.errors import RewardError
from gtpo_cli.rewards.registry import call_plugin, load_plugin
from gtpo_cli.types import Completion, Problem

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


def test_a_dotted_path_is_loaded_and_called() -> None:
    plugin = load_plugin("pkg_a.good:length")
    score = call_plugin("pkg_a.good:length", plugin, PROBLEM, COMPLETION)
    assert score == 503.0
    assert type(score) is float


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
        load_plugin(dotted)


@pytest.mark.parametrize("score", [1.5, -3, numpy.float32(0.25), numpy.float64(2.0), numpy.int64(7)])
def test_real_numbers_are_scores(score: float) -> None:
    assert call_plugin("m:f", lambda problem, completion: score, PROBLEM, COMPLETION) == float(score)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), True, None, "1", [1.0], 1j, numpy.bool_(True)])
def test_anything_else_is_an_error_that_names_everything(score: object) -> None:
    with pytest.raises(RewardError) as caught:
        call_plugin("m:f", lambda problem, completion: score, PROBLEM, COMPLETION)  # type: ignore[arg-type, return-value]
    message = str(caught.value)
    assert "m:f" in message
    assert "train.jsonl:17" in message
    assert "two" + "!" * 197 in message
    assert "!" * 198 not in message  # 200 characters of the completion


def test_an_exception_of_a_plugin_is_an_error_that_names_it() -> None:
    def crash(problem: Problem, completion: Completion) -> float:
        raise KeyError("colour")

    with pytest.raises(RewardError, match=r"m:crash raised KeyError: 'colour'.*train.jsonl:17") as caught:
        call_plugin("m:crash", crash, PROBLEM, COMPLETION)
    assert isinstance(caught.value.__cause__, KeyError)
