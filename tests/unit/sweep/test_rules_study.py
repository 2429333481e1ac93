"""scripts/claims/rules.py does what docs/claims/rules_registration.md says: its arms, rates, finalists and runs."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import rules

from gtpo_cli.tasks.making import task_problems


@pytest.fixture
def screened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen whose means by arm and rate are made up; two seeds that differ by 0.02."""
    monkeypatch.setattr(rules, "RECORDS", tmp_path)
    low, middle, high = rules.RATES
    means = dict.fromkeys(rules.ARMS, 0.1)
    means |= {"entropy_credit": 0.5, "quantile": 0.45, "sequence_entropy_credit": 0.44, "clip_cov": 0.43, "grpo": 0.6}
    with (tmp_path / "screen.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["study", "arm", "rate", "seed", "greedy"])
        for arm, mean in means.items():
            by_rate = {low: mean - 0.05, middle: mean, high: mean}  # of equal ones the lowest
            if arm == "quantile":
                by_rate[high] = mean + 0.01
            for rate, value in by_rate.items():
                for seed, shift in zip(rules.SCREEN_SEEDS, (-0.01, 0.01), strict=True):
                    writer.writerow(["screen", arm, rate, seed, round(value + shift, 3)])


def test_the_screen_has_every_arm_at_every_rate() -> None:
    runs = rules.screen()
    assert len(runs) == len({run.key for run in runs}) == 12 * 3 * 2
    assert {run.steps for run in runs} == {rules.STEPS}
    assert not {run.seed for run in runs} & {*rules.SEEDS, 901}


@pytest.mark.usefixtures("screened")
def test_rates_and_finalists_follow_from_the_screen() -> None:
    _, middle, high = rules.RATES
    assert rules.chosen_rates()["quantile"] == (high, pytest.approx(0.46))
    assert rules.chosen_rates()["clip_cov"] == (middle, pytest.approx(0.43))
    finalists = rules.finalists()
    arms = ["grpo", "gtpo", "entropy_credit", "quantile", "sequence_entropy_credit", "clip_cov"]
    controls = [f"{arm}_{control}" for arm in ("gtpo", "entropy_credit", "clip_cov") for control in ("even", "random")]
    assert list(finalists) == [*arms, *controls]
    assert {arm for arm, rate in finalists.items() if rate == high} == {"quantile"}
    final = rules.final()
    assert len(final) == 12 * 8
    assert {run.seed for run in final[:12]} == {1}  # seed by seed
    assert [(run.arm, run.rate) for run in rules.hot()[:6]] == [(arm, "15e-4") for arm in arms]
    assert len(rules.hot()) == 6 * 8


def size(question: str) -> tuple[int, int]:
    """How many numbers it has, and how many digits the longest of them."""
    numbers = re.findall(r"\d+", question)
    return len(numbers), max(map(len, numbers))


def test_every_problem_of_a_harder_level_is_larger_than_those_of_training() -> None:
    for trained, harder in zip(*rules.levels(), strict=True):
        seen = [size(p.question) for p in task_problems(trained.task, trained.config, "train", 101, 4000)]
        numbers, digits = (max(sizes) for sizes in zip(*seen, strict=True))
        parts = [{p.question for p in part} for part in harder.problems()]
        assert [len(part) for part in parts] == [500, 300, 60]
        asked = set().union(*parts)
        assert len(asked) == 860  # no question is in two parts
        assert all(size(question)[0] > numbers or size(question)[1] > digits for question in asked)


@pytest.mark.parametrize("arm", [*rules.ARMS, "gtpo_even", "conflict_random"])
def test_an_arm_changes_what_its_name_says(arm: str) -> None:
    recipe = rules.recipe_of(rules.Run("screen", arm, "1e-4", 101, steps=rules.STEPS))
    objective = recipe.objective
    rule, _, control = arm.rpartition("_") if arm.endswith(("_even", "_random")) else (arm, "", "none")
    assert objective.token_weights.control == control
    assert objective.name == ("gtpo" if rule == "gtpo" else "grpo")
    weighs = {"gtpo": "conflict"} | {name: name for name in rules.TOKEN_RULES}
    assert objective.token_weights.rule == weighs.get(rule, "none")
    advantages = {"w_reinforce": "reinforce", "negative_only": "reinforce"} | {
        name: name for name in ("quantile", "maximum_likelihood")
    }
    assert objective.advantages.rule == advantages.get(rule, "group")
    assert objective.advantages.config.get("positive") == (0 if rule == "negative_only" else None)
    assert (objective.kl_coef, recipe.rewards.format.weight, recipe.optimizer.betas) == (0.0, 0.0, (0.9, 0.95))
