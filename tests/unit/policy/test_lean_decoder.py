"""The lean decoder against the model's own forward and cache, step by step. Real models with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import policy_of
from small_models import BUILTIN_SHAPE, random_model

from gtpo_cli.policy.decoder import LeanDecoder, ModelDecoder, can_decode
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler, draw, open_decoder, uniform
from gtpo_cli.recipe import build_recipe

PROMPTS = [(1, 4, 20, 21, 5), (1, 4, 30, 31, 32, 33, 34, 5)]


def random_policy(architecture: str, **changes: Any) -> TransformersPolicy:
    model, tokenizer = random_model(architecture, **changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))  # as made they are 1 and 0, which hides mistakes
    return TransformersPolicy(model.eval(), tokenizer, temperature=1.0, max_seq_length=200)


def adapted(**lora: Any) -> Any:
    """The built-in model with an adapter that changes it."""
    recipe = {"model": {"name": "builtin:tiny", "lora": {"rank": 4, "alpha": 8} | lora}, "data": {"benchmark": "gsm8k"}}
    policy: Any = policy_of(build_recipe(recipe, where="test"))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    policy.model.eval()
    return policy


@torch.no_grad()
def assert_same_logits(policy: Any, prompts: list[tuple[int, ...]], *, n: int = 3, steps: int = 90) -> None:
    """Both decoders fed the same random tokens, rows dropped on the way; 90 steps make the cache grow."""
    lean, model = LeanDecoder(policy, prompts, n), ModelDecoder(policy, prompts, n)
    generator = torch.Generator().manual_seed(1)
    rows = n * len(prompts)
    for step in range(steps):
        expected = model.logits()
        assert (lean.logits() - expected).norm() <= 1e-5 * expected.norm()
        if step in (20, 75):
            keep = torch.rand(rows, generator=generator) < 0.7
            keep[0] = True
            rows = int(keep.sum())
            lean.select(keep)
            model.select(keep)
        token = torch.randint(8, 100, (rows,), generator=generator)
        lean.advance(token)
        model.advance(token)
    assert rows < n * len(prompts)


@pytest.mark.parametrize("padded", [False, True])
def test_logits_are_the_models_at_every_step(padded: bool) -> None:
    other_size = {"num_hidden_layers": 2, "hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 5}
    for size in ({}, other_size | {"head_dim": 12, "vocab_size": 200, "max_position_embeddings": 512}):
        policy = random_policy("llama", **BUILTIN_SHAPE | size)
        assert can_decode(policy)
        assert_same_logits(policy, PROMPTS if padded else PROMPTS[:1] * 2)


def test_adapters_count_only_while_they_are_on() -> None:
    policy = adapted()
    assert can_decode(policy)
    assert_same_logits(policy, PROMPTS, n=2)
    with torch.no_grad():
        adapter = LeanDecoder(policy, PROMPTS, 1).logits()
        with policy.model.disable_adapter():
            assert_same_logits(policy, PROMPTS, n=2)
            assert (LeanDecoder(policy, PROMPTS, 1).logits() - adapter).abs().max() > 0.1


def test_weights_are_read_anew_for_every_call() -> None:
    policy = random_policy("llama", **BUILTIN_SHAPE)
    assert can_decode(policy)
    sampler = TransformersSampler(policy)
    params = SamplingParams(max_completion_tokens=20, seed=1)
    before = sampler.sample(PROMPTS, 4, params)
    with torch.no_grad():
        policy.backbone.layers[1].mlp.down_proj.weight.mul_(-1.0)
    changed = sampler.sample(PROMPTS, 4, params)
    expected = TransformersSampler(policy, decoder=ModelDecoder).sample(PROMPTS, 4, params)
    assert [c.token_ids for row in changed for c in row] == [c.token_ids for row in expected for c in row]
    assert changed != before


def builtin(name: str = "builtin:tiny", **model: Any) -> Any:
    return policy_of(build_recipe({"model": {"name": name} | model, "data": {"benchmark": "gsm8k"}}, where="test"))


def test_other_models_go_through_their_own_forward(tmp_path: Path) -> None:
    for name in ("builtin:tiny", "builtin:weak"):
        assert isinstance(open_decoder(builtin(name), PROMPTS, 1), LeanDecoder)
    builtin().save(tmp_path / "trained")
    assert can_decode(builtin(str(tmp_path / "trained"), load_in_4bit=False, lora=None))  # a run that went on from it
    assert can_decode(random_policy("llama", **BUILTIN_SHAPE))
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    for policy in (
        random_policy("llama"),
        random_policy("llama", **BUILTIN_SHAPE | {"num_key_value_heads": 1}),
        random_policy("llama", **BUILTIN_SHAPE, hidden_act="gelu"),
        random_policy("llama", **BUILTIN_SHAPE, rope_parameters=dynamic),
        random_policy("llama", **BUILTIN_SHAPE, attention_bias=True),
        random_policy("qwen2", **BUILTIN_SHAPE),
        builtin(dtype="bfloat16"),
    ):
        assert not can_decode(policy)
        assert isinstance(open_decoder(policy, PROMPTS, 1), ModelDecoder)


def test_four_bit_weights_go_through_the_model(tmp_path: Any) -> None:
    pytest.importorskip("bitsandbytes", reason="4-bit weights need the extra bnb")
    recipe = {"model": {"name": "builtin:tiny", "lora": {"rank": 4, "alpha": 8}, "load_in_4bit": True},
              "data": {"benchmark": "gsm8k"}}  # fmt: skip
    policy: Any = policy_of(build_recipe(recipe, where="test"))
    assert not can_decode(policy)


def test_draw_follows_its_weights_and_never_takes_what_has_none() -> None:
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 0.5, 0.0]).expand(40_000, 6)
    drawn = draw(weights, uniform(40_000, torch.Generator().manual_seed(1)))
    counts = torch.bincount(drawn, minlength=6).double()
    assert counts[[0, 2, 5]].sum() == 0
    expected = 40_000 * weights[0].double() / 4.5
    assert ((counts - expected)[[1, 3, 4]].square() / expected[[1, 3, 4]]).sum() < 13.8  # chi-square, 2 df, p = 0.001


def test_a_row_at_the_end_of_the_context_stays_in_the_batch_while_others_go_on() -> None:
    """One long prompt among eight short ones: its row ends first, and is dropped only with a quarter of them."""
    policy = random_policy("llama", **BUILTIN_SHAPE)
    policy.max_seq_length = 64
    assert can_decode(policy)
    prompts = [PROMPTS[0]] * 8 + [tuple(range(8, 68))]
    params = SamplingParams(max_completion_tokens=50, seed=3)
    policy.eos_token_ids = frozenset()
    rows = TransformersSampler(policy).sample(prompts, 1, params)
    assert [len(row[0].token_ids) for row in rows] == [50] * 8 + [4]
    plain = TransformersSampler(policy, decoder=ModelDecoder).sample(prompts, 1, params)
    assert [row[0].token_ids for row in rows] == [row[0].token_ids for row in plain]
