"""The built-in model: small, whole, imperfect in the way that is promised; and how names are resolved."""

from __future__ import annotations

from pathlib import Path

import pytest
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
from gtpo_cli.tasks.making import arithmetic_problems
from gtpo_cli.types import Verdict


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    loaded = policy_of(load_recipe("tiny_arithmetic"))
    assert isinstance(loaded, TransformersPolicy)
    return loaded


def test_it_is_small_and_holds_no_code_or_pickle() -> None:
    folder = Path(resolve_name("builtin:tiny"))
    files = list(folder.iterdir())
    assert sum(file.stat().st_size for file in files) < 2_000_000
    assert {file.suffix for file in files} <= {".json", ".jinja", ".safetensors"}


def test_a_prompt_by_hand(policy: TransformersPolicy) -> None:
    encoder = PromptEncoder(policy.tokenizer, None)
    assert encoder.render("3+8-2+5") == "<s><user>3+8-2+5<assistant>"
    vocabulary = policy.tokenizer.get_vocab()
    expected = ["<s>", "<user>", *"3+8-2+5", "<assistant>"]
    assert list(encoder.encode("3+8-2+5")) == [vocabulary[token] for token in expected]


def verdicts(policy: TransformersPolicy, temperature: float, count: int = 400) -> list[Verdict]:
    encoder = PromptEncoder(policy.tokenizer, None)
    prompts = [(p, encoder.encode(p.question)) for p in arithmetic_problems(count, split="test", seed=0)]
    params = SamplingParams(temperature=temperature, max_completion_tokens=64, seed=5)
    with Scorer(RewardsRecipe()) as scorer:
        groups = scorer.score_groups(sample(TransformersSampler(policy), prompts, 1, params))
        return [group.verdicts[0] for group in groups]


def test_it_is_imperfect_as_promised(policy: TransformersPolicy) -> None:
    """Format 60 to 90 % and accuracy 20 to 50 % when sampled; greedy answers often wrong too."""
    sampled = verdicts(policy, 1.0)
    assert 0.6 < sum(verdict.strict_format for verdict in sampled) / 400 < 0.9
    assert 0.2 < sum(verdict.correct for verdict in sampled) / 400 < 0.5
    assert sum(verdict.correct for verdict in verdicts(policy, 1e-4)) / 400 < 0.7


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
