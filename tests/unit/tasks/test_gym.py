"""Tasks of the real reasoning-gym: the same problems in every process, and scores that its own verifiers give."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("reasoning_gym")

from gtpo_cli.errors import DataError, RewardError
from gtpo_cli.recipe import load_recipe
from gtpo_cli.rewards import EqualityWorkers, check_rewards
from gtpo_cli.tasks import gym, making
from gtpo_cli.tasks.making import task_problems
from gtpo_cli.types import Problem

RECIPE = load_recipe("tiny_arithmetic").rewards


def made(name: str, count: int = 4, *, split: str = "train", seed: int = 1, **config: object) -> tuple[Problem, ...]:
    return task_problems(f"reasoning_gym/{name}", config, split, seed, count)


def scores(problem: Problem, *answers: str) -> list[float]:
    with EqualityWorkers(1) as workers:
        return [grade.score for grade in workers.equal_many([("", text, None, problem.entry) for text in answers])]


def test_a_problem_by_hand() -> None:
    for problem in made("chain_sum", 30, max_terms=3, max_digits=1):
        words, equals = problem.question.rsplit(": ", 1)[1].split(), "="
        assert words.pop() == equals
        assert len(words) in (3, 5)
        assert int(problem.gold) == eval(" ".join(words))
        assert problem.columns["metadata"]["num_digits"] == 1


def test_the_verifier_says_what_is_right() -> None:
    problem = made("chain_sum", 1)[0]
    assert scores(problem, problem.gold, f"{problem.gold}.0", str(int(problem.gold) + 1)) == [1.0, 1.0, 0.0]
    # tuples in a row must not become lists: this verifier compares with them
    board = made("arc_agi", 1)[0]
    assert scores(board, board.gold) == [1.0]


def test_what_draws_from_sets_is_the_same_in_every_process() -> None:
    """Without a fixed PYTHONHASHSEED these differ from process to process."""
    first = made("isomorphic_strings", 8)
    making._library_maker(os.getpid()).close()
    making._library_maker.cache_clear()
    assert made("isomorphic_strings", 8) == first


def test_what_a_task_writes_is_not_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making these problems of codeio runs code that writes a file."""
    monkeypatch.chdir(tmp_path)
    assert len(made("codeio", 100)) == 100
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_makes_problems_and_dies_is_told_and_replaced() -> None:
    made("gcd", 1)
    os.kill(making._library_maker(os.getpid())._process.pid, signal.SIGKILL)
    with pytest.raises(DataError, match=r"reasoning_gym/gcd: its process ended with -9"):
        made("gcd", 1)
    assert len(made("gcd", 1)) == 1


def test_training_and_test_share_no_question_even_of_a_small_task() -> None:
    small = {"min_terms": 2, "max_terms": 2, "max_digits": 1}
    trained, tested = made("chain_sum", 600, **small), made("chain_sum", 300, split="test", **small)
    train, test = ({problem.question for problem in problems} for problems in (trained, tested))
    assert len(train | test) > 150  # of 200
    assert not train & test
    assert len(test) == len(tested)  # no question twice, since intervals take problems as independent
    assert made("chain_sum", 300, split="test", seed=2, **small) == tuple(tested)
    assert made("chain_sum", 20, seed=2, **small) != trained[:20]


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("chain_sun", {}, r"reasoning_gym/chain_sun: reasoning-gym has no such task; did you mean chain_sum\?"),
        ("chain_sum", {"max_term": 3}, r"data.config.max_term: reasoning_gym/chain_sum has no such key; did you mean"),
        ("chain_sum", {"max_terms": 1}, "data.config: reasoning_gym/chain_sum: AssertionError: max_terms must be"),
    ],
)
def test_what_is_wrong_is_said(name: str, config: dict[str, int], words: str) -> None:
    with pytest.raises(DataError, match=words):
        gym.GymTask(name, config)


def test_a_verifier_that_pays_for_nonsense_is_refused() -> None:
    with pytest.raises(RewardError, match=r"halting: its score\(\) pays for nonsense: for the answer 'zzz' it gives 1"):
        check_rewards(RECIPE, made("game_of_life_halting", 8))


def test_an_exception_of_a_verifier_is_0_and_counted() -> None:
    problem = made("prime_factorization", 1)[0]
    with EqualityWorkers(1) as workers:
        right, wrong = workers.equal_many([("", text, None, problem.entry) for text in (problem.gold, "zzz")])
    assert (right.score, right.failed) == (1.0, None)
    assert wrong.score == 0.0
    assert str(wrong.failed).startswith("ValueError: invalid literal for int()")


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_training_s_seeds_are_below_the_test_s(seed: int) -> None:
    task = gym.GymTask("gcd", {})
    started: list[int] = []
    task._data_set = lambda start: started.append(start) or gym.GymTask("gcd", {})._scoring  # type: ignore[method-assign,func-returns-value]
    next(iter(task.problems("train", seed)))
    assert started[0] < 2**30
    next(iter(task.problems("test", seed)))
    assert started[1] == 2**31
