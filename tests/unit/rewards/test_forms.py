"""Rewards in TRL's form: told apart from ours, called as TRL calls them, and what is wrong with others."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gtpo_cli.data import load_problems
from gtpo_cli.errors import RewardError
from gtpo_cli.recipe.data import SourceRecipe
from gtpo_cli.recipe.rewards import RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.rewards.user_reward import check_plugin_columns, form_of
from gtpo_cli.types import Completion, Group, Problem

CHAT = (("system", "Be brief."), ("user", "1+1?"))
ROW = {"question": "1+1?", "answer": "so #### 2", "tests": [1, 2], "prompt": "no column in TRL"}
ASKED = Problem("p1", "1+1?", "2", prompt=CHAT, columns=ROW)
OTHER = Problem("p2", "2+2?", "4", prompt="Question: 2+2?\nAnswer:", columns={"question": "2+2?", "answer": "4"})
MADE = Problem("p3", "3+3?", "6")
TWO = Completion((5, 2), (0.0, 0.0), "stop", "two")

REWARDS = """
import json
from functools import partial

def given(prompts, completions, **kwargs):
    seen.append({"prompts": prompts, "completions": completions, **kwargs})
    return [0.5] * len(completions)

def named(completions, answer, tests=None, log_extra=None):
    seen.append({"completions": completions, "answer": answer, "tests": tests, "log_extra": log_extra})
    return [float(len(completions))] * len(completions)

async def some(completions, gold, **kwargs):
    return [None if gold == "4" else gold in ("2", "6") for gold in gold]

class Judge:
    async def __call__(self, completions, completion_ids, **_):
        return [len(ids) for ids in completion_ids]

judge, seen = Judge(), []
half = partial(given)
lacks = lambda completions, answr, **kwargs: []

def fails(completions, **kwargs):
    return [
        look(kwargs, "gold_answer") for _ in completions
    ]

def look(kwargs, name):
    return kwargs[name]

def decodes(completions, **kwargs):
    return [json.loads("{") for _ in completions]

def short(completions, **kwargs):
    return [1.0]

def forgets(completions, **kwargs):
    [1.0 for _ in completions]

def three(one, two, three):
    return 0.0
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import importlib
    import sys

    (tmp_path / "of_trl.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("of_trl")
    del sys.modules["of_trl"]


def plugin(name: str, weight: float = 1.0) -> RewardsRecipe:
    return RewardsRecipe.model_validate({"plugins": [{"name": name, "weight": weight}]})


def scored(name: str, problems: Sequence[Problem], weight: float = 1.0) -> list[float]:
    groups = [Group(problem, (), (TWO, TWO)) for problem in problems]
    with Scorer(plugin(name, weight), num_workers=1) as scorer:
        return [verdict.reward for group in scorer.score_groups(groups) for verdict in group.verdicts]


def test_it_gets_what_trl_gives(rewards: Any) -> None:
    assert scored("of_trl:given", [ASKED, OTHER], weight=2.0) == [1.0] * 4
    (seen,) = rewards.seen
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    assert seen == {
        "prompts": [chat, chat, *["Question: 2+2?\nAnswer:"] * 2],
        "completions": [*[[{"role": "assistant", "content": "two"}]] * 2, "two", "two"],
        "completion_ids": [[5, 2]] * 4,
        "question": ["1+1?", "1+1?", "2+2?", "2+2?"],
        "answer": ["so #### 2", "so #### 2", "4", "4"],
        "tests": [[1, 2], [1, 2], None, None],  # a row that lacks a column others have
        "gold": ["2", "2", "4", "4"],
    }


def test_async_truth_values_and_none(rewards: Any) -> None:
    assert scored("of_trl:some", [ASKED, OTHER, MADE]) == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert scored("of_trl:judge", [ASKED]) == [2.0, 2.0]


FORMS: list[tuple[Callable[..., Any], str]] = [
    (lambda problem, completion: 0, "one"),
    (lambda question, text, more=1: 0, "one"),
    (lambda *arguments: 0, "one"),
    (lambda problems, completions: [], "all"),
    (lambda prompts, completions: [], "trl"),
    (lambda completions, **kwargs: [], "trl"),
    (lambda completion_ids, answer: [], "trl"),
    (lambda **kwargs: [], "trl"),
    (lambda answer, **kwargs: [], "trl"),
    (functools.partial(lambda scale, completions: [], 2.0), "trl"),
]


@pytest.mark.parametrize(("function", "form"), FORMS)
def test_forms_are_told_apart(function: Callable[..., Any], form: str) -> None:
    assert form_of(function) == form


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda one, two, three: 0,
            r"its parameters are \(one, two, three\); write it as \(problem, completion\), as ",
        ),
        (lambda: 0, r"its parameters are \(\); write it"),
        (lambda problems: 0, r"its parameters are \(problems\); write it"),
        (lambda completions, /: 0, "which cannot all be given by keyword"),
        (lambda completion, **kwargs: 0, "asks for completion, and TRL gives prompts and completions"),
        (lambda completions, trainer_state: 0, "trainer_state, which only TRL's trainer has; give it a default"),
    ],
)
def test_what_can_be_called_in_no_form_is_told_what_is_expected(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        form_of(function)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("forgets", r"^reward of_trl:forgets returned None, not a list with 2 scores, one for each completion$"),
        ("fails", r"^reward of_trl:fails raised at of_trl.py:30 in look: KeyError: 'gold_answer'; on problem p1"),
        ("decodes", r"^reward of_trl:decodes raised at of_trl.py:33 in decodes: JSONDecodeError: Expecting"),
        ("short", r"^reward of_trl:short returned 1 score for 2 completions$"),
        ("three", r"^reward of_trl:three: its parameters are \(one, two, three\); write it as"),
    ],
)
def test_an_exception_names_file_and_line_of_the_user_s_code(rewards: Any, name: str, words: str) -> None:
    with pytest.raises(RewardError, match=words):
        scored(f"of_trl:{name}", [ASKED])


def test_a_parameter_with_the_name_of_a_column_would_not_get_it() -> None:
    problems = [ASKED, Problem("p4", "4+4?", "8", columns={"problem": "4+4?", "answer": "8"})]
    check_plugin_columns("m:f", lambda problem, completion: 0.0, problems)
    check_plugin_columns("m:f", lambda problem, answer: 0.0, problems)  # it knows what it gets
    check_plugin_columns("m:f", lambda problem, completion, answer=None: 0.0, problems)
    check_plugin_columns("m:f", min, problems)
    with pytest.raises(RewardError, match=r"^reward m:f: its parameter answer has the name of a column, but it would"):
        check_plugin_columns("m:f", lambda response, answer: float(response == answer), problems)


def test_rows_are_kept_where_somebody_asks_for_them(tmp_path: Path) -> None:
    rows = [{"question": "1+1?", "answer": "#### 2", "tests": ["a"]}, {"question": "2+2?", "answer": "4"}]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = SourceRecipe(benchmark="local", path=str(file))
    kept = load_problems(source, seed=1, with_columns=True).problems
    assert [dict(problem.columns) for problem in kept] == rows
    plain = load_problems(source, seed=1).problems
    assert [problem.columns for problem in plain] == [{}, {}]
    assert kept == plain  # what is the same problem does not hang on it
