"""The most tokens of a row: a row's log-probabilities must not depend on which rows share its batch."""

from __future__ import annotations

from typing import Any

import torch
from small_models import tiny_tokenizer

from gtpo_cli.policy.sampler import collate
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.types import Completion, Group, Problem

ORIGINAL = 24


def longrope_model() -> Any:
    """A small Phi-3: up to 24 tokens it has other frequencies than beyond."""
    from transformers import Phi3Config, Phi3ForCausalLM

    tokenizer = tiny_tokenizer()
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "rope_theta": 10000.0,
            "original_max_position_embeddings": ORIGINAL}  # fmt: skip
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96, original_max_position_embeddings=ORIGINAL,
        rope_parameters=rope, pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    return Phi3ForCausalLM(config), tokenizer


def rows_of(*lengths: int) -> Any:
    groups = []
    for number, length in enumerate(lengths):
        ids = tuple(5 + (7 * place + number) % 60 for place in range(length))
        groups.append(Group(Problem(str(number), "q", "1"), (1, 4, 9), (Completion(ids, (0.0,) * length, "stop", ""),)))
    return collate(groups)


@torch.no_grad()
def test_longrope_rows_do_not_depend_on_their_batch_mates() -> None:
    model, tokenizer = longrope_model()
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=80)
    assert policy.max_seq_length == ORIGINAL
    alone = policy.token_logprobs(rows_of(10))[0][0, :10]
    together = policy.token_logprobs(rows_of(10, policy.max_seq_length - 3))[0][0, :10]
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    beyond = policy.token_logprobs(rows_of(10, policy.max_seq_length - 1))[0][0, :10]  # two tokens too long
    assert float((beyond - alone).abs().max()) > 0.01


def rope(kind: str) -> dict[str, Any]:
    return {"rope_type": kind, "original_max_position_embeddings": ORIGINAL}
