"""Streaming: the same tokens as the definition and the sampler give, and text that is whole. Real models."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import policy_of
from sampler_contract import text_without_frame
from small_models import random_model

from gtpo_cli.errors import GenerationError
from gtpo_cli.evaluation.session import TextPieces, stream_text
from gtpo_cli.policy import Policy
from gtpo_cli.policy.decoder import ModelDecoder
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import build_recipe
from gtpo_cli.types import Completion

PROMPT = (1, 4, 20, 21, 5)


def random_policy(architecture: str = "llama", *, max_seq_length: int = 256, **changes: Any) -> TransformersPolicy:
    model, tokenizer = random_model(architecture, **changes)
    return TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=max_seq_length)


def builtin(lora: dict[str, Any] | None = None) -> Policy:
    """The built-in model; with `lora`, wrapped by PEFT, its adapter moved away from zero."""
    recipe = {"model": {"name": "builtin:tiny", "lora": lora}, "data": {"benchmark": "gsm8k"}}
    policy = policy_of(build_recipe(recipe, where="test"))
    if lora:
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in policy.trainable_parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return policy


def read(stream: Generator[str, None, Completion]) -> tuple[list[str], Completion]:
    pieces: list[str] = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            completion: Completion = end.value
            return pieces, completion


@torch.no_grad()
def greedy_by_definition(policy: TransformersPolicy, prompt: tuple[int, ...], count: int) -> list[int]:
    """The whole text through the model for each token, without a cache; ends behind an end-of-sequence token."""
    policy.model.eval()
    ids = list(prompt)
    while len(ids) < len(prompt) + count and (len(ids) == len(prompt) or ids[-1] not in policy.eos_token_ids):
        ids.append(int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_greedy_is_the_argmax_of_every_step(architecture: str) -> None:
    policy = random_policy(architecture)
    expected = greedy_by_definition(policy, PROMPT, 40)
    pieces, completion = read(stream_text(policy, PROMPT, SamplingParams(0.0, max_completion_tokens=40)))
    assert list(completion.token_ids) == expected
    assert "".join(pieces) == completion.text == text_without_frame(policy, expected)


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}], ids=["plain", "adapter"])
def test_the_built_in_model_with_and_without_an_adapter(lora: dict[str, Any] | None) -> None:
    policy = builtin(lora)
    assert isinstance(policy, TransformersPolicy)
    for question in ("3+8-2+5", "9-9+9-1"):
        prompt = tuple(policy.tokenizer(f"<s><user>{question}<assistant>", add_special_tokens=False)["input_ids"])
        expected = greedy_by_definition(policy, prompt, 60)
        policy.model.train()  # as training leaves it: dropout must play no part
        pieces, completion = read(stream_text(policy, prompt, SamplingParams(0.0, max_completion_tokens=60)))
        assert list(completion.token_ids) == expected
        # one token a character and one a tag's name: every token but the end is a piece
        assert pieces == [policy.tokenizer.decode([i]) for i in expected if i != policy.tokenizer.eos_token_id]


def test_equal_seeds_repeat_others_do_not_and_global_random_state_is_untouched() -> None:
    policy = random_policy()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (read(stream_text(policy, PROMPT, SamplingParams(seed=s))) for s in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_token_is_given_out_before_the_next_is_computed_and_closing_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gtpo_cli.evaluation.session.open_decoder", ModelDecoder)  # which runs the hooks of the model
    policy = random_policy()
    forwards: list[bool] = []
    hook = policy.backbone.register_forward_pre_hook(lambda *_: forwards.append(torch.is_grad_enabled()))
    stream = stream_text(policy, PROMPT, SamplingParams(0.0, max_completion_tokens=50))
    for number, _ in enumerate(islice(stream, 5), start=1):
        assert len(forwards) == number  # this model's tokens are a character each
        assert torch.is_grad_enabled()  # the reader's own computations are not touched
    stream.close()
    hook.remove()
    assert forwards == [False] * 5  # no graph is kept for a backward pass that never comes
    assert list(stream) == []


def test_prompts_without_room_and_broken_weights_are_errors() -> None:
    policy = random_policy(max_seq_length=len(PROMPT))
    with pytest.raises(GenerationError, match="5 tokens, which leaves no room within 5; ask a shorter question"):
        next(stream_text(policy, PROMPT, SamplingParams()))
    with pytest.raises(GenerationError, match="the prompt is empty"):
        next(stream_text(policy, (), SamplingParams()))
    broken = random_policy()
    with torch.no_grad():
        broken.model.get_output_embeddings().weight[3] = float("nan")
    for temperature in (0.0, 1.0):
        with pytest.raises(GenerationError, match="not finite"):
            next(stream_text(broken, PROMPT, SamplingParams(temperature)))


# -- text ------------------------------------------------------------------------------------------------------------


def wrapped(tokenizer: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", clean_up_tokenization_spaces=False)


@functools.cache
def byte_level() -> Any:
    """One token a byte, as in the tokenizers of LLaMA 3 and Qwen where they merge nothing."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(("</s>", *alphabet))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return wrapped(tokenizer)


@functools.cache
def byte_fallback() -> Any:
    """As SentencePiece has it (LLaMA 2): spaces are ▁, the first is dropped, unknown characters are byte tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = ["</s>", "▁", "▁a", "a", "b", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("▁", "a")]
    model = models.BPE({token: i for i, token in enumerate(tokens)}, merges, byte_fallback=True, unk_token=None)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return wrapped(tokenizer)


def pieces_of(tokenizer: Any, ids: list[int]) -> list[str]:
    pieces = TextPieces(tokenizer, ())
    return [*(pieces.add(token) for token in ids), pieces.rest()]


def test_a_character_of_several_tokens_comes_when_it_is_whole() -> None:
    tokenizer = byte_level()
    ids = tokenizer("aé€🙂b", add_special_tokens=False)["input_ids"]
    assert len(ids) == 1 + 2 + 3 + 4 + 1
    assert pieces_of(tokenizer, ids) == ["a", "", "é", "", "", "€", "", "", "", "🙂", "b", ""]


def test_the_text_of_a_stream_is_whole_when_the_limit_cuts_a_character() -> None:
    tokenizer = byte_level()
    model, _ = random_model(vocab_size=len(tokenizer))
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=256)
    cut = 0
    for seed in range(20):
        pieces, completion = read(stream_text(policy, PROMPT, SamplingParams(max_completion_tokens=9, seed=seed)))
        assert "".join(pieces) == completion.text == text_without_frame(policy, completion.token_ids)
        cut += completion.text.endswith("\ufffd")
    assert cut > 3


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@given(text=st.text(max_size=30), end=st.booleans())
@settings(max_examples=200, deadline=None)
def test_pieces_of_any_text_join_to_the_text(make: Callable[[], Any], text: str, end: bool) -> None:
    tokenizer = make()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] * end
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)
    assert all("\ufffd" not in piece or "\ufffd" in text for piece in pieces)


@pytest.mark.parametrize("name", ["tokenizers/llama-3.1", "tokenizers/qwen2.5", "stories260k"])
def test_pieces_of_real_tokenizers(shared: Path, name: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / name)
    text = "Es kostet 3 € - naïve , isn't it ?\n 一二三 🙂👩‍👩‍👧  <answer>\\frac{1}{2}</answer> मानक .  "
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert sum(bool(piece) for piece in pieces) > len(ids) / 2  # it streams
    rng = random.Random(0)
    if name.startswith("tokenizers/"):  # any tokens in any order, bytes without sense among them
        for _ in range(50):
            ids = [rng.randrange(128_000) for _ in range(60)]
            assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)
