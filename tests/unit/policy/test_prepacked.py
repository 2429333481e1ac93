"""Prepacked weights against products with the weights as they are, and against the model's own forward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from small_models import random_model

from gtpo_cli.kernels.logprobs import factor_dtype
from gtpo_cli.policy import prepacked as module
from gtpo_cli.policy.prepacked import prepack, prepacked
from gtpo_cli.policy.transformers_policy import TransformersPolicy

# not every processor multiplies bfloat16
DTYPES = [each for each in (torch.float32, torch.bfloat16) if factor_dtype(each, torch.device("cpu")) == each]
IDS = torch.tensor([[1, 20, 21, 22, 5], [1, 30, 31, 32, 5]])


@pytest.fixture(autouse=True)
def _small_layers_are_prepacked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gtpo_cli.policy.prepacked._LEAST", 1)
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [None, torch.randn(33)])
def test_a_product_is_that_of_the_weights_as_they_are(dtype: torch.dtype, bias: Any) -> None:
    weight, x = torch.randn(33, 70), torch.randn(4, 3, 70)
    expected = torch.nn.functional.linear(
        x.to(dtype).double(), weight.to(dtype).double(), None if bias is None else bias.to(dtype).double()
    )
    found = prepack(weight, bias, dtype=dtype, rows=12)(x)
    assert found.dtype == dtype
    error = torch.finfo(dtype).eps  # of a rounded sum
    torch.testing.assert_close(found.double(), expected, rtol=error, atol=1e-5 if dtype == torch.float32 else 0.05)


def policy_with_adapter(dtype: torch.dtype) -> TransformersPolicy:
    model, tokenizer = random_model("qwen2")  # whose layers have biases
    model = get_peft_model(model.to(dtype), LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return TransformersPolicy(model.eval(), tokenizer, temperature=1.0, max_seq_length=64, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_the_copy_computes_what_the_model_does_with_and_without_its_adapter(dtype: torch.dtype) -> None:
    policy = policy_with_adapter(dtype)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    own = policy.backbone(input_ids=IDS).last_hidden_state
    backbone, head = prepacked(policy, 8)
    assert backbone is not policy.backbone
    bounds = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.1}
    torch.testing.assert_close(backbone(input_ids=IDS).last_hidden_state, own, **bounds)
    logits = torch.nn.functional.linear(own, policy.lm_head[0])
    torch.testing.assert_close(head(own), logits, **bounds)
    with policy.model.disable_adapter():
        base = policy.backbone(input_ids=IDS).last_hidden_state
        without = prepacked(policy, 8)[0](input_ids=IDS).last_hidden_state
    torch.testing.assert_close(without, base, **bounds)
    assert (own - base).abs().max() > 1.0
    # the model itself is as it was, and the copy holds its weights, not others
    assert torch.equal(policy.backbone(input_ids=IDS).last_hidden_state, own)
    assert all(torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())
    assert {p.data_ptr() for p in backbone.parameters()} == {p.data_ptr() for p in policy.backbone.parameters()}


@pytest.mark.skipif(torch.bfloat16 not in DTYPES, reason="this processor does not multiply bfloat16")
@torch.no_grad()
def test_rounding_in_bfloat16_is_the_policys_own_and_not_that_of_merged_weights() -> None:
    """The mean |difference| of log-probabilities from the model's forward, which trains."""
    policy = policy_with_adapter(torch.bfloat16)
    ids, weight = torch.randint(8, 100, (16, 60)), policy.lm_head[0].float()

    def logp(backbone: Any) -> torch.Tensor:
        return (backbone(input_ids=ids).last_hidden_state.float() @ weight.T).log_softmax(dim=-1)

    own, ours = logp(policy.backbone), logp(prepacked(policy, 8)[0])
    merged = logp(copy.deepcopy(policy.model).merge_and_unload().get_decoder())
    assert (ours - own).abs().mean() < 0.6 * (merged - own).abs().mean()


@torch.no_grad()
def test_a_large_model_and_one_of_small_layers_multiply_their_weights_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = policy_with_adapter(torch.float32)
    for name, limit in (("_LEAST", 1 << 16), ("_MOST_BYTES", 1000)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, limit)
            backbone, head = prepacked(policy, 8)
        assert backbone is policy.backbone
    hidden = torch.randn(3, policy.lm_head[0].shape[1])
    assert torch.equal(head(hidden), torch.nn.functional.linear(hidden, policy.lm_head[0]))
