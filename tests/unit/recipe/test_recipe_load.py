"""Recipes: what is read, what is refused, and in which words."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe, build_recipe, dump_recipe, load_recipe, shipped_recipes

SMALLEST = {"model": {"name": "some/model"}, "data": {"benchmark": "gsm8k"}}


def problems(document: dict, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        build_recipe(document, overrides, where="r.yaml")
    return caught.value.problems


def test_two_lines_are_enough_and_get_the_papers_values() -> None:
    recipe = build_recipe(SMALLEST, where="r.yaml")
    assert recipe.rollout.group_size == 8
    assert recipe.objective.entropy_coef == 0.1
    assert recipe.objective.filter.threshold == math.log(2)
    assert recipe.optimizer.betas == (0.999999, 0.999999)
    assert recipe.optimizer.learning_rate == 1e-6
    assert recipe.model.lora is not None
    assert (recipe.model.lora.rank, recipe.model.lora.alpha) == (128, 128)
    assert recipe.model.max_seq_length == 5500
    assert recipe.data.max_prompt_tokens == 4000
    assert recipe.seed == 3407
    assert recipe.rewards.format.mode == "strict"


@pytest.mark.parametrize(
    ("name", "conflict", "filter_mode", "gamma", "betas"),
    [
        ("gtpo", True, "auto", 0.1, (0.999999, 0.999999)),
        ("grpo", False, "never", 0.0, (0.9, 0.95)),
        ("sft", False, "never", 0.0, (0.9, 0.95)),
    ],
)
def test_objective_name_sets_the_switches(
    name: str, conflict: bool, filter_mode: str, gamma: float, betas: tuple[float, float]
) -> None:
    recipe = build_recipe(SMALLEST | {"objective": {"name": name}}, where="r.yaml")
    assert (recipe.objective.token_weights.rule == "conflict") is conflict
    assert recipe.objective.filter.enabled == filter_mode
    assert recipe.objective.entropy_coef == gamma
    assert recipe.optimizer.betas == betas


def test_what_is_written_wins_over_the_objectives_defaults() -> None:
    document = SMALLEST | {"objective": {"name": "grpo", "token_weights": {"rule": "conflict"}}}
    recipe = build_recipe(document, ["objective.entropy_coef=0.5"], where="r.yaml")
    assert recipe.objective.token_weights.rule == "conflict"
    assert recipe.objective.entropy_coef == 0.5
    assert recipe.objective.filter.enabled == "never"


def test_evaluation_follows_what_is_trained_on_unless_it_is_written() -> None:
    document = SMALLEST | {"data": {"benchmark": "math"}, "rollout": {"max_completion_tokens": 333}}
    recipe = build_recipe(document, where="r.yaml")
    assert recipe.evaluation.benchmarks == ("math",)
    assert recipe.evaluation.max_completion_tokens == 333
    written = build_recipe(
        document | {"evaluation": {"benchmarks": ["aime24", "amc23"], "max_completion_tokens": 4000}}, where="r.yaml"
    )
    assert written.evaluation.benchmarks == ("aime24", "amc23")
    assert written.evaluation.max_completion_tokens == 4000
    assert build_recipe(SMALLEST, where="r.yaml").evaluation.max_completion_tokens == 1500


def test_what_follows_from_other_keys_follows_them_again_in_a_resolved_recipe(tmp_path: Path) -> None:
    document = SMALLEST | {"rollout": {"max_completion_tokens": 1500}, "evaluation": {"samples": 8}}
    file = tmp_path / "recipe.yaml"
    file.write_text(dump_recipe(build_recipe(document, where="r.yaml")))
    changes = ["data.benchmark=math", "rollout.max_completion_tokens=3000", "evaluation.samples=16"]
    (tmp_path / "above.yaml").write_text("extends: recipe.yaml\nrollout: {max_completion_tokens: 3000}\n")
    for changed in (load_recipe(file, changes), load_recipe(tmp_path / "above.yaml", changes)):
        assert (changed.evaluation.benchmarks, changed.evaluation.max_completion_tokens) == (("math",), 3000)
        assert (changed.evaluation.pass_k, changed.evaluation.majority_k) == ((1, 2, 4, 8, 16), (4, 8, 16))
    kept = load_recipe(file, [*changes, "evaluation.benchmarks=[gsm8k]"])
    assert kept.evaluation.benchmarks == ("gsm8k",)


def test_the_default_ks_end_at_the_samples_and_written_ones_beyond_are_refused() -> None:
    document = SMALLEST | {"evaluation": {"samples": 9}}
    evaluation = build_recipe(document, where="r.yaml").evaluation
    assert (evaluation.pass_k, evaluation.majority_k) == ((1, 2, 4, 8), (4, 8))
    assert "evaluation.pass_k: k = 16 needs 16 completions" in problems(document, "evaluation.pass_k=[1, 16]")[0]
    all_ks = {"pass_k": [1, 2, 4, 8, 16, 32, 64], "majority_k": [4, 8, 16, 32, 64]}  # as an earlier gtpo resolved it
    assert build_recipe(SMALLEST | {"evaluation": all_ks | {"samples": 9}}, where="r.yaml").evaluation == evaluation


def test_an_override_that_is_a_mapping_is_merged() -> None:
    recipe = build_recipe(SMALLEST, ["model.lora={rank: 8, alpha: 16}"], where="r.yaml")
    assert recipe.model.lora is not None
    assert (recipe.model.lora.rank, recipe.model.lora.alpha) == (8, 16)
    assert len(recipe.model.lora.target_modules) == 7
    all_weights = ["model.lora=null", "model.load_in_4bit=false"]
    assert build_recipe(SMALLEST, all_weights, where="r.yaml").model.lora is None


def test_all_errors_at_once_with_file_key_and_nearest() -> None:
    document = {
        "model": {"nam": "x", "lora": {"rnk": 3}},
        "data": {"benchmark": "gsm8", "learning_rate": 3},
        "objective": {"name": "gtop", "entropy_coeff": 1},
        "optimizer": {"betas": [1.0, 0.9]},
    }
    found = problems(document, "rollout.engin=vllm", "nonsense", "training.save_every=0")
    assert "--set nonsense: expected dotted.key=value, e.g. --set objective.entropy_coef=0.01" in found
    assert "r.yaml: model.name: is missing; add it, e.g. name: builtin:tiny" in found
    assert "r.yaml: model.nam: unknown key; did you mean model.name?" in found
    assert "r.yaml: model.lora.rnk: unknown key; did you mean model.lora.rank?" in found
    assert "r.yaml: data.learning_rate: unknown key; did you mean optimizer.learning_rate?" in found
    assert "r.yaml: objective.entropy_coeff: unknown key; did you mean objective.entropy_coef?" in found
    assert "--set: rollout.engin: unknown key; did you mean rollout.engine?" in found
    assert "r.yaml: optimizer.betas.0: input should be less than 1, got 1.0" in found
    assert "--set: training.save_every: input should be greater than or equal to 1, got 0" in found
    assert any("'gsm8' is not one of" in p and p.endswith("did you mean gsm8k?") for p in found)
    assert any("'gtop' is not one of" in p and p.endswith("did you mean gtpo?") for p in found)
    assert len(found) == 11


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("objective.name=sft\nrollout.steps_per_generation=4", "SFT samples nothing to share between steps; set it"),
        ("model.lora=null\nmodel.load_in_4bit=false\nrollout.engine=vllm", "set model.lora, or engine: transformers"),
        ("training.eval_every=10", "limit these evaluations"),
        ("training.keep_best=eval/gsm8k/accuracy_rate", "only measured with training.eval_every"),
        ("rollout.group_size=1", "a group of 1 has no advantage"),
        ("objective.advantages.rule=reinforce\nrewards.accuracy.weight=0", "reinforce reads right and wrong alone"),
        ("objective.advantages.rule=reinforce\nobjective.resample=1", "objective.resample: discards groups with equal"),
        (
            "model.load_in_4bit=true\nmodel.lora=null",
            "model.load_in_4bit: 4-bit weights cannot train; set model.lora, or load_in_4bit: false",
        ),
        ("data.max_prompt_tokens=1000\nmodel.max_seq_length=1000", "leaves no room for a completion"),
        ("data.benchmark=local", "needs a file or folder"),
        ("rewards={format: {weight: 0}, accuracy: {weight: 0}}", "all weights are 0"),
        ("optimizer.learning_rate=.nan", "finite"),
    ],
)
def test_what_cannot_be_honoured_is_refused(override: str, words: str) -> None:
    overrides = override.split("\n")
    (problem,) = problems(SMALLEST, *overrides)
    assert words in problem
    assert overrides[-1].split("=")[0].split(".")[0] in problem


@pytest.mark.parametrize(
    ("said", "lengths"),
    [
        ({}, (5500, 4000, 1500)),
        ({"row": 512}, (512, 256, 256)),
        ({"row": 4096}, (4096, 2596, 1500)),
        ({"row": 8192}, (8192, 4000, 1500)),
        ({"row": 2}, (2, 1, 1)),
        ({"row": 512, "prompt": 100}, (512, 100, 412)),
        ({"row": 512, "completion": 64}, (512, 448, 64)),
        ({"row": 512, "completion": 400}, (512, 256, 400)),  # long prompts leave fewer
        ({"row": 512, "completion": 1500}, (512, 256, 1500)),
        ({"prompt": 8000}, (9500, 8000, 1500)),
        ({"completion": 16384}, (20384, 4000, 16384)),
        ({"completion": 1048513}, (1048576, 4000, 1048513)),  # no longer row is allowed
        ({"prompt": 64, "completion": 64}, (5500, 64, 64)),
    ],
)
def test_the_lengths_that_are_open_leave_room_for_those_that_are_said(
    said: dict[str, int], lengths: tuple[int, int, int]
) -> None:
    keys = {
        "row": "model.max_seq_length",
        "prompt": "data.max_prompt_tokens",
        "completion": "rollout.max_completion_tokens",
    }
    recipe = build_recipe(SMALLEST, [f"{keys[key]}={value}" for key, value in said.items()], where="r.yaml")
    found = recipe.model.max_seq_length, recipe.data.max_prompt_tokens, recipe.rollout.max_completion_tokens
    assert found == lengths
    assert recipe.evaluation.max_completion_tokens == lengths[2]


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    cases = {
        "list.yaml": (b"- 1\n- 2\n", "a recipe is a mapping of keys"),
        "broken.yaml": (b"model: {name: x\n", "is not YAML"),
        "twice.yaml": (b"seed: 1\nseed: 2\n", "key 'seed' is written twice, line 2"),
        "latin.yaml": ("run_name: \xe9\n".encode("latin-1"), "is not UTF-8"),
        "object.yaml": (b"a: !!python/object/apply:os.system [echo]\n", "is not YAML"),
        "empty.yaml": (b"", "model: is missing"),
    }
    for name, (content, words) in cases.items():
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(RecipeError) as caught:
            load_recipe(file)
        assert words in str(caught.value), name
        assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_shipped_recipe_loads_and_survives_a_round_trip(name: str) -> None:
    recipe = load_recipe(name)
    assert Recipe.model_validate(yaml.safe_load(dump_recipe(recipe))) == recipe
    assert build_recipe(yaml.safe_load(dump_recipe(recipe)), where="resolved") == recipe


keys = st.sampled_from(["model", "data", "rollout", "objective", "optimizer", "training", "tracking", "seed", "x"])


def test_loading_a_recipe_imports_no_torch() -> None:
    code = (
        "import sys; from gtpo_cli.recipe import load_recipe; load_recipe('tiny_arithmetic'); "
        "import gtpo_cli.cli.app; "
        "heavy = {'torch', 'transformers', 'datasets', 'wandb', 'sympy', 'numpy'} & set(sys.modules); print(heavy)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "set()"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{enforce_eagr: true}", "rollout.vllm: enforce_eagr is no argument that can be set here; did you mean"),
        ("{tensor_parallel_size: 2}", "rollout.vllm: tensor_parallel_size is no argument that can be set here; there"),
        ("{kv_cache_dtype: fp4}", "rollout.vllm.kv_cache_dtype: 'fp4' is not one of 'auto' or 'fp8'"),
        ("{max_num_batched_tokens: 0}", "rollout.vllm.max_num_batched_tokens: input should be greater than or equal"),
        ("{enforce_eager: 1}", "rollout.vllm.enforce_eager: input should be a valid boolean, got 1"),
        ("{speculative_config: {method: ngram}}", "num_speculative_tokens: is missing"),
        ("{speculative_config: {method: ngram, num_speculative_tokens: 2, x: 1}}", "speculative_config.x: "),
    ],
)
def test_arguments_of_vllm_are_checked(written: str, words: str) -> None:
    assert words in "\n".join(problems(SMALLEST, f"rollout.vllm={written}"))
