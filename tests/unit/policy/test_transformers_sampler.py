"""The sampler: right distribution, right log-probabilities, right ends. Real models with random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES, family_model
from sampler_contract import CONTEXT, LONG, SHORT, SamplerContract, assert_follows, first_token, gap
from small_models import BUILTIN_SHAPE, random_model

from gtpo_cli.errors import GenerationError, ModelError
from gtpo_cli.policy.decoder import LeanDecoder, ModelDecoder, Prefill
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler


def make(architecture: str = "llama", *, temperature: float = 1.0, max_seq_length: int = 256, **changes: Any):
    model, tokenizer = random_model(architecture, **changes)
    policy = TransformersPolicy(model, tokenizer, temperature=temperature, max_seq_length=max_seq_length)
    return policy, TransformersSampler(policy)


@pytest.fixture(autouse=True)
def _small_layers_are_prepacked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gtpo_cli.policy.prepacked._LEAST", 1)


SHAPES: dict[Any, dict[str, Any]] = {LeanDecoder: BUILTIN_SHAPE, ModelDecoder: {}}


class TestContract(SamplerContract):
    tolerance = 1e-5

    @pytest.fixture(params=[LeanDecoder, ModelDecoder])
    def pair(self, request: pytest.FixtureRequest) -> tuple[Any, Any]:
        policy, _ = make(max_seq_length=CONTEXT, **SHAPES[request.param])
        return policy, TransformersSampler(policy, decoder=request.param)


class TestContractOfModelsWithStates(SamplerContract):
    """Layers with convolutions, a delta rule and Mamba's recurrence, beside attention or alone."""

    tolerance = 1e-4  # the recurrence of a whole prompt and that of one token round differently

    @pytest.fixture(params=["LFM2", "Qwen3.5", "Mamba-2"])
    def pair(self, request: pytest.FixtureRequest) -> tuple[Any, Any]:
        policy = TransformersPolicy(*family_model(request.param), temperature=1.0, max_seq_length=CONTEXT)
        return policy, TransformersSampler(policy)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_samples_what_its_policy_says(family: str) -> None:
    """Prompts of unequal length, rows that end early, and windows shorter than a completion."""
    policy = TransformersPolicy(*family_model(family), temperature=1.0, max_seq_length=CONTEXT)
    policy.eos_token_ids = frozenset(range(2, 12))
    sampler = TransformersSampler(policy)
    sampler.check()
    rows = sampler.sample([SHORT, LONG], 6, SamplingParams(max_completion_tokens=24, seed=1))
    assert len({len(completion.token_ids) for row in rows for completion in row}) > 1
    assert gap(policy, [SHORT, LONG], rows) < 1e-4
    for prompt, row in zip((SHORT, LONG), rows, strict=True):  # each alone, without padding, through the whole model
        plain = policy.plain_logprobs(prompt, row[0].token_ids)
        assert row[0].logprobs == pytest.approx(plain.tolist(), rel=1e-4, abs=1e-4)


# What all prompts begin with, as a system prompt. SHORT and LONG begin alike as well: 1, 4.
SYSTEM = (1, *range(20, 50))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_all_prompts_begin_with_changes_no_family_s_samples(family: str) -> None:
    """Prompts that are padded behind it, and rows that end early."""
    policy = TransformersPolicy(*family_model(family), temperature=1.0, max_seq_length=CONTEXT)
    policy.eos_token_ids = frozenset(range(2, 12))
    prompts = [SYSTEM + SHORT, SYSTEM + LONG, SYSTEM + LONG[::-1]]
    rows = TransformersSampler(policy).sample(prompts, 4, SamplingParams(max_completion_tokens=24, seed=1))
    assert len({len(completion.token_ids) for row in rows for completion in row}) > 1
    for prompt, row in zip(prompts, rows, strict=True):  # each alone, without padding, through the whole model
        for completion in row:
            plain = policy.plain_logprobs(prompt, completion.token_ids)
            assert completion.logprobs == pytest.approx(plain.tolist(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("RWKV", "models of type rwkv return no cache of transformers' own kind, so gtpo cannot sample from them"),
        (
            "BART",
            "two prompts of unequal length, .* differ by 0.43 nats .* cannot sample from models of type bart rightly",
        ),
        ("MiniMax", r"gtpo cannot sample from models of type minimax \(RuntimeError: The size of tensor a"),
    ],
)
def test_what_cannot_be_sampled_right_is_refused_before_it_samples(family: str, said: str) -> None:
    model, tokenizer = family_model(family)
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=CONTEXT)
    with pytest.raises(ModelError, match=f"{said}.*; choose another model, or let vLLM sample it"):
        TransformersSampler(policy).check()


def test_the_check_passes_in_16_bits_and_finds_a_model_that_looks_at_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in ("Llama 3", "Qwen3.5"):
        model, tokenizer = family_model(family)
        policy = TransformersPolicy(model.bfloat16(), tokenizer, temperature=0.5, max_seq_length=CONTEXT)
        TransformersSampler(policy).check()
    policy, sampler = make()
    forward = policy.backbone.forward
    monkeypatch.setattr(policy.backbone, "forward", lambda **inputs: forward(**inputs | {"attention_mask": None}))
    with pytest.raises(ModelError, match="two prompts of unequal length, continued side by side"):
        sampler.check()


@pytest.mark.parametrize(
    ("architecture", "decoder"), [("llama", LeanDecoder), ("llama", ModelDecoder), ("qwen2", ModelDecoder)]
)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_policys_also_with_padded_prompts_and_dropped_rows(
    architecture: str, temperature: float, decoder: Any
) -> None:
    policy, _ = make(architecture, temperature=temperature, **SHAPES[decoder])
    sampler = TransformersSampler(policy, decoder=decoder)
    prompts = [SHORT, LONG, SHORT]
    rows = sampler.sample(prompts, 8, SamplingParams(temperature=temperature, max_completion_tokens=40, seed=5))
    assert [len(row) for row in rows] == [8, 8, 8]
    lengths = {len(completion.token_ids) for row in rows for completion in row}
    assert len(lengths) > 3  # rows end at different steps, so rows were dropped on the way
    assert gap(policy, prompts, rows) < 1e-5


@pytest.mark.parametrize(("temperature", "top_p"), [(1.7, 1.0), (0.8, 0.9)])
def test_first_tokens_follow_the_distribution(temperature: float, top_p: float) -> None:
    policy, sampler = make(temperature=temperature)
    draws = 4000
    params = SamplingParams(temperature, top_p, max_completion_tokens=1, seed=11)
    rows = sampler.sample([SHORT], draws, params)[0]
    expected = first_token(policy, top_p=top_p)
    counts = torch.bincount(torch.tensor([row.token_ids[0] for row in rows]), minlength=len(expected))
    assert_follows(counts.double(), draws * expected)


@pytest.mark.parametrize("temperature", [0.0, 1e-5])
def test_greedy_equals_generate(temperature: float) -> None:
    policy, sampler = make()
    expected = policy.model.generate(
        torch.tensor([LONG]), do_sample=False, max_new_tokens=24, eos_token_id=2, pad_token_id=0
    )[0, len(LONG) :].tolist()
    params = SamplingParams(temperature, max_completion_tokens=24)
    assert list(sampler.sample([SHORT, LONG], 2, params)[1][0].token_ids) == expected


def test_rows_end_at_any_end_of_sequence_id_and_only_there() -> None:
    policy, sampler = make()
    common = [int(i) for i in first_token(policy).topk(6).indices]
    policy.eos_token_ids = frozenset({2, *common[:3]})
    rows = sampler.sample([SHORT, LONG], 64, SamplingParams(max_completion_tokens=10, seed=4))
    completions = [completion for row in rows for completion in row]
    ends = {c.token_ids[-1] for c in completions if c.finish_reason == "stop"}
    assert len(ends & set(common[:3])) >= 2
    for completion in completions:
        assert not policy.eos_token_ids & set(completion.token_ids[:-1])
        if completion.finish_reason == "stop":
            assert completion.token_ids[-1] in policy.eos_token_ids
            assert not completion.truncated
        else:
            assert len(completion.token_ids) == 10
            assert completion.token_ids[-1] not in policy.eos_token_ids
            assert completion.truncated


@pytest.mark.parametrize("decoder", [LeanDecoder, ModelDecoder])
def test_the_prompt_of_a_group_is_encoded_once(decoder: Any) -> None:
    policy, _ = make(**SHAPES[decoder])
    sampler = TransformersSampler(policy, decoder=decoder)
    seen: list[tuple[int, ...]] = []
    hook = policy.backbone.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    sampler.sample([SHORT, LONG], 8, SamplingParams(max_completion_tokens=3))
    hook.remove()
    assert seen[0] == (2, len(LONG))  # two prompts, not sixteen
    assert seen[1:] == ([(16, 1)] * 2 if decoder is ModelDecoder else [])


@pytest.mark.parametrize("prompts", [[SYSTEM + SHORT, SYSTEM + LONG], [SYSTEM + SHORT] * 2])  # one token is left
@pytest.mark.parametrize("family", ["Llama 3", "Qwen3"])
def test_a_shared_beginning_in_bfloat16_is_within_its_rounding(family: str, prompts: Any) -> None:
    model, tokenizer = family_model(family)
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=CONTEXT, dtype=torch.bfloat16)
    rows = TransformersSampler(policy).sample(prompts, 4, SamplingParams(max_completion_tokens=8, seed=1))
    differences = [
        (policy.plain_logprobs(prompt, completion.token_ids) - torch.tensor(completion.logprobs)).abs().mean()
        for prompt, row in zip(prompts, rows, strict=True)
        for completion in row
    ]
    assert torch.stack(differences).mean() < 0.04


@pytest.mark.parametrize("decoder", [LeanDecoder, ModelDecoder])
@pytest.mark.parametrize(
    ("prompts", "encoded"),
    [
        ([SYSTEM + SHORT, SYSTEM + LONG], [(1, len(SYSTEM) + 2), (2, len(LONG) - 2)]),
        ([SYSTEM, SYSTEM + LONG], [(1, len(SYSTEM) - 1), (2, len(LONG) + 1)]),  # a token of each is left
        ([SYSTEM + LONG] * 2, [(1, len(SYSTEM + LONG) - 1), (2, 1)]),
        ([SYSTEM + LONG], [(1, len(SYSTEM + LONG))]),  # nothing to share
        ([SYSTEM[:13] + SHORT, SYSTEM[:13] + LONG], [(2, 13 + len(LONG))]),  # too short to be worth it
    ],
)
def test_tokens_with_which_all_prompts_begin_are_encoded_once(decoder: Any, prompts: Any, encoded: Any) -> None:
    policy, _ = make(**SHAPES[decoder])
    seen: list[tuple[int, ...]] = []
    hook = policy.backbone.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    rows = TransformersSampler(policy, decoder=decoder).sample(prompts, 2, SamplingParams(max_completion_tokens=3))
    hook.remove()
    assert seen[: len(encoded)] == encoded
    assert gap(policy, prompts, rows) < 1e-5


def test_broken_weights_are_an_error_and_not_an_endless_sentence() -> None:
    policy, sampler = make()
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[3] = float("nan")
    with pytest.raises(GenerationError, match="not finite"):
        sampler.sample([SHORT], 1, SamplingParams())


@pytest.mark.parametrize("family", ["Llama 3", "LFM2"])
def test_where_memory_runs_out_fewer_rows_are_sampled_at_a_time(family: str) -> None:
    policy = TransformersPolicy(*family_model(family), temperature=1.0, max_seq_length=256)
    notes: list[str] = []
    sampler = TransformersSampler(policy, warn=notes.append, decoder=ModelDecoder)

    def check(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if kwargs["input_ids"].shape[0] > 3:
            raise torch.OutOfMemoryError("no room")

    hook = policy.backbone.register_forward_pre_hook(check, with_kwargs=True)
    rows = sampler.sample([SHORT, LONG], 5, SamplingParams(max_completion_tokens=6, seed=1))
    sampler.sample([SHORT, LONG], 5, SamplingParams(max_completion_tokens=6, seed=1))
    hook.remove()
    assert [len(row) for row in rows] == [5, 5]
    assert gap(policy, [SHORT, LONG], rows) < 1e-5
    assert notes == [
        "out of memory: 5 completions at a time from now on in sampling",
        "out of memory: 2 completions at a time from now on in sampling",
    ]


def cached(kwargs: Any) -> int:
    return kwargs["past_key_values"].get_seq_length() if "past_key_values" in kwargs else 0


def test_a_rehearsal_takes_the_cache_of_the_longest_group() -> None:
    policy, _ = make(max_seq_length=30)
    sampler = TransformersSampler(policy, decoder=ModelDecoder)
    shapes: list[tuple[int, ...]] = []
    hook = policy.backbone.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append((*kwargs["input_ids"].shape, cached(kwargs))),
        with_kwargs=True,
    )
    sampler.rehearse(len(LONG), 6, SamplingParams(max_completion_tokens=12))
    sampler.rehearse(len(LONG), 6, SamplingParams(max_completion_tokens=500))
    hook.remove()
    assert shapes == [(1, 21, 0), (6, 1, 0), (1, 29, 0), (6, 1, 0)]  # the rows' own cache is empty


@pytest.mark.parametrize("prompts", [[SHORT, SHORT], [SHORT, LONG]])
@pytest.mark.parametrize("kind", ["llama", "smollm3"])
def test_the_cache_grows_in_place_and_holds_what_transformers_own_holds(kind: str, prompts: Any) -> None:
    """130 tokens go beyond the room twice; rows are dropped on the way. SmolLM3's cache holds the prompts as well."""
    policy = make()[0] if kind == "llama" else TransformersPolicy(
        *family_model("SmolLM3"), temperature=1.0, max_seq_length=256
    )  # fmt: skip
    with torch.no_grad():
        decoder, plain = ModelDecoder(policy, prompts, 3), Prefill(policy.backbone, policy.device, prompts, 3)
        plain.cache.reorder_cache(plain.prompt_R)
        first = 0 if decoder._prompts is None else len(LONG if LONG in prompts else SHORT)
        rows, moved, generator = 6, 0, torch.Generator().manual_seed(1)
        mask, positions = plain.mask if plain.mask is None else plain.mask[plain.prompt_R], plain.positions
        for step in range(130):
            if step == 40:
                keep = torch.tensor([True, False, True, True, False, True])
                decoder.select(keep)
                plain.cache.batch_select_indices(keep.nonzero()[:, 0])
                mask, positions, rows = None if mask is None else mask[keep], positions[keep], 4
            token = torch.randint(8, 100, (rows,), generator=generator)
            place = decoder._cache.layers[0].keys.data_ptr()
            decoder.advance(token)
            moved += decoder._cache.layers[0].keys.data_ptr() != place
            mask = None if mask is None else torch.cat([mask, mask.new_ones(rows, 1)], dim=1)
            expected = policy.backbone(
                input_ids=token[:, None], attention_mask=mask, position_ids=positions[:, None],
                past_key_values=plain.cache, use_cache=True,
            ).last_hidden_state  # fmt: skip
            positions = positions + 1
            torch.testing.assert_close(decoder._hidden, expected[:, -1], rtol=1e-4, atol=1e-4)
        for ours, theirs in zip(decoder._cache.layers, plain.cache.layers, strict=True):
            torch.testing.assert_close(ours.keys, theirs.keys[:, :, first:], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(ours.values, theirs.values[:, :, first:], rtol=1e-4, atol=1e-4)
    assert moved == 3  # at the first token, after the rows were dropped, and when the room was full


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_decodes_in_bfloat16_over_weights_of_32_bits(family: str) -> None:
    """Its cache then has 16 bits. The bound is a fifth of the one that refuses a model."""
    model, tokenizer = family_model(family)
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=256, dtype=torch.bfloat16)
    sampler = TransformersSampler(policy)
    sampler.check()
    with torch.no_grad(), policy.computing():
        assert sampler._rehearsed_gap() < 0.04
