"""examples/verl as verl itself reads it, and the problems and rewards of a recipe in verl's own places."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from verl_batches import EXAMPLE, composed

from gtpo_cli.data import PromptEncoder, load_problems
from gtpo_cli.data.prompts import TEMPLATE_DATE
from gtpo_cli.errors import ModelError, RecipeError, RewardError
from gtpo_cli.models import load_tokenizer
from gtpo_cli.recipe import load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.types import Completion


def test_verl_accepts_the_example_and_it_agrees_with_its_recipe(tmp_path: Path) -> None:
    """hydra refuses a key that verl's configuration does not have; verl then checks its values, and we ours."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    from gtpo_cli.integrations.verl import check_config, recipe_of

    text = (EXAMPLE / "recipe.yaml").read_text()
    assert "initial_entropy: null" in text
    (tmp_path / "recipe.yaml").write_text(text.replace("initial_entropy: null", "initial_entropy: 0.4"))
    config = composed(tmp_path / "recipe.yaml")
    recipe = recipe_of(config)
    check_config(config, recipe)
    assert recipe == load_recipe("llama8b_gsm8k", ["objective.initial_entropy=0.4"])

    assert config.trainer.v1.trainer_mode == "gtpo"
    assert config.trainer.use_v1
    actor, rollout, data = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.data
    omega_conf_to_dataclass(actor)
    omega_conf_to_dataclass(rollout)
    assert config.actor_rollout_ref.model.path == recipe.model.name
    assert config.actor_rollout_ref.model.lora_rank == recipe.model.lora.rank
    assert actor.optim.lr == recipe.optimizer.learning_rate
    assert actor.optim.betas == list(recipe.optimizer.betas)
    assert data.max_prompt_length + data.max_response_length == rollout.max_model_len == recipe.model.max_seq_length
    assert data.apply_chat_template_kwargs.date_string == TEMPLATE_DATE
    assert not need_reference_policy(config)
    assert not need_critic(config)
    config.actor_rollout_ref.model.lora_rank = (
        0  # with an adapter, verl asks vLLM for its ranks, and there is none here
    )
    validate_config(config, use_reference_policy=False, use_critic=False)


def test_the_example_as_it_is_asks_for_the_initial_entropy() -> None:
    from gtpo_cli.integrations.verl import recipe_of

    with pytest.raises(RecipeError, match=r"objective\.initial_entropy: null.*gtpo probe-entropy"):
        recipe_of(composed(EXAMPLE / "recipe.yaml"))


def test_the_command_of_the_example_composes_it() -> None:
    comment = re.findall(r"^#   (.*)$", (EXAMPLE / "trainer.yaml").read_text(), re.MULTILINE)
    command = "\n".join(comment).replace("python", shlex.quote(sys.executable), 1) + " --cfg job --package trainer.v1"
    done = subprocess.run(["bash", "-c", command], cwd=EXAMPLE, capture_output=True, text=True)
    assert "trainer_mode: gtpo" in done.stdout, done.stderr


def test_with_a_kl_term_verl_makes_a_reference(configuration: Any) -> None:
    from verl.trainer.ppo.utils import need_reference_policy

    assert need_reference_policy(configuration("objective.kl_coef=0.04"))


def test_hydra_does_refuse_a_key_that_verl_does_not_have() -> None:
    from hydra.errors import ConfigCompositionException

    with pytest.raises(ConfigCompositionException):
        composed(EXAMPLE / "recipe.yaml", "trainer.no_such_key=1")


def dataset_of(config: Any, tokenizer: Any) -> Any:
    """The training problems, as verl's trainer makes them."""
    from verl.trainer.ppo.utils import create_rl_dataset

    return create_rl_dataset(
        config.data.train_files, config.data, tokenizer, None, max_samples=config.data.train_max_samples
    )


def test_verl_s_dataset_gives_the_model_our_prompts(configuration: Any) -> None:
    from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

    config = configuration("data.system_prompt=Answer briefly.")
    recipe = load_recipe(config.gtpo.recipe)
    tokenizer, _ = load_tokenizer(recipe)
    dataset = dataset_of(config, tokenizer)
    builder = ContinuousTokenBuilder(tokenizer, chat_template_kwargs=config.data.apply_chat_template_kwargs)
    problems = load_problems(recipe.data, seed=recipe.seed).problems
    encoder = PromptEncoder(tokenizer, "Answer briefly.")
    assert len(dataset) == len(problems) == 20
    for row, problem in zip(dataset, problems, strict=True):
        assert builder.build_initial_tokens(row["raw_prompt"]) == list(encoder.encode(problem.question))
        assert row["reward_model"]["ground_truth"] == problem.gold

    copied = pickle.loads(pickle.dumps(dataset))  # as verl's data loader is saved and resumed
    copied.resume_dataset_state()
    assert [row["index"] for row in copied] == list(range(20))


def test_the_dataset_leaves_out_what_verl_is_told_to(
    configuration: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": "+".join("1" * count), "answer": str(count)} for count in (2, 3, 4, 9)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = configuration("data.benchmark=local", f"data.path={tmp_path / 'sums.jsonl'}")
    recipe = load_recipe(config.gtpo.recipe)
    tokenizer, _ = load_tokenizer(recipe)
    encoder = PromptEncoder(tokenizer, recipe.data.system_prompt)
    config.data.max_prompt_length = len(encoder.encode(rows[2]["question"]))
    assert [row["extra_info"]["question"] for row in dataset_of(config, tokenizer)] == ["1+1", "1+1+1", "1+1+1+1"]
    assert "1 prompt too long" in capsys.readouterr().out
    config.data.train_max_samples = 2
    assert len(dataset_of(config, tokenizer)) == 2


def test_a_tokenizer_that_verl_would_prompt_otherwise_is_refused(configuration: Any) -> None:
    config = configuration()
    tokenizer, _ = load_tokenizer(load_recipe(config.gtpo.recipe))
    template = tokenizer.chat_template
    tokenizer.chat_template = "{{ date_string }}" + template
    config.data.apply_chat_template_kwargs.date_string = "1 Jan 2025"
    with pytest.raises(ModelError, match=r"verl would give the model \d+ prompt tokens"):
        dataset_of(config, tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match="no chat template"):
        dataset_of(config, tokenizer)


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
        "rewards.accuracy.weight=2", "rewards.plugins=[{name: 'test_verl_example:length', weight: 0.25}]"
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
        assert found["reward_extra_info"]["test_verl_example:length"] == verdict.plugins["test_verl_example:length"]


async def _managed(config: Any, tokenizer: Any, text: str) -> Any:
    """What verl's reward manager, loaded by verl, makes of a response to the data set's first prompt."""
    import numpy as np
    import torch
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    row = dataset_of(config, tokenizer)[0]
    response = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
    data = DataProto.from_dict(
        {"responses": response, "attention_mask": torch.ones_like(response)},
        non_tensors={
            name: np.array([row[name]], dtype=object) for name in ("data_source", "reward_model", "extra_info")
        },
    )
    return await load_reward_manager(config, tokenizer).run_single(data)


def test_a_plug_in_that_wants_more_than_the_text_is_told_so(configuration: Any) -> None:
    config = configuration("rewards.plugins=[{name: 'test_verl_example:tokens'}]")
    tokenizer, _ = load_tokenizer(load_recipe(config.gtpo.recipe))
    with pytest.raises(RewardError, match=r"completion\.token_ids is not known to a reward under verl"):
        asyncio.run(_managed(config, tokenizer, "2"))
