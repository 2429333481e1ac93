"""Rewards of the user's: each of their forms, how many run at once, in which order scores come, and what goes wrong."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gtpo_cli.errors import RewardError
from gtpo_cli.recipe.rewards import RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.rewards.user_reward import ASYNC_CALLS, UserReward
from gtpo_cli.types import CodeName, Completion, Group, Problem

PROBLEMS = [Problem(f"p{number}", "q", "1") for number in range(2)]
FORMS = """
import asyncio, threading, time

lock, running, most, calls = threading.Lock(), 0, 0, []

def enter(problem, completion):
    global running, most
    with lock:
        running += 1
        most = max(most, running)
        calls.append((problem.id, completion.text))

def leave():
    global running
    with lock:
        running -= 1

def value(problem, completion):
    return 10.0 * int(problem.id[1:]) + len(completion.text)

def plain(problem, completion):
    enter(problem, completion)
    time.sleep(0.02)
    leave()
    return value(problem, completion)

async def waits(problem, completion):
    enter(problem, completion)
    await asyncio.sleep(0.02 / (1 + len(completion.text)))  # the later ones are done first
    leave()
    return value(problem, completion)

def batch(problems, completions):
    calls.append(len(completions))
    return [value(*pair) for pair in zip(problems, completions)]

async def async_batch(problems, completions):
    await asyncio.sleep(0)
    return batch(problems, completions)

def short(problems, completions):
    return [1.0]

async def crashes(problem, completion):
    raise SystemExit("judge is away") if completion.text == "xx" else ValueError("no")

async def never(problem, completion):
    calls.append("begun")
    try:
        await asyncio.sleep(3600)
    finally:
        calls.append("given up")

async def meets_async(problem, completion):
    async with asyncio.timeout(20):
        await async_meeting.wait()
    return 1.0

def nan(problems, completions):
    return [0.0] * (len(completions) - 1) + [float("nan")]
"""


@pytest.fixture
def forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import importlib
    import sys

    (tmp_path / "reward_forms.py").write_text(FORMS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("reward_forms")
    del sys.modules["reward_forms"]


def completion(text: str) -> Completion:
    return Completion((), (), "stop", text)


def groups(size: int = 8) -> list[Group]:
    return [Group(problem, (), tuple(completion("x" * n) for n in range(size))) for problem in PROBLEMS]


def scorer(name: str) -> Scorer:
    return Scorer(RewardsRecipe.model_validate({"plugins": [{"name": f"reward_forms:{name}"}]}), num_workers=1)


@pytest.mark.parametrize(("name", "most"), [("plain", 1), ("waits", 16), ("batch", 0), ("async_batch", 0)])
@pytest.mark.parametrize("begin", [False, True])
def test_scores_are_in_order_and_no_more_run_at_once(forms: Any, name: str, most: int, begin: bool) -> None:
    with scorer(name) as scores:
        if begin:  # as the sampler does, in the order in which completions end
            for group in reversed(groups()):
                for one in reversed(group.completions):
                    scores.begin(group.problem, one)
        scored = scores.score_groups(groups())
    assert [[verdict.reward for verdict in group.verdicts] for group in scored] == [
        [float(n) for n in range(8)], [10.0 + n for n in range(8)]
    ]  # fmt: skip
    assert forms.most <= most
    expected = [(p.id, "x" * n) for p in PROBLEMS for n in range(8)]
    assert sorted(forms.calls) == ([16] if "batch" in name else expected)


def test_a_completion_that_was_sampled_twice_is_asked_about_twice(forms: Any) -> None:
    twice = [Group(PROBLEMS[0], (), (completion("ab"), completion("ab")))]
    with scorer("waits") as scores:
        scores.begin(PROBLEMS[0], completion("ab"))
        scores.begin(PROBLEMS[0], completion("ab"))
        assert [v.reward for v in scores.score_groups(twice)[0].verdicts] == [2.0, 2.0]
        assert [v.reward for v in scores.score_groups(twice)[0].verdicts] == [2.0, 2.0]
    assert len(forms.calls) == 4


def test_many_run_at_once(forms: Any) -> None:
    """None goes on before that many are there."""
    forms.async_meeting = asyncio.Barrier(16)
    with scorer("meets_async") as scores:
        scored = scores.score_groups(groups())
    assert [verdict.reward for verdict in scored[0].verdicts] == [1.0] * 8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "crashes",
            r"forms:crashes raised at \S+/reward_forms.py:45 in crashes: ValueError: no; on problem p0, completion ''",
        ),
        ("short", r"reward_forms:short returned 1 score for 16 completions"),
        ("nan", r"reward_forms:nan returned nan, which is not finite; on problem p1, completion 'x{7}'"),
    ],
)
def test_what_goes_wrong_names_the_reward_and_the_completion(forms: Any, name: str, message: str) -> None:
    with scorer(name) as scores, pytest.raises(RewardError, match=message):
        scores.score_groups(groups())


def test_what_is_under_way_is_given_up_at_the_end(forms: Any) -> None:
    reward = UserReward(CodeName("reward_forms:never"))
    for n in range(ASYNC_CALLS + 5):
        reward.begin(PROBLEMS[0], completion("x" * n))
    reward.ask([(PROBLEMS[1], completion(""))])
    while forms.calls.count("begun") < ASYNC_CALLS:
        pass
    reward.close()
    assert forms.calls.count("begun") == forms.calls.count("given up") == ASYNC_CALLS
