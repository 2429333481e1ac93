"""After the first update the policy is held against the plain forward of the model that is saved: real runs."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import comparable, contents
from jobs import policy_of
from policy_contract import PROMPTS, plain_logprobs, ragged_rows, save_model, train_a_little
from small_models import random_model
from test_step import ForeignSampler

from gtpo_cli.errors import ModelError
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy import Policy, transformers_policy
from gtpo_cli.policy import sampler as generation
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.training import loop
from gtpo_cli.training.loop import train
from gtpo_cli.training.trials import check_plain_forward
from gtpo_cli.types import Problem

ASKED = [(Problem(str(number), "q", "1"), ids) for number, ids in enumerate(PROMPTS)]


def recipe_for(folder: str | Path, *overrides: str, **model: Any) -> Recipe:
    settings = {"name": str(folder), "load_in_4bit": False, "gradient_checkpointing": False, "max_seq_length": 128}
    document = {
        "model": settings | {"lora": {"rank": 4, "alpha": 8}} | model,
        "data": {"benchmark": "arithmetic", "max_prompt_tokens": 64, "limit": 16, "system_prompt": None},
        "rollout": {"group_size": 4, "prompts_per_step": 2, "max_completion_tokens": 48},
        "objective": {"probe": {"num_prompts": 2}},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3, "warmup_ratio": 0.0},
        "training": {"max_steps": 2, "save_every": 1},
        "tracking": {"wandb": {"mode": "off"}},
    }
    return build_recipe(document, overrides, where="test")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("lora", [{"rank": 4, "alpha": 8}, None], ids=["adapter", "all weights"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_sound_policy_passes_and_stays_as_it_is(architecture: str, lora: Any, dtype: str, tmp_path: Path) -> None:
    base = save_model(tmp_path / "base", architecture)
    policy: Any = policy_of(recipe_for(base, "rollout.temperature=0.7", lora=lora, dtype=dtype))
    if dtype == "float32":
        train_a_little(policy)
    for parameter in policy.trainable_parameters():
        parameter.grad = torch.ones_like(parameter)
    weights = [parameter.detach().clone() for parameter in policy.model.parameters()]
    state = torch.get_rng_state()
    for as_in_training in (True, False):
        check_plain_forward(policy, ASKED, as_in_training=as_in_training)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(bool((parameter.grad == 1).all()) for parameter in policy.trainable_parameters())
    assert all(torch.equal(a, b) for a, b in zip(weights, policy.model.parameters(), strict=True))


def test_4_bit_bases_unpacked_models_long_prompts_and_barred_tokens_pass(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="4-bit weights need the extra bnb")
    base = save_model(tmp_path / "base")
    for dtype in ("float32", "bfloat16"):
        check_plain_forward(policy_of(recipe_for(base, load_in_4bit=True, dtype=dtype)), ASKED, as_in_training=True)
    model, tokenizer = random_model(sliding_window=8, use_sliding_window=True, architecture="qwen2")
    window = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=20)
    assert not window.packs
    check_plain_forward(window, [(ASKED[0][0], tuple(range(5, 100)))], as_in_training=True)
    check_plain_forward(window, [(ASKED[0][0], (7,))], as_in_training=True)
    bars = torch.zeros(model.config.vocab_size)
    bars[5:40] = -math.inf
    model.lm_head.bias = torch.nn.Parameter(bars)
    barred = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=64)
    check_plain_forward(barred, ASKED, as_in_training=True)


def with_a_trained_head(policy: Any) -> None:
    """An adapter on the output layer, which log-probabilities without logits would leave out."""
    for name, parameter in policy.model.named_parameters():
        if "lm_head.lora_B" in name:
            parameter.data.normal_(generator=torch.Generator().manual_seed(0))


def test_it_finds_an_adapter_that_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal of such adapters taken away: the difference that the check tells is the one computed by hand."""
    monkeypatch.setattr(transformers_policy, "check_adapted", lambda model: None)
    base = save_model(tmp_path / "base")
    lora = {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "lm_head"]}
    policy: Any = policy_of(recipe_for(base, lora=lora, dtype="float32"))
    check_plain_forward(policy, ASKED, as_in_training=True)  # as it is made it changes nothing
    with_a_trained_head(policy)
    with pytest.raises(ModelError, match=r"more than rounding explains \(0\.005\): training skips a part") as caught:
        check_plain_forward(policy, ASKED, as_in_training=True)
    ids = PROMPTS[1]
    rows = [ids, ids[:5]]
    gaps: list[float] = []
    for row in rows:
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([[*ids, *row]])).logits[0, len(ids) - 1 : -1].double()
            with policy.model.disable_adapter():  # q_proj's adapter is as it was made
                base_logits = policy.model(input_ids=torch.tensor([[*ids, *row]])).logits[0, len(ids) - 1 : -1].double()
        token = torch.tensor(row)[:, None]
        gap = logits.log_softmax(-1).gather(1, token) - base_logits.log_softmax(-1).gather(1, token)
        gaps += gap.abs()[:, 0].tolist()
    assert f"differ by {sum(gaps) / len(gaps):.2g} nats on average" in str(caught.value)
    found, _ = plain_logprobs(policy.model, ragged_rows(), 1.0)
    assert (policy.token_logprobs(ragged_rows())[0].double() - found).abs().max() > 0.1


def louder_head(policy: Any) -> None:
    """Something that happens after the output layer, put there after the model was looked at."""
    head = policy.model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: 1.2 * output)


def noise_in_training(policy: Any) -> None:
    """What draws at random and calls itself otherwise than dropout, such as a router's jitter."""
    policy.backbone.norm.register_forward_hook(
        lambda module, inputs, output: output + 0.3 * torch.randn_like(output) if module.training else output
    )


@pytest.mark.parametrize(
    ("objective", "spoil", "fires"),
    [("gtpo", louder_head, "the model's plain forward"), ("sft", louder_head, "the model that would be saved"),
     ("gtpo", noise_in_training, "the sampler's"), ("sft", noise_in_training, None)],
)  # fmt: skip
def test_a_run_ends_at_its_first_update_and_saves_nothing(
    objective: str, spoil: Callable[[Any], None], fires: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    recipe = recipe_for("builtin:tiny", f"objective.name={objective}")
    run.create(recipe)
    set_up = loop.set_up

    def spoiled(*args: Any, **kwargs: Any) -> Any:
        setup = set_up(*args, **kwargs)
        spoil(setup.policy)
        return setup

    monkeypatch.setattr(loop, "set_up", spoiled)
    if fires is None:
        assert train(Parts(recipe).training_job(), run, quiet=True).step == 2
        return
    with pytest.raises(ModelError, match=fires):
        train(Parts(recipe).training_job(), run, quiet=True)
    assert not list(run.checkpoints.glob("step-*"))
    assert not run.metrics_file.exists() or run.metrics_file.read_text() == ""


@pytest.mark.parametrize("begins_right", [False, True])
def test_a_sampler_of_another_model_ends_the_run_before_its_first_update(
    begins_right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start and after a resume, unless the recipe weighs tokens by the difference."""
    for correction in ("none", "truncated"):
        run = RunFolder(tmp_path / correction)
        recipe = recipe_for("builtin:tiny", f"rollout.importance_correction={correction}")
        run.create(recipe)
        if begins_right:
            train(Parts(recipe.with_values({"training.max_steps": 1})).training_job(), run, quiet=True)
        with monkeypatch.context() as patch:
            patch.setitem(generation.SAMPLERS, "transformers", lambda policy, job, warn: ForeignSampler(policy))
            if correction == "truncated":
                assert train(Parts(recipe).training_job(), run, resume=begins_right, quiet=True).step == 2
                continue
            with pytest.raises(ModelError, match=r"the sampler's log-probabilities differ .* by 0\.\d+ nats"):
                train(Parts(recipe).training_job(), run, resume=begins_right, quiet=True)
        assert run.metrics_file.read_text().count("\n") == begins_right


class StaleSampler(TransformersSampler):
    """Keeps the weights with which it was built, like a server that does not take new ones."""

    def __init__(self, policy: TransformersPolicy) -> None:
        super().__init__(copy.deepcopy(policy))

    def sync(self, policy: Policy) -> None:
        pass


def test_a_sampler_that_does_not_take_new_weights_ends_the_run_when_they_have_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    recipe = recipe_for("builtin:tiny", "training.max_steps=3", "training.save_every=3", "optimizer.learning_rate=0.02")
    run.create(recipe)
    with monkeypatch.context() as patch:
        patch.setitem(generation.SAMPLERS, "transformers", lambda policy, job, warn: StaleSampler(policy))
        with pytest.raises(ModelError, match="the sampler's log-probabilities differ") as caught:
            train(Parts(recipe).training_job(), run, quiet=True)
    assert caught.value.__notes__ == [f"step 1 is saved: gtpo train --resume {run.path}"]
    assert train(Parts(recipe).training_job(), run, resume=True, quiet=True).step == 3


def test_a_resumed_sft_run_with_dropout_equals_the_whole(tmp_path: Path) -> None:
    """What dropout draws follows from the saved states, whether the check was there before or not."""
    for part in random_model(attention_dropout=0.5):
        part.save_pretrained(tmp_path / "model")
    whole, half = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "half")
    whole.create(recipe_for(tmp_path / "model", "objective.name=sft", "training.max_steps=4", lora=None))
    train(Parts(whole.recipe()).training_job(), whole, quiet=True)
    shutil.copytree(whole.path, half.path)
    for step in (3, 4):
        shutil.rmtree(half.checkpoints / f"step-{step:06d}")
    assert train(Parts(half.recipe()).training_job(), half, resume=True, quiet=True).step == 4
    assert comparable(half.path) == comparable(whole.path)
    assert contents(half.path) == contents(whole.path)
