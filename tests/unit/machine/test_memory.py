"""The memory plan against real models, real optimisers, real caches, and traces of every allocation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from allocations import Allocations, trace
from families import FAMILIES, family_model
from jobs import policy_of
from small_models import random_model

from gtpo_cli.job import Engines
from gtpo_cli.kernels import token_logprobs_and_entropy
from gtpo_cli.machine.fit import make_plan
from gtpo_cli.machine.memory import (
    CONTEXT,
    ENGINE_WORK,
    GIB,
    NF4_BYTES,
    Memory,
    activation_bytes,
    export_memory,
    fits,
    kv_bytes,
    logits_bytes,
    measuring_bytes,
    memory_of,
    trained_weights,
    weight_bytes,
)
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.machine.shapes import PUBLISHED, ModelShape
from gtpo_cli.policy.decoder import cache_of
from gtpo_cli.policy.policy import STATE_BYTES
from gtpo_cli.recipe import Recipe, build_recipe, load_recipe
from gtpo_cli.recipe.schema import LoraRecipe, OptimizerRecipe
from gtpo_cli.training.optimizers import Updater

LLAMA, QWEN = PUBLISHED["meta-llama/Llama-3.1-8B-Instruct"], PUBLISHED["Qwen/Qwen2.5-3B-Instruct"]
OVERRIDES = ["data.max_prompt_tokens=512", "rollout.gpu_memory_utilization=0.6", "model.lora={rank: 32, alpha: 32}"]
SHARED, PLAIN = Engines("unsloth", "vllm", True), Engines("transformers", "transformers", False)


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def recipe(**model: Any) -> Recipe:
    return build_recipe({"model": {"name": "a/b"} | model, "data": {"benchmark": "gsm8k"}}, where="test")


@pytest.mark.parametrize("tied", [True, False])
def test_a_shape_counts_the_weights_of_a_real_model(tmp_path: Path, tied: bool) -> None:
    model, tokenizer = random_model(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    shape, source = Parts(recipe(name=str(tmp_path))).shape_and_source
    assert shape.linear_parameters + shape.other_parameters == sum(p.numel() for p in model.parameters())
    assert source == "its configuration"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shape_counts_what_a_model_of_any_family_has(tmp_path: Path, family: str) -> None:
    """Weights, the adapter of all-linear as PEFT makes it, and the cache of a token and of a row."""
    model, tokenizer = family_model(family)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lora = LoraRecipe(rank=3, target_modules="all-linear")
    parts = Parts(recipe(name=str(tmp_path), lora=lora.model_dump(), load_in_4bit=False, dtype="float32"))
    shape, _ = parts.shape_and_source
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    decoder, ids = model.get_decoder(), torch.arange(8, 15)[None]  # 7 tokens, fewer than any window
    _, cache = cache_of(decoder(input_ids=ids, use_cache=True), family)
    held = [value for layer in cache.layers for value in vars(layer).values()]
    held = [t for value in held for t in (value.values() if isinstance(value, dict) else [value])]
    numbers = sum(t.numel() for t in held if isinstance(t, torch.Tensor) and t.dim())
    assert 7 * shape.cached + shape.states == (
        numbers if "sliding" not in str(cache.layers) else pytest.approx(numbers)
    )
    adapted = policy_of(parts.written)
    assert shape.adapter_parameters(lora) == sum(p.numel() for p in adapted.trainable_parameters())


def test_four_bits_take_what_bitsandbytes_takes() -> None:
    bnb = pytest.importorskip("bitsandbytes", reason="4-bit weights need the extra bnb")
    layer = bnb.nn.Linear4bit(2048, 1024, bias=False, compress_statistics=True, quant_type="nf4").to("cpu")
    layer(torch.zeros(1, 2048))
    state = layer.weight.quant_state
    tensors = [layer.weight.data, state.absmax, state.state2.absmax]
    stored = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert stored == pytest.approx(2048 * 1024 * NF4_BYTES, rel=1e-3)


def test_the_cache_of_a_token_is_that_of_a_real_model() -> None:
    from transformers import DynamicCache

    model, _ = random_model()
    shape = ModelShape(2, 64, 128, 4, 2, 16, len(random_model()[1]), tied=False)
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.arange(8, 18)[None], past_key_values=cache, use_cache=True)
    stored = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert stored == 10 * kv_bytes(shape, 4)


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit"])
def test_the_optimiser_state_is_that_of_the_real_optimiser(name: str) -> None:
    if name != "adamw":
        pytest.importorskip("bitsandbytes", reason="8-bit states need the extra bnb")
    weight = torch.nn.Parameter(torch.randn(512, 512))
    updater = Updater([weight], OptimizerRecipe(name=name), total_steps=2)
    weight.grad = torch.randn_like(weight)
    updater.update()
    state = updater.optimizer.state[weight].values()
    stored = sum(value.nbytes for value in state if isinstance(value, torch.Tensor) and value.numel() > 256)
    assert stored == pytest.approx(STATE_BYTES[name] * weight.numel(), rel=0.01)


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("rank", [64, 0])
@pytest.mark.parametrize("shape", [LLAMA, QWEN], ids=["llama8b", "qwen3b"])
def test_training_takes_what_a_trace_shows(shape: ModelShape, rank: int, checkpointing: bool) -> None:
    shape = replace(shape, layers=3)
    lora = {"rank": rank, "alpha": rank} if rank else None
    asked = recipe(load_in_4bit=False, dtype="bfloat16", lora=lora, gradient_checkpointing=checkpointing)
    low, high = (
        trace(shape, rank=rank, dtype=torch.bfloat16, checkpointing=checkpointing, tokens=tokens)
        for tokens in (1024, 2048)
    )
    planned = sum(activation_bytes(asked.model, shape, tokens=1024, completion_tokens=0))
    assert planned == pytest.approx(high - low, rel=0.06)


@pytest.mark.parametrize("shape", [LLAMA, QWEN], ids=["llama8b", "qwen3b"])
@pytest.mark.parametrize("adapter", [torch.bfloat16, torch.float32, None], ids=["16 bits", "32 bits", "no adapter"])
def test_measuring_takes_what_a_trace_shows(shape: ModelShape, adapter: torch.dtype | None) -> None:
    shape, rank = replace(shape, layers=3), 64 if adapter else 0
    low, high = (
        trace(shape, rank=rank, dtype=torch.bfloat16, adapter=adapter or torch.float32, trains=False, tokens=tokens)
        for tokens in (1024, 2048)
    )
    planned = measuring_bytes(shape, 1024, adapter.itemsize if adapter else 0, 2)
    assert planned == pytest.approx(high - low, rel=0.08)


def test_measuring_by_hand_on_24_gib() -> None:
    """The paper's adapter in 16 bits, an engine that stays awake, and no copy of the adapter beside its place in it."""
    asked = load_recipe("llama8b_gsm8k", ["rollout.gpu_memory_utilization=0.85"])
    memory = memory_of(
        asked, LLAMA, SHARED, prompt_tokens=300, completion_tokens=1500, gpu=24 * GIB, limit=8000, measures=True
    )
    parts = {part.name: part for part in memory.parts}
    assert set(parts) == {
        "base weights, 4-bit", "adapter", "vLLM engine", "work of one block or the logits", "CUDA itself",
    }  # fmt: skip
    assert parts["adapter"].sampling == parts["adapter"].forward == 2 * 335_544_320
    weights = weight_bytes(asked.model, LLAMA)
    assert parts["vLLM engine"].forward == parts["vLLM engine"].sampling
    assert parts["vLLM engine"].forward == pytest.approx(0.85 * (24 * GIB - CONTEXT) - weights)
    assert (memory.rows, memory.limit) == (4, 7200)
    dequantised = 2 * 4096 * 14336
    work = 7200 * (14.0 * 4096 + 7.1 * 14336) + dequantised
    assert parts["work of one block or the logits"].forward == pytest.approx(work)
    assert memory.forward == pytest.approx(0.85 * (24 * GIB - CONTEXT) + CONTEXT + 2 * 335_544_320 + work)


def test_an_export_by_hand() -> None:
    asked = load_recipe("llama8b_gsm8k")
    export = export_memory(asked, LLAMA, prompt_tokens=300)
    logits = 128_256 * (428 * 2 + 128 * 8)  # of the row in 16 bits, of the answer twice in 32
    cache = 428 * 2 * 32 * 8 * 128 * 2
    assert export.answers == weight_bytes(asked.model, LLAMA) + 4 * 335_544_320 + cache + logits + CONTEXT
    assert export.merge == 2 * LLAMA.parameters
    assert export.check == 2 * LLAMA.parameters + logits + CONTEXT
    assert export_memory(asked, replace(LLAMA, quantized=True), prompt_tokens=300).merge == 4 * LLAMA.parameters


@pytest.mark.parametrize("tokens", [20, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_logits_path_takes_what_is_planned(
    monkeypatch: pytest.MonkeyPatch, tokens: int, dtype: torch.dtype
) -> None:
    """The path of a GPU, its kernel in Triton's interpreter, with chunks of 40 tokens."""
    pytest.importorskip("triton", reason="Triton comes with the extra dev on Linux")
    monkeypatch.setattr("gtpo_cli.kernels.logprobs.has_row_kernel", lambda device: True)
    monkeypatch.setattr("gtpo_cli.kernels.logprobs._multiplies_bfloat16", lambda *_: True)
    for module in ("kernels.row_kernel", "machine.memory"):
        monkeypatch.setattr(f"gtpo_cli.{module}.CHUNK_BYTES", 40 * 4 * 4096)
    shape = ModelShape(1, 256, 512, 4, 4, 64, 4096, tied=False)
    hidden, head = torch.randn(tokens, 256, dtype=dtype, requires_grad=True), torch.randn(4096, 256, dtype=dtype)
    ids = torch.randint(4096, (tokens,))
    with Allocations([head, ids]) as allocations:
        logp, _ = token_logprobs_and_entropy(hidden * 1.0, head, ids)
        logp.sum().backward()
    # A CPU's product of 16-bit factors comes out in 16 bits beside its copy in 32; CUDA's comes out in 32.
    extra = 0 if dtype == torch.float32 else min(tokens, 40) * 4096 * 2
    assert logits_bytes(shape, hidden.element_size(), tokens) + extra == pytest.approx(allocations.peak, rel=0.15)


def test_the_parts_of_the_papers_recipe_by_hand() -> None:
    """LLaMA-3.1-8B, rank 128, 16,384 tokens in a forward at most: 9 rows of 1,800, but a group has 8."""
    asked = load_recipe("llama8b_gsm8k")
    memory = memory_of(asked, LLAMA, SHARED, prompt_tokens=300, completion_tokens=1500, gpu=24 * GIB)
    parts = {part.name: part for part in memory.parts}
    weights = 6_979_321_856 * (0.5 + 1 / 64 + 1 / 4096) + 1_050_939_392 * 2
    assert weight_bytes(asked.model, LLAMA) == pytest.approx(weights)
    assert parts["base weights, 4-bit"].forward == pytest.approx(weights)
    assert trained_weights(asked.model, LLAMA) == (335_544_320, 4 * 335_544_320)
    assert parts["gradients"].forward == 4 * 335_544_320
    assert parts["optimiser state"].forward == pytest.approx(2.04 * 335_544_320)
    assert memory.rows == 8
    tokens = 8 * 1500 + 300  # the group's prompt once
    assert parts["activations kept"].forward == 32 * tokens * 2 * 4096
    dequantised = 2 * 4096 * 14336
    assert parts["work of one block or the logits"].forward == pytest.approx(
        tokens * (51.6 * 4096 + 15.8 * 14336) + dequantised
    )
    share, slot = 0.4 * (24 * GIB - CONTEXT), 2 * 335_544_320
    assert parts["vLLM engine"].sampling == pytest.approx(share - weights)
    assert parts["vLLM engine"].forward == ENGINE_WORK + slot  # asleep
    handed = parts["adapter handed to the engine"]
    assert (handed.sampling, handed.forward) == (2 * 335_544_320, 0)
    a_sequence = 1800 * 2 * 32 * 8 * 128 * 2
    assert memory.sequences == (share - weights - slot - ENGINE_WORK) // a_sequence
    assert memory.peak == max(memory.sampling, memory.forward)


def test_what_vllm_is_told_counts() -> None:
    """An engine that does not sleep, sequences at once and their work, a cache in 8 bits."""

    def of(*changes: str) -> Memory:
        asked = load_recipe("llama8b_gsm8k", changes)
        return memory_of(asked, LLAMA, SHARED, prompt_tokens=300, completion_tokens=1500, gpu=80 * GIB)

    asleep, awake = of("rollout.standby=always"), of("rollout.standby=never")
    (engine,) = (part for part in awake.parts if part.name == "vLLM engine")
    assert engine.forward == engine.sampling
    slot = 2 * 335_544_320
    assert awake.forward - asleep.forward == pytest.approx(engine.sampling - ENGINE_WORK - slot)
    assert awake.sampling == asleep.sampling
    weights, a_sequence = weight_bytes(load_recipe("llama8b_gsm8k").model, LLAMA), 1800 * 2 * 32 * 8 * 128 * 2
    cache = 0.4 * (80 * GIB - CONTEXT) - weights - slot
    assert of().sequences == (cache - ENGINE_WORK) // a_sequence == 112
    assert of("rollout.max_num_seqs=64").sequences == 64
    work = 45.1 * 128_256 * 1000  # more than the gibibyte that is there anyway
    assert of("rollout.max_num_seqs=1000").sequences == (cache - work) // a_sequence < 112
    assert of("rollout.vllm.kv_cache_dtype=fp8").sequences == (cache - ENGINE_WORK) // (a_sequence // 2)


def test_the_longest_completion_is_the_last_that_fits() -> None:
    asked = load_recipe("llama8b_gsm8k", OVERRIDES)
    plan = make_plan(asked, gpu=12 * GIB)
    for extra, expected in ((0, True), (1, False)):
        memory = memory_of(
            asked, LLAMA, SHARED, prompt_tokens=plan.prompt_tokens, gpu=12 * GIB, limit=1,
            completion_tokens=plan.longest_completion + extra,
        )  # fmt: skip
        assert fits(memory, 12 * GIB) == expected
    assert 0 < plan.longest_completion < 5500 - 512


def test_no_row_is_longer_than_the_models_own_context() -> None:
    """builtin:tiny has 2048 positions, whatever the recipe allows."""
    settings = ["model.max_seq_length=100000", "rollout.max_completion_tokens=90000", "data.max_prompt_tokens=90000"]
    plan = make_plan(load_recipe("tiny_arithmetic", settings), gpu=80 * GIB)
    assert plan.prompt_tokens + plan.completion_tokens == 2048
    assert plan.prompt_tokens + plan.longest_completion == 2048
    assert "model.max_seq_length is lowered to the model's context, 2048 tokens" in plan.notes
    unread = make_plan(load_recipe("tiny_arithmetic", [*settings, "data.split=none"]), gpu=80 * GIB)
    assert (unread.prompt_tokens, unread.completion_tokens) == (2047, 1)


def test_without_a_size_the_smallest_gpu_is_found() -> None:
    assert make_plan(load_recipe("llama8b_gsm8k"), gpu=None).gpu == 24 * GIB
    assert make_plan(load_recipe("tiny_arithmetic"), gpu=None).gpu == 8 * GIB
