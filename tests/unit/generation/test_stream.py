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
from small_models import random_model

from gtpo_cli.errors import GenerationError
from gtpo_cli.generation import SamplingParams
from gtpo_cli.generation.decoder import ModelDecoder
from gtpo_cli.generation.stream import TextPieces, stream_text
from gtpo_cli.generation.transformers_sampler import TransformersSampler
from gtpo_cli.models import Policy, load_policy
from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import build_recipe
from gtpo_cli.types import Completion

PROMPT = (1, 4, 20, 21, 5)


def policy_of(architecture: str = "llama", *, max_seq_length: int = 256, **changes: Any) -> TransformersPolicy:
    model, tokenizer = random_model(architecture, **changes)
    return TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=max_seq_length)


def builtin(lora: dict[str, Any] | None = None) -> Policy:
    """The built-in model; with `lora`, wrapped by PEFT, its adapter moved away from zero."""
    recipe = {"model": {"name": "builtin:tiny", "lora": lora}, "data": {"benchmark": "gsm8k"}}
    policy = load_policy(build_recipe(recipe, where="test"))
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
    policy = policy_of(architecture)
    expected = greedy_by_definition(policy, PROMPT, 40)
    pieces, completion = read(stream_text(policy, PROMPT, SamplingParams(0.0, max_completion_tokens=40)))
    assert list(completion.token_ids) == expected
    assert "".join(pieces) == completion.text == policy.tokenizer.decode(expected, skip_special_tokens=True)


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


def test_greedy_needs_no_seed() -> None:
    policy = policy_of()
    first, second = (
        read(stream_text(policy, PROMPT, SamplingParams(0.0, seed=seed, max_completion_tokens=20))) for seed in (1, 2)
    )
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.6, 0.7)])
def test_first_tokens_follow_the_distribution(temperature: float, top_p: float) -> None:
    policy = policy_of()
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([PROMPT])).logits[0, -1].double()
    p = torch.softmax(logits / temperature, dim=-1)
    order = p.argsort(descending=True)
    before = p[order].cumsum(0) / p[order].sum() - p[order] / p[order].sum()
    kept = order[before < top_p]  # until the mass before a token reaches top_p
    expected = torch.zeros_like(p)
    expected[kept] = p[kept] / p[kept].sum()
    draws = 600
    counts = torch.zeros_like(p)
    for seed in range(draws):
        params = SamplingParams(temperature, top_p, max_completion_tokens=1, seed=seed)
        counts[read(stream_text(policy, PROMPT, params))[1].token_ids[0]] += 1
    expected *= draws
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    predicted = torch.cat([expected[common], expected[~common].sum()[None]])
    present = predicted > 0
    statistic = float(((observed - predicted)[present] ** 2 / predicted[present]).sum())
    freedom = int(present.sum()) - 1
    # chi-square: mean `freedom`, variance 2 * freedom; five standard deviations with fixed seeds
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_the_sampler_draws_the_same_completion_from_the_same_seed() -> None:
    policy = policy_of()
    for seed in range(5):
        params = SamplingParams(0.9, 0.95, max_completion_tokens=30, seed=seed)
        assert (
            read(stream_text(policy, PROMPT, params))[1]
            == TransformersSampler(policy).sample([PROMPT], 1, params)[0][0]
        )


def test_equal_seeds_repeat_others_do_not_and_global_random_state_is_untouched() -> None:
    policy = policy_of()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (read(stream_text(policy, PROMPT, SamplingParams(seed=s))) for s in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), before)


def test_it_ends_at_any_end_of_sequence_id_at_the_limit_or_when_the_context_is_full() -> None:
    policy = policy_of(max_seq_length=len(PROMPT) + 7)
    ids = greedy_by_definition(policy, PROMPT, 7)
    assert len(set(ids[:4])) == 4
    assert not policy.eos_token_ids & set(ids)

    def end(limit: int) -> tuple[list[int], str]:
        completion = read(stream_text(policy, PROMPT, SamplingParams(0.0, max_completion_tokens=limit)))[1]
        return list(completion.token_ids), completion.finish_reason

    assert end(100) == (ids, "length")
    assert end(4) == (ids[:4], "length")
    policy.eos_token_ids = frozenset({2, ids[3]})
    assert end(100) == (ids[:4], "stop")
    assert end(4) == (ids[:4], "stop")  # an end at the limit is an end
    assert end(3) == (ids[:3], "length")


def test_a_token_is_given_out_before_the_next_is_computed_and_closing_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gtpo_cli.generation.stream.open_decoder", ModelDecoder)  # which runs the hooks of the model
    policy = policy_of()
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
    policy = policy_of(max_seq_length=len(PROMPT))
    with pytest.raises(GenerationError, match="5 tokens, which leaves no room within 5; ask a shorter question"):
        next(stream_text(policy, PROMPT, SamplingParams()))
    with pytest.raises(GenerationError, match="the prompt is empty"):
        next(stream_text(policy, (), SamplingParams()))
    broken = policy_of()
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
    pieces = TextPieces(tokenizer)
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
        assert "".join(pieces) == completion.text == tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        cut += completion.text.endswith("\ufffd")
    assert cut > 3


def test_half_a_character_at_the_end_is_not_lost() -> None:
    tokenizer = byte_level()
    ids = tokenizer("a€", add_special_tokens=False)["input_ids"][:-1]
    assert pieces_of(tokenizer, ids) == ["a", "", "", "\ufffd"]


def test_spaces_that_a_tokenizer_drops_at_the_start_only() -> None:
    tokenizer = byte_fallback()
    ids = tokenizer.convert_tokens_to_ids(["▁a", "▁a", "▁", "▁a", "b"])
    assert pieces_of(tokenizer, ids) == ["a", " a", " ", " a", "b", ""]


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@given(text=st.text(max_size=30), end=st.booleans())
@settings(max_examples=200, deadline=None)
def test_pieces_of_any_text_join_to_the_text(make: Callable[[], Any], text: str, end: bool) -> None:
    tokenizer = make()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] * end
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)
    assert all("\ufffd" not in piece or "\ufffd" in text for piece in pieces)


@given(ids=st.lists(st.integers(0, 256), max_size=40))
@settings(max_examples=300, deadline=None)
def test_pieces_of_any_bytes_join_to_their_decoding(ids: list[int]) -> None:
    tokenizer = byte_level()
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


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
