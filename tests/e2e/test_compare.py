"""gtpo compare as typed, on stored evaluations: values against naive computation, what is said, what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from math import comb, sqrt
from pathlib import Path
from statistics import fmean

import pytest
from commands import Run
from scipy.stats import t

from gtpo_cli.evaluation.measure import score_problems
from gtpo_cli.evaluation.store import (
    Conditions,
    EvaluatedCompletion,
    EvaluatedProblem,
    StoredEvaluation,
    data_digest,
    evaluation_at,
)
from gtpo_cli.recipe import build_recipe, dump_recipe
from gtpo_cli.recipe.schema import EvaluationRecipe, RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.types import Problem

SAMPLES = 4
SETTINGS = EvaluationRecipe(samples=SAMPLES, pass_k=(1, 2, 4), majority_k=(4,))

Table = list[list[bool]]  # is completion c of problem p right


def table(problems: int, chance: float, seed: int) -> Table:
    rng = random.Random(seed)
    return [[rng.random() < chance for _ in range(SAMPLES)] for _ in range(problems)]


def store(
    folder: Path,
    right: Table,
    *,
    objective: str = "gtpo",
    subject: str = "step-000600",
    first: int = 1,
    gold: str = "5",
) -> StoredEvaluation:
    """A run folder with one finished evaluation, whose completions are right where `right` says."""
    run = RunFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}, "objective": {"name": objective}}
    run.recipe_file.write_text(dump_recipe(build_recipe(recipe, where="test")))
    problems = [
        EvaluatedProblem(
            f"arithmetic/test/{number}",
            f"{number}+0",
            gold,
            tuple(EvaluatedCompletion("", 9, "stop", 0.5, gold if hit else "x", hit, True, True, True) for hit in row),
        )
        for number, row in enumerate(right, start=first)
    ]
    conditions = Conditions(
        benchmark="arithmetic", split="test", subject=subject, model="builtin:tiny", problems=len(problems),
        data_digest=data_digest([Problem(p.id, p.question, p.gold) for p in problems]), samples=SAMPLES,
        temperature=1.0, top_p=1.0, max_completion_tokens=64, seed=1,
    )  # fmt: skip
    stored = evaluation_at(run, conditions)
    stored.open()
    stored.append(problems)
    with Scorer(RewardsRecipe()) as scorer:
        stored.finish(score_problems(problems, SETTINGS, scorer))
    return stored


def naive_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's, with half a problem at either end of what was seen."""
    end = max(map(abs, values))
    count = len(values) + 1
    mean = sum(values) / count
    deviations = sum((value - mean) ** 2 for value in values) + ((end - mean) ** 2 + (end + mean) ** 2) / 2
    half = t.ppf(0.975, len(values) - 1) * sqrt(deviations / count / (count - 1))
    return mean - half, mean + half


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Table]:
    """Three runs of 60 problems: a poor one, a better one, and the poor one again with other draws."""
    tables = {"a": table(60, 0.3, 1), "b": table(60, 0.7, 2), "c": table(60, 0.3, 3)}
    for name, right in tables.items():
        store(tmp_path / "runs" / name, right, objective="grpo" if name == "a" else "gtpo")
    return tables


def test_json_holds_what_a_naive_computation_finds(gtpo: Run, runs: dict[str, Table]) -> None:
    found = json.loads(gtpo("compare", "runs/a", "runs/b", "runs/c", "--json").stdout)["comparisons"]
    assert [(pair["a"]["run"], pair["b"]["run"]) for pair in found] == [("runs/a", "runs/b"), ("runs/a", "runs/c")]
    assert found == json.loads(gtpo("compare", "runs/a", "runs/b", "runs/c", "--json").stdout)["comparisons"]
    one = runs["a"]
    for pair, other in zip(found, (runs["b"], runs["c"]), strict=True):
        assert (pair["problems"], pair["left_out"]) == (60, 0)
        naive: dict[str, Callable[[list[bool]], float]] = {
            "accuracy": fmean,
            "pass@1": fmean,
            "pass@2": lambda row: 1 - comb(SAMPLES - sum(row), 2) / comb(SAMPLES, 2),
            "pass@4": any,
            "first_pass@1": lambda row: row[0],
            "first_pass@2": lambda row: row[0] or row[1],
        }
        for name, value in naive.items():
            score = pair["scores"][name]
            before, after = ([float(value(row)) for row in side] for side in (one, other))
            paired = [y - x for x, y in zip(before, after, strict=True)]
            assert score["a"] == pytest.approx(fmean(before))
            assert score["b"] == pytest.approx(fmean(after))
            assert score["difference"] == pytest.approx(fmean(paired))
            assert score["interval_95"] == pytest.approx(naive_interval(paired), abs=1e-4)
        lost = [f"arithmetic/test/{p}" for p in range(1, 61) if one[p - 1][0] and not other[p - 1][0]]
        won = [f"arithmetic/test/{p}" for p in range(1, 61) if other[p - 1][0] and not one[p - 1][0]]
        assert (pair["first_right_in_a_only"], pair["first_right_in_b_only"]) == (lost, won)
        tail = sum(comb(len(lost + won), x) for x in range(min(len(lost), len(won)) + 1)) / 2 ** len(lost + won)
        assert pair["mcnemar"]["p_value"] == pytest.approx(min(1.0, 2 * tail))
        assert pair["never_solved_by_b"] == [
            f"arithmetic/test/{p}" for p in range(1, 61) if any(one[p - 1]) and not any(other[p - 1])
        ]
    assert found[0]["scores"]["accuracy"]["interval_95"][0] > 0.2  # a test of nothing if the runs did not differ
    assert found[0]["mcnemar"]["p_value"] < 0.05


def test_marks_recipes_and_next_command_on_the_terminal(gtpo: Run, runs: dict[str, Table]) -> None:
    (pair,) = json.loads(gtpo("compare", "runs/a", "runs/b", "--json").stdout)["comparisons"]
    output = gtpo("compare", "runs/a", "runs/b").stdout
    last = output.splitlines()[-1]  # the command is named as it can be typed here: by its path where it is not in PATH
    assert last.startswith("next: ")
    assert last.endswith("gtpo report runs/a runs/b")
    rows = [
        line for line in output.splitlines() if " to " in line and "%" in line and line.split()[0] in pair["scores"]
    ]
    assert {line.split()[0] for line in rows} == {"accuracy", "pass@1", "pass@2", "pass@4", "maj@4"}
    for line in rows:
        low, high = pair["scores"][line.split()[0]]["interval_95"]
        assert line.rstrip().endswith("*") == (low > 0 or high < 0)
    assert f"{100 * pair['scores']['pass@1']['a']:.1f} %" in output
    assert ["objective.name", '"grpo"', '"gtpo"'] in [line.split() for line in output.splitlines()]
    assert "run_name" not in output
    assert pair["recipe_differences"]["objective.name"] == {"a": "grpo", "b": "gtpo"}


def test_errors(gtpo: Run, tmp_path: Path) -> None:
    store(tmp_path / "one", table(12, 0.5, 7))
    store(tmp_path / "other_gold", table(12, 0.5, 7), gold="7")
    store(tmp_path / "elsewhere", table(12, 0.5, 7), first=100)
    store(tmp_path / "untouched", table(1, 0.5, 7)).results_file.unlink()
    for arguments, words in (
        (["one"], "gtpo compare one@base one"),
        (["one", "untouched"], "gtpo eval untouched"),
        (["one", "nowhere"], "nowhere: is not a run folder"),
        (["one", "one@base"], "choose from step-000600"),
        (["one", "elsewhere"], "no problem in common"),
        (["one", "one@step-000600", "-b", "math"], "math"),
    ):
        error = gtpo("compare", *arguments, code=2).stderr
        assert words in " ".join(error.split())
        assert "Traceback" not in error
    refused = " ".join(gtpo("compare", "one", "other_gold", code=2).stderr.split())
    assert "12 of 12 shared problems differ: arithmetic/test/1, arithmetic/test/2, " in refused
    assert "arithmetic/test/10 and 2 more" in refused
