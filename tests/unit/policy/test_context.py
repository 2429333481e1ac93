"""The most tokens of a row: a row's log-probabilities must not depend on which rows share its batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from small_models import tiny_tokenizer

from gtpo_cli.policy.decoder import ModelDecoder
from gtpo_cli.policy.loading import bounded_context
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


@torch.no_grad()
def test_a_finished_row_at_the_end_of_the_context_changes_no_other() -> None:
    """Finished rows stay in the batch for a while."""
    model, tokenizer = longrope_model()
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=80)
    long, short = tuple(range(5, 5 + ORIGINAL - 2)), (1, 4, 9)
    decoders = [ModelDecoder(policy, prompts, 1) for prompts in ([short], [short, long])]
    for token in range(5, 15):  # the long row ends after two of them
        for decoder, rows in zip(decoders, (1, 2), strict=True):
            decoder.advance(torch.full((rows,), token))
    alone, together = (decoder.logits()[0] for decoder in decoders)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_the_context_of_a_composite_model_is_that_of_its_text() -> None:
    text = {"max_position_embeddings": 32, "rope_parameters": rope("longrope") | {"long_factor": [1.0]}}
    both = SimpleNamespace(get_text_config=lambda: SimpleNamespace(**text))
    assert bounded_context(both, 80) == ORIGINAL


def rope(kind: str) -> dict[str, Any]:
    return {"rope_type": kind, "original_max_position_embeddings": ORIGINAL}
