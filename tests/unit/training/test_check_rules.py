"""Rules are tried on a made-up step before a run: what cannot train is refused, what a rule writes into stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gtpo_cli.errors import RecipeError
from gtpo_cli.objective import Rewards, Tokens
from gtpo_cli.objective.loss import RULES as LOSSES
from gtpo_cli.objective.loss import Ratio
from gtpo_cli.objective.token_rules import RULES as TOKEN_WEIGHTS
from gtpo_cli.recipe import load_recipe
from gtpo_cli.recipe.schema import ObjectiveRecipe
from gtpo_cli.training.setup import check_rules, method_of

OWN = """
import torch

from gtpo_cli import needs


def without_gradient(ratio):
    return ratio.coefficients


def no_number(ratio):
    return ratio.value * ratio.coefficients / 0.0


def no_gradient_at_one(ratio):  # the value is finite; the gradient of a root at 0 is not
    log_ratio = ratio.logprobs - ratio.old_logprobs
    return torch.where(log_ratio == 0, ratio.value, log_ratio.abs().sqrt()) * ratio.coefficients


def nothing_learns(ratio):
    return ratio.coefficients * ratio.value * 0.0


@needs("group")
def reads_entropy(tokens):
    return tokens.entropy


def no_spread(rewards):  # all rewards of a group may be equal
    R = rewards.total_BG
    return (R - R.mean(dim=1, keepdim=True)) / R.std(dim=1, keepdim=True)


swish = torch.sigmoid


@needs("row")
def writes(tokens):
    tokens.advantages.zero_()
    tokens.entropy.zero_()
    tokens.mask.zero_()
    return torch.ones_like(tokens.logprobs)


def writes_rewards(rewards):
    rewards.total_BG.sub_(1.0)
    return rewards.total_BG


def against_the_mean(ratio):  # of all rows that happen to be computed together
    return (ratio.value - ratio.value[ratio.mask].mean()) * ratio.coefficients


@needs("row")
def above_the_mean(tokens):
    return (tokens.entropy > tokens.entropy[tokens.mask].mean()).float()


@needs("row")
def at_random(tokens):
    return torch.rand_like(tokens.entropy)


def writes_ratio(ratio):
    r = ratio.value
    ratio.mask.zero_()
    ratio.coefficients.mul_(2.0)
    return r * ratio.coefficients
"""


@pytest.fixture(autouse=True)
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules.py").write_text(OWN)
    (tmp_path / "typo.py").write_text("from gtpo_cli import needs\n\n\n@needs('rows')\ndef rule(tokens): ...\n")
    (tmp_path / "bare.py").write_text("from gtpo_cli import needs\n\n\n@needs\ndef rule(tokens): ...\n")
    monkeypatch.chdir(tmp_path)


def objective(*changes: str) -> ObjectiveRecipe:
    return load_recipe("tiny_arithmetic", ["objective.name=grpo", *changes]).objective


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("token_weights={rule: conflict, config: {negativ: 1}}", "conflict: .*'negativ'; its keywords: positive, neg"),
        ("token_weights={rule: conflict, config: {positive: two}}", "conflict: positive: input should be a valid numb"),
        (
            "token_weights={rule: top_entropy, config: {share: 1.5}}",
            "share: input should be less than or equal to 1, g",
        ),
        ("token_weights={rule: clip_cov, config: {share: -1}}", "share: input should be greater than 0, got -1"),
        ("token_weights={rule: clip_cov, config: {low: 5, high: 1}}", "low: 5 is not below high, which is 1"),
        ("token_weights={rule: entropy_advantage, config: {kappa: 0.5}}", "kappa: input should be greater than 1"),
        ("advantages={rule: group, config: {scale: mad}}", "scale: input should be 'std' or 'none', got 'mad'"),
        ("advantages={rule: quantile, config: {k: -1}}", "k: input should be greater than 0"),
        ("advantages={rule: reinforce, config: {negative: -1}}", "negative: input should be greater than or equal to"),
        ("advantages.rule=rules.py:no_spread", "gave an infinite advantage, or one that is not a number"),
        ("token_weights.rule=rules.py:reads_entropy", "gave NoneType; expected one number for each token"),
        ("token_weights.rule=rules.py:swish", "no signature found.*; write a function of Python that calls it"),
        ("token_weights.rule=typo.py:rule", r"needs\('rows'\): write @needs\(\"group\"\), @needs"),
        ("token_weights.rule=bare.py:rule", r"needs\(<function rule .*: write @needs\(\"group\"\), @needs"),
        ("loss.rule=rules.py:without_gradient", "gave nothing with a gradient"),
        ("loss.rule=rules.py:no_number", "gave a loss or a gradient that is infinite or not a number"),
        ("loss.rule=rules.py:no_gradient_at_one", "gave a loss or a gradient that is infinite or not a number"),
        ("loss.rule=rules.py:nothing_learns", "gave a gradient of 0 for every token, so nothing would learn"),
        ("loss.rule=rules.py:against_the_mean", "gives a completion other values beside other completions than alone"),
        ("token_weights.rule=rules.py:above_the_mean", "gives a completion other values beside other completions than"),
        ("token_weights.rule=rules.py:at_random", "and a step is computed in micro-batches; use only what belongs to"),
    ],
)
def test_a_rule_that_cannot_train_is_refused(rule: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as error:
        check_rules(objective(f"objective.{rule}"))
    assert f"objective.{rule.partition('=')[0].partition('.')[0]}" in str(error.value)


@pytest.mark.parametrize("rule", ["none", *TOKEN_WEIGHTS])
def test_built_in_rules_for_tokens_pass(rule: str) -> None:
    check_rules(objective(f"objective.token_weights.rule={rule}"))


@pytest.mark.parametrize("rule", LOSSES)
def test_built_in_rules_for_the_loss_pass(rule: str) -> None:
    check_rules(objective("objective.num_iterations=2", f"objective.loss.rule={rule}"))


def test_what_a_rule_writes_into_changes_nothing_else() -> None:
    method = method_of(
        objective(
            "objective.advantages.rule=rules.py:writes_rewards", "objective.token_weights.rule=rules.py:writes",
            "objective.loss.rule=rules.py:writes_ratio",
        ),
        max_completion_tokens=8,
    )  # fmt: skip
    values, mask = torch.rand(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.bool)
    given: list[Any] = [
        Rewards.of_total(values.clone()),
        Tokens(mask.long(), mask.clone(), values[:, 0].clone(), mask, mask, values, values.clone(), values.clone()),
    ]
    assert torch.equal(method.advantages_of(given[0]), values - 1.0)
    assert torch.equal(given[0].total_BG, values)
    assert torch.equal(method.weigh(given[1]), torch.ones(2, 3))
    assert torch.equal(given[1].entropy, values)
    assert torch.equal(given[1].advantages, values[:, 0])
    assert given[1].mask.all()
    ratio = Ratio(values.clone().requires_grad_(), values.clone(), values.clone(), mask.clone(), (0.2, 0.2))
    found = method.loss(ratio)
    assert isinstance(found, torch.Tensor)
    found.sum().backward()
    torch.testing.assert_close(ratio.logprobs.grad, 2.0 * values)  # r = 1, c doubled, and only there
    assert torch.equal(ratio.coefficients, values)
    assert ratio.mask.all()
