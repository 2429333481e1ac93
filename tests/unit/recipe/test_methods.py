"""`objective.name`: what each method sets where a recipe is silent, and that GTPO's corrections go with each."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe, build_recipe, dump_recipe
from gtpo_cli.recipe.methods import METHODS
from gtpo_cli.recipe.schema import ObjectiveRecipe
from gtpo_cli.recipe.yaml_text import parse_yaml

SMALLEST = {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}}
# advantages.config, loss.rule, clip low, high, of, average
SWITCHES: dict[str, tuple[Any, ...]] = {
    "gtpo": ({}, "token", 0.2, 0.2, "completion"),
    "grpo": ({}, "token", 0.2, 0.2, "completion"),
    "dr_grpo": ({"scale": "none"}, "token", 0.2, 0.2, "budget"),
    "dapo": ({}, "token", 0.2, 0.28, "token"),
    "gspo": ({}, "sequence", 3e-4, 4e-4, "completion"),
    "cispo": ({}, "weight", 0.2, 5.0, "token"),
    "rloo": ({"scale": "none", "baseline": "leave_one_out"}, "token", 0.2, 0.2, "sum"),
    "sft": ({}, "token", 0.2, 0.2, "completion"),
}


def recipe(*overrides: str) -> Recipe:
    return build_recipe(SMALLEST, overrides, where="r.yaml")


def switches(objective: ObjectiveRecipe) -> tuple[Any, ...]:
    clip = objective.clip
    return (
        objective.advantages.config, objective.loss.rule, clip.low, clip.high, objective.average,
    )  # fmt: skip


def test_every_method_is_a_name_and_every_name_a_method() -> None:
    assert set(get_args(ObjectiveRecipe.model_fields["name"].annotation)) == set(METHODS) == set(SWITCHES)


@pytest.mark.parametrize("name", SWITCHES)
def test_what_a_method_sets(name: str) -> None:
    chosen = recipe(f"objective.name={name}")
    assert switches(chosen.objective) == SWITCHES[name]
    corrected = name == "gtpo"
    assert (chosen.objective.token_weights.rule == "conflict") is corrected
    assert chosen.objective.filter.enabled == ("auto" if corrected else "never")
    assert chosen.objective.entropy_coef == (0.1 if corrected else 0.0)
    assert chosen.optimizer.betas == ((0.999999, 0.999999) if corrected else (0.9, 0.95))
    assert Recipe.model_validate(parse_yaml(dump_recipe(chosen))) == chosen


@pytest.mark.parametrize("name", SWITCHES)
def test_dynamic_sampling_and_the_length_penalty_are_on_for_dapo_alone(name: str) -> None:
    """CISPO's paper has both as well: docs/objective.md says that they are off here."""
    chosen = recipe(f"objective.name={name}")
    expected = (3, 5.0) if name == "dapo" else (0, 0.0)
    assert (chosen.objective.resample, chosen.rewards.length.weight) == expected
    assert chosen.objective.kl_coef == 0.0
    assert chosen.rollout.mask_truncated is False


def test_clip_epsilon_is_short_for_both_ends() -> None:
    assert switches(recipe("objective.clip_epsilon=0.1").objective)[2:4] == (0.1, 0.1)
    # of a method whose ends differ, too; what is clipped stays the method's
    assert switches(recipe("objective.name=dapo", "objective.clip_epsilon=0.1").objective)[2:4] == (0.1, 0.1)
    with pytest.raises(RecipeError, match=r"clip_epsilon is a range around 1; with loss\.rule: weight write clip"):
        recipe("objective.name=cispo", "objective.clip_epsilon=0.9")
    with pytest.raises(RecipeError, match=r"clip_epsilon sets both clip\.low and clip\.high"):
        recipe("objective.clip_epsilon=0.1", "objective.clip.high=0.3")
    with pytest.raises(RecipeError, match=r"objective\.clip\.low: .*less than 1"):
        recipe("objective.clip_epsilon=2")


def test_a_bound_of_the_weight_below_1_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"objective\.clip\.high: 0\.2 would shrink every weight"):
        recipe("objective.loss.rule=weight", "objective.clip.high=0.2")
    assert recipe("objective.loss.rule=weight", "objective.clip.high=1").objective.clip.high == 1.0


@pytest.mark.parametrize("name", METHODS)
def test_a_resolved_recipe_follows_another_method_and_keeps_what_was_chosen(name: str) -> None:
    """So `--set objective.name` on a run's recipe, and a sweep on it, mean what they say."""
    chosen = ["objective.probe.num_prompts=3", "optimizer.learning_rate=3e-4"]
    resolved = parse_yaml(dump_recipe(recipe(f"objective.name={name}", *chosen)))
    for other in METHODS:
        followed = build_recipe(resolved, [f"objective.name={other}"], where="resolved")
        assert followed == recipe(f"objective.name={other}", *chosen)
    resolved["objective"]["entropy_coef"] = 0.7
    assert build_recipe(resolved, ["objective.name=dapo"], where="resolved").objective.entropy_coef == 0.7


def test_a_method_keeps_its_keywords_when_its_own_rule_is_written() -> None:
    for name in METHODS:
        own = recipe(f"objective.name={name}").objective
        for key in ("advantages", "loss"):
            rule = getattr(own, key).rule
            assert recipe(f"objective.name={name}", f"objective.{key}.rule={rule}").objective == own
    assert recipe("objective.name=rloo", "objective.advantages.rule=quantile").objective.advantages.config == {}


def test_the_clip_range_is_that_of_the_rule_for_the_loss() -> None:
    def ends(*changes: str) -> tuple[float, float]:
        clip = recipe("objective.num_iterations=2", *changes).objective.clip
        return clip.low, clip.high

    assert ends("objective.loss.rule=sequence") == ends("objective.name=gspo") == (3e-4, 4e-4)
    assert ends("objective.loss.rule=weight") == ends("objective.name=cispo") == (0.2, 5.0)
    assert ends("objective.loss.rule=geometric") == (0.4, 0.4)
    assert ends("objective.name=gspo", "objective.loss.rule=token") == (0.2, 0.2)
    assert ends("objective.name=cispo", "objective.loss.rule=token") == (0.2, 0.2)
    assert ends("objective.name=dapo", "objective.loss.rule=geometric", "objective.clip.high=0.3") == (0.4, 0.3)


@pytest.mark.parametrize(
    ("key", "change"),
    [("advantages", "rule=quantile"), ("token_weights", "rule=conflict"), ("token_weights", "control=even"),
     ("loss", "rule=sequence")],
)  # fmt: skip
def test_sft_refuses_what_it_would_ignore(key: str, change: str) -> None:
    with pytest.raises(RecipeError, match=rf"objective\.{key}: SFT imitates, so it has no advantages"):
        recipe("objective.name=sft", f"objective.{key}.{change}")


def test_keywords_and_a_control_without_a_rule_are_refused_not_ignored() -> None:
    for ignored in ("config={positive: 3}", "control=even"):
        with pytest.raises(RecipeError, match=r"objective\.token_weights: config and control belong to a rule, and"):
            recipe("objective.name=grpo", f"objective.token_weights.{ignored}")
        assert recipe(f"objective.token_weights.{ignored}").objective.token_weights.rule == "conflict"


def test_a_length_penalty_alone_is_a_reward() -> None:
    off = ["rewards.format.weight=0", "rewards.accuracy.weight=0"]
    assert recipe(*off, "rewards.length.weight=1").rewards.length.weight == 1.0
    with pytest.raises(RecipeError, match="all weights are 0"):
        recipe(*off)


def test_a_reward_of_ones_own_is_named_once() -> None:
    twice = "rewards.plugins=[{name: 'mine:reward'}, {name: 'other:reward'}, {name: 'mine:reward', weight: 2}]"
    with pytest.raises(RecipeError, match=r"rewards\.plugins\.2\.name: mine:reward is listed twice"):
        recipe(twice)


def test_dapo_resamples_and_punishes_length() -> None:
    dapo = recipe("objective.name=dapo", "rollout.max_completion_tokens=200")
    assert (dapo.objective.resample, dapo.rewards.length.weight) == (3, 5.0)
    assert (recipe().objective.resample, recipe().rewards.length.weight) == (0, 0.0)


@pytest.mark.parametrize(
    ("changes", "rule", "config"),
    [
        ([], "top_entropy", {"share": 0.1}),
        (["objective.token_weights.rule=top_entropy"], "top_entropy", {"share": 0.1}),
        (["objective.token_weights.rule=clip_cov"], "clip_cov", {}),
        (
            ["objective.token_weights.config={share: 0.3}", "objective.token_weights.rule=clip_cov"],
            "clip_cov", {"share": 0.3},
        ),
        (["objective.token_weights={rule: clip_cov, config: {low: 0}}"], "clip_cov", {"low": 0}),
    ],
)  # fmt: skip
def test_keywords_of_a_rule_go_with_it(changes: list[str], rule: str, config: dict[str, Any]) -> None:
    below = {"rule": "top_entropy", "config": {"share": 0.1}, "control": "even"}
    document = {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}}
    found = build_recipe(document | {"objective": {"token_weights": below}}, changes, where="here")
    weights = found.objective.token_weights
    assert (weights.rule, weights.config, weights.control) == (rule, config, "even")


def test_keywords_of_a_methods_own_rule_go_with_the_method() -> None:
    document = {
        "model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"},
        "objective": {"token_weights": {"config": {"positive": 1.0}}},
    }  # fmt: skip
    for changes, config in (
        (["objective.token_weights.rule=conflict"], {"positive": 1.0}),
        (["objective.name=grpo"], {}),
        (["objective.name=grpo", "objective.token_weights.rule=conflict"], {"positive": 1.0}),
    ):
        assert build_recipe(document, changes, where="here").objective.token_weights.config == config
