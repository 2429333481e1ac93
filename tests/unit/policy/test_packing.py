"""Packed rows against one plain forward pass for each completion."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from policy_contract import plain_logprobs, ragged_rows
from small_models import random_model, tiny_tokenizer
from torch import Tensor

from gtpo_cli.objective import Rows
from gtpo_cli.policy.packing import _attend, pack, use_packed_attention
from gtpo_cli.policy.sampler import collate
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.types import Completion, Group, Problem


def rows_of(prompts: list[tuple[int, ...]], lengths: list[tuple[int, ...]]) -> Rows:
    """Completions of these lengths, of consecutive ids from 20."""
    groups = []
    for prompt, row in zip(prompts, lengths, strict=True):
        completions = tuple(Completion(tuple(range(20, 20 + n)), (0.0,) * n, "stop", "") for n in row)
        groups.append(Group(Problem("p", "q", "1"), prompt, completions))
    return collate(groups)


def model_of(architecture: str) -> Any:
    if architecture in ("llama", "qwen2"):
        return random_model(architecture)[0]
    from transformers import MistralConfig, MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM

    settings = {
        "vocab_size": len(tiny_tokenizer()), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
        "initializer_range": 0.2, "eos_token_id": 2,
    }  # fmt: skip
    torch.manual_seed(0)
    if architecture == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**settings))
    return MistralForCausalLM(MistralConfig(sliding_window=None, **settings))


def test_a_row_by_hand() -> None:
    """Prompts (1 4 5) and (1 6); completions of 3, 1 and 0 tokens, and of 2, 0 and 0. Last tokens are not fed."""
    packed = pack(rows_of([(1, 4, 5), (1, 6)], [(3, 1, 0), (2, 0, 0)]), dtype=torch.float32)
    assert packed.ids_N.tolist() == [1, 4, 5, 1, 6, 20, 21, 20]
    assert packed.positions_N.tolist() == [0, 1, 2, 0, 1, 3, 4, 2]
    assert packed.prompt_places_BP.tolist() == [[0, 1, 2], [3, 4, 0]]
    assert packed.completion_places_RT.tolist() == [[5, 6], [7, 0]]
    assert packed.prompt_of_R.tolist() == [0, 1]
    # of the rectangles [0 1 2 | 3 4 5] and [6 7 | 8 9], 5 and 9 are padding
    assert packed.unpack_N.tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
    assert packed.predictors_M.tolist() == [2, 5, 6, 2, 4, 7]
    may_look = (packed.mask_R1TK == 0)[:, 0].int().tolist()
    assert may_look == [[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], [[1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]]


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_architecture_gives_what_single_rows_give(architecture: str, checkpointing: bool) -> None:
    model = model_of(architecture).double()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    batch, parameters = ragged_rows(), list(model.parameters())
    expected, _ = plain_logprobs(model, batch, 0.8)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view(expected.shape)
    exact = torch.autograd.grad((expected * weights).sum(), parameters)
    policy = TransformersPolicy(model, tiny_tokenizer(), temperature=0.8, max_seq_length=64)
    assert policy.packs
    logp, _ = policy.token_logprobs(batch)
    # Not closer: normalisation and rotary angles are in float32 whatever the model's type.
    torch.testing.assert_close(logp, expected, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(torch.autograd.grad((logp * weights).sum(), parameters), exact, strict=True):
        assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


def test_a_packed_forward_sees_every_real_token_once() -> None:
    """Two prompts of 5 and 8 tokens, completions of 9, 1, 4 and 2, 0, 7 tokens, less the last of each."""
    model, tokenizer = random_model()
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=64)
    seen: list[tuple[int, ...]] = []
    policy.backbone.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    policy.token_logprobs(ragged_rows())
    assert seen == [(1, 5 + 8 + (9 + 1 + 4 + 2 + 7) - 5)]


def test_a_model_that_cannot_be_packed_is_padded_to_the_same_values() -> None:
    from transformers import MistralForCausalLM

    model = model_of("mistral").double()
    model.config.sliding_window = 8  # shorter than the longest row of 17
    policy = TransformersPolicy(model, tiny_tokenizer(), temperature=1.0, max_seq_length=64)
    assert isinstance(policy.model, MistralForCausalLM)
    assert not policy.packs
    expected, _ = plain_logprobs(model, ragged_rows(), 1.0)
    torch.testing.assert_close(policy.token_logprobs(ragged_rows())[0], expected, rtol=1e-6, atol=1e-6)


def test_heads_that_share_keys_get_no_copies_of_them_on_a_cpu_and_attend_the_same(monkeypatch: Any) -> None:
    from transformers.integrations import sdpa_attention

    model = random_model()[0]
    ids, mask = torch.randint(8, 100, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    expected = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    use_packed_attention(model)
    monkeypatch.setattr(sdpa_attention, "repeat_kv", lambda *_: pytest.fail("keys and values were copied"))
    assert torch.equal(model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state, expected)


# -- attention on a CPU ------------------------------------------------------------------------------------------------

MODULE = SimpleNamespace(num_key_value_groups=3, is_causal=True)


def attention_case(T: int, dtype: torch.dtype, *, masked: bool = True) -> tuple[list[Tensor], Tensor | None]:
    """Queries, keys and values of 4 rows, 6 heads of which three share keys, 16 wide; 9 places before the queries."""
    generator = torch.Generator().manual_seed(T)
    shapes = [(4, 6, T, 16), (4, 2, 9 + T, 16), (4, 2, 9 + T, 16)]
    states = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    hidden = torch.arange(9 + T) > torch.arange(9, 9 + T)[:, None]
    mask = torch.zeros(4, 1, T, 9 + T, dtype=dtype).masked_fill(hidden, float("-inf"))
    mask[1, ..., :5] = float("-inf")  # padding of a shorter prompt
    return states, mask if masked else None


def exact_attention(states: list[Tensor], mask: Tensor | None) -> Tensor:
    query, key, value = (state.double() for state in states)
    key, value = key.repeat_interleave(3, dim=1), value.repeat_interleave(3, dim=1)
    scores = query @ key.transpose(2, 3) / 4
    weights = (scores if mask is None else scores + mask.double()).softmax(dim=-1)
    return (weights @ value).transpose(1, 2)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_a_token_is_decoded_with_heads_that_share_keys_as_rows(dtype: torch.dtype, bound: float, masked: bool) -> None:
    states, mask = attention_case(1, dtype, masked=masked)
    found = _attend(MODULE, *states, mask, scaling=0.25)
    torch.testing.assert_close(found.double(), exact_attention(states, mask), rtol=bound, atol=bound)


@pytest.mark.parametrize("autocast", [True, False])
def test_few_scores_in_16_bits_are_products_as_exact_as_torchs_kernel(monkeypatch: Any, autocast: bool) -> None:
    """Values and gradients against float64 on the same rounded inputs. Under autocast queries and keys have 32 bits."""
    states, mask = attention_case(7, torch.bfloat16)
    assert mask is not None
    if autocast:
        states[:2] = [state.detach().float().requires_grad_() for state in states[:2]]
    send = torch.randn(4, 7, 6, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    truth = exact_attention(states, mask)
    exact = [truth, *torch.autograd.grad(truth, states, send.double())]

    def errors(few: int) -> list[float]:
        monkeypatch.setattr("gtpo_cli.policy.packing._FEW_SCORES", few)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = _attend(MODULE, *states, mask, scaling=0.25)
        assert out.dtype == torch.bfloat16
        found = [out, *torch.autograd.grad(out, states, send)]
        return [float(((a.double() - b).norm() / b.norm()).detach()) for a, b in zip(found, exact, strict=True)]

    kernel, products = errors(0), errors(7 * 16)
    assert products != kernel
    assert all(ours < 1.3 * theirs for ours, theirs in zip(products, kernel, strict=True))


def test_attention_dropout_is_not_lost_where_scores_are_few() -> None:
    """SFT trains with a model's own."""
    states, mask = attention_case(7, torch.bfloat16)
    kept, dropped = (_attend(MODULE, *states, mask, scaling=0.25, dropout=rate) for rate in (0.0, 0.9))
    assert float((dropped == 0).float().mean()) > 0.1
    assert not bool((kept == 0).any())
