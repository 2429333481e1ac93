"""scripts/claims/rules.py does what docs/claims/rules_registration.md says: its arms, rates, finalists and runs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import rules


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
    assert [(run.arm, run.rate) for run in rules.hot()[:6]] == [(arm, rules.HOT) for arm in arms]
    assert len(rules.hot()) == 6 * 8


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
