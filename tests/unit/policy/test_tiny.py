"""The built-in models: small, whole, imperfect in the way that is promised; and how names are resolved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from jobs import policy_of
from small_models import random_model

from gtpo_cli.data import PromptEncoder
from gtpo_cli.errors import ModelError
from gtpo_cli.policy.sampler import SamplingParams, sample
from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import load_recipe
from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.tasks.making import arithmetic_problems, task_problems
from gtpo_cli.types import Problem, Verdict


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    loaded = policy_of(load_recipe("tiny_arithmetic"))
    assert isinstance(loaded, TransformersPolicy)
    return loaded


@pytest.mark.parametrize(("name", "most"), [("builtin:tiny", 2_000_000), ("builtin:tasks", 4_000_000)])
def test_it_is_small_and_holds_no_code_or_pickle(name: str, most: int) -> None:
    folder = Path(resolve_name(name))
    files = list(folder.iterdir())
    assert sum(file.stat().st_size for file in files) < most
    assert {file.suffix for file in files} <= {".json", ".jinja", ".safetensors"}


def test_a_prompt_by_hand(policy: TransformersPolicy) -> None:
    encoder = PromptEncoder(policy.tokenizer, None)
    assert encoder.render("3+8-2+5") == "<s><user>3+8-2+5<assistant>"
    vocabulary = policy.tokenizer.get_vocab()
    expected = ["<s>", "<user>", *"3+8-2+5", "<assistant>"]
    assert list(encoder.encode("3+8-2+5")) == [vocabulary[token] for token in expected]


# Shares of right answers to the first 40 problems: 0.2 on either side of what they were when the model was made.
KNOWN = {
    "chain_sum": (0.175, 0.575), "products": (0.125, 0.525), "gcd": (0.35, 0.75), "simple_equations": (0.0, 0.3),
    "spell_backward": (0.8, 1.0), "word_sorting": (0.55, 0.95), "number_sorting": (0.725, 1.0),
    "number_filtering": (0.175, 0.575),
}  # fmt: skip


def verdicts(policy: TransformersPolicy, temperature: float, problems: Sequence[Problem] = ()) -> list[Verdict]:
    encoder = PromptEncoder(policy.tokenizer, None)
    asked = problems or arithmetic_problems(400, split="test", seed=0)
    prompts = [(problem, encoder.encode(problem.question)) for problem in asked]
    params = SamplingParams(temperature=temperature, max_completion_tokens=96, seed=5)
    with Scorer(RewardsRecipe()) as scorer:
        groups = scorer.score_groups(sample(TransformersSampler(policy), prompts, 1, params))
        return [group.verdicts[0] for group in groups]


def test_it_is_imperfect_as_promised(policy: TransformersPolicy) -> None:
    """Format 60 to 90 % and accuracy 20 to 50 % when sampled; greedy answers often wrong too."""
    sampled = verdicts(policy, 1.0)
    assert 0.6 < sum(verdict.strict_format for verdict in sampled) / 400 < 0.9
    assert 0.2 < sum(verdict.correct for verdict in sampled) / 400 < 0.5
    assert sum(verdict.correct for verdict in verdicts(policy, 1e-4)) / 400 < 0.7


def test_the_model_of_tasks_knows_them_in_part() -> None:
    """Greedily, 40 problems of each; docs/results.md has 500. No character of a question is an unknown token."""
    pytest.importorskip("reasoning_gym")
    recipe = load_recipe("tiny_tasks")
    policy = policy_of(recipe)
    assert isinstance(policy, TransformersPolicy)
    assert next(policy.model.parameters()).dtype == torch.float32  # it trains in 32 bits, though stored in 16
    problems = {
        source.name: task_problems(source.benchmark, source.config, "test", 0, 40) for source in recipe.data.sources
    }
    every = [problem for own in problems.values() for problem in own]
    found = iter(verdicts(policy, 1e-4, every))
    right = {name: sum(next(found).correct for _ in own) / len(own) for name, own in problems.items()}
    assert len(right) == 8
    for name, (low, high) in KNOWN.items():
        assert low <= right[f"reasoning_gym/{name}"] <= high, (name, str(right))
    tokenizer = policy.tokenizer
    texts = [problem.question for problem in every]
    assert tokenizer.batch_decode(tokenizer(texts)["input_ids"], skip_special_tokens=True) == texts


def test_a_run_folder_names_its_newest_full_weights(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ModelError, match="has no checkpoint yet"):
        resolve_name(str(tmp_path))
    for step in (5, 10):
        folder = tmp_path / "checkpoints" / f"step-{step:06d}" / "model"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="trained an adapter"):
        resolve_name(str(tmp_path))
    random_model()[0].save_pretrained(folder)
    (tmp_path / "checkpoints" / "step-000010-copy" / "model").mkdir(parents=True)  # a user's own
    assert resolve_name(str(tmp_path)) == str(folder)
    last = tmp_path / "checkpoints" / "step-1000000" / "model"
    (tmp_path / "checkpoints" / "step-000010").rename(last.parent)
    assert resolve_name(str(tmp_path)) == str(last)
