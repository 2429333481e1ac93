"""What scripts/verl_command.py prints and writes, read by verl itself."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any

import pytest
from verl_batches import composed
from verl_command import prepare

from gtpo_cli.data import PromptEncoder, load_problems
from gtpo_cli.errors import RewardError
from gtpo_cli.integrations.verl_config import hydra_text
from gtpo_cli.models import load_tokenizer
from gtpo_cli.recipe import load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.types import Completion

pytestmark = pytest.mark.verl

MORE = [
    "rollout.importance_correction=truncated",
    "objective.kl_coef=0.04",
    "model.lora={rank: 16, alpha: 32, dropout: 0}",
    "training.micro_batch_size=4",
    "tracking={wandb: {mode: online, tags: [a, 'b c'], entity: us}, tensorboard: true}",
    "model.dtype=float32",
]


@pytest.mark.parametrize("changes", [[], MORE], ids=["plain", "everything"])
def test_verl_accepts_every_printed_override(configuration: Any, changes: list[str]) -> None:
    """hydra refuses a key that verl's configuration does not have; verl then checks its values."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = configuration(*changes)
    assert config.trainer.v1.trainer_mode == "gtpo"
    assert config.trainer.use_v1
    assert config.data.apply_chat_template_kwargs.date_string == "26 Jul 2024"
    omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    if not changes:  # with an adapter, verl asks vLLM for its ranks, and there is none here
        with_reference, with_critic = need_reference_policy(config), need_critic(config)
        assert (with_reference, with_critic) == (False, False)
        validate_config(config, use_reference_policy=with_reference, use_critic=with_critic)
    else:
        assert need_reference_policy(config)
        assert config.actor_rollout_ref.model.target_modules[0] == "q_proj"
        assert config.ray_kwargs.ray_init.runtime_env.env_vars.WANDB_TAGS == "a,b c"
        assert config.trainer.logger == ["console", "wandb", "tensorboard"]


def test_hydra_does_refuse_a_key_that_verl_does_not_have(tmp_path: Path) -> None:
    from hydra.errors import ConfigCompositionException

    text = prepare("tiny_arithmetic", ["objective.initial_entropy=0.5", "data.limit=20"], gpus=1, out=tmp_path)
    with pytest.raises(ConfigCompositionException):
        composed(text + " trainer.no_such_key=1")


@pytest.mark.parametrize(
    "value",
    ["a b", "it's", 'say "so"', "ends with \\", "a\\b", "x=1,y=[2]", "123", "true", "null", "", "é", "a#b", "~/x",
     "1e5", ["q_proj", "v proj"], [0.9, 0.999999], 1e-6, 1e9, True, None, -1],
)  # fmt: skip
def test_values_arrive_as_they_are(value: Any) -> None:
    from omegaconf import OmegaConf

    found = composed(f"python -m verl.trainer.main_ppo {shlex.quote(f'+gtpo.value={hydra_text(value)}')}").gtpo.value
    found = OmegaConf.to_container(found) if isinstance(value, list) else found
    assert found == value
    assert type(found) is type(value)


def test_verl_s_dataset_gives_the_model_our_prompts(configuration: Any) -> None:
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

    config = configuration("data.system_prompt=Answer briefly.")
    recipe = load_recipe(config.gtpo.recipe)
    tokenizer, _ = load_tokenizer(recipe)
    dataset = RLHFDataset(config.data.train_files, tokenizer, config.data)
    builder = ContinuousTokenBuilder(tokenizer, chat_template_kwargs=config.data.apply_chat_template_kwargs)
    problems = load_problems(recipe.data, seed=recipe.seed).problems
    encoder = PromptEncoder(tokenizer, "Answer briefly.")
    assert len(dataset) == len(problems) == 20
    for row, problem in zip(dataset, problems, strict=True):
        assert builder.build_initial_tokens(row["raw_prompt"]) == list(encoder.encode(problem.question))
        assert row["reward_model"]["ground_truth"] == problem.gold


def length(problem: Any, completion: Completion) -> float:
    """A user reward that looks at the text, and at the question."""
    return float(len(completion.text) + len(problem.question))


def tokens(problem: Any, completion: Completion) -> float:
    """A user reward that looks at what verl does not hand over."""
    return float(len(completion.token_ids))


TEXTS = [
    "<reasoning>r</reasoning><answer>{gold}</answer>",
    "<reasoning>r</reasoning><answer>no</answer>",
    "<answer>{gold}</answer>",
    "{gold}",
]


def test_verl_s_reward_manager_scores_as_our_scorer(configuration: Any) -> None:
    config = configuration(
        "rewards.accuracy.weight=2", "rewards.plugins=[{name: 'test_verl_command:length', weight: 0.25}]"
    )
    recipe = load_recipe(config.gtpo.recipe)
    tokenizer, _ = load_tokenizer(recipe)
    problem = load_problems(recipe.data, seed=recipe.seed).problems[0]
    texts = [text.format(gold=problem.gold) for text in TEXTS]
    completions = [Completion(tuple(tokenizer(text).input_ids), (0.0,) * len(tokenizer(text).input_ids), "stop", text)
                   for text in texts]  # fmt: skip
    with Scorer(recipe.rewards) as scorer:
        wanted = scorer.score(problem, completions)
    assert len({verdict.reward for verdict in wanted}) == 4
    for text, verdict in zip(texts, wanted, strict=True):
        found = asyncio.run(_managed(config, tokenizer, text))
        assert found["reward_score"] == pytest.approx(verdict.reward)
        assert found["reward_extra_info"]["acc"] == verdict.correct
        assert found["reward_extra_info"]["test_verl_command:length"] == verdict.plugins["test_verl_command:length"]


async def _managed(config: Any, tokenizer: Any, text: str) -> Any:
    """What verl's reward manager, loaded by verl, makes of a response to the data set's first prompt."""
    import numpy as np
    import torch
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager
    from verl.utils.dataset.rl_dataset import RLHFDataset

    row = RLHFDataset(config.data.train_files, tokenizer, config.data)[0]
    response = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
    data = DataProto.from_dict(
        {"responses": response, "attention_mask": torch.ones_like(response)},
        non_tensors={
            name: np.array([row[name]], dtype=object) for name in ("data_source", "reward_model", "extra_info")
        },
    )
    return await load_reward_manager(config, tokenizer).run_single(data)


def test_a_plug_in_that_wants_more_than_the_text_is_told_so(configuration: Any) -> None:
    config = configuration("rewards.plugins=[{name: 'test_verl_command:tokens'}]")
    tokenizer, _ = load_tokenizer(load_recipe(config.gtpo.recipe))
    with pytest.raises(RewardError, match=r"completion\.token_ids is not known to a reward under verl"):
        asyncio.run(_managed(config, tokenizer, "2"))
