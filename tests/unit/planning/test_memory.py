"""The memory plan against real models, real optimisers, real caches, and traces of every allocation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from allocations import Allocations, trace_training
from small_models import random_model

from gtpo_cli.errors import ModelError
from gtpo_cli.kernels import token_logprobs_and_entropy
from gtpo_cli.models import Engines
from gtpo_cli.models.policy import STATE_BYTES
from gtpo_cli.planning.fit import downloads, make_plan, smaller_copy
from gtpo_cli.planning.memory import (
    CONTEXT,
    ENGINE_WORK,
    GIB,
    NF4_BYTES,
    USABLE,
    Memory,
    activation_bytes,
    fits,
    kv_bytes,
    logits_bytes,
    memory_of,
    trained_weights,
    weight_bytes,
)
from gtpo_cli.planning.shapes import PUBLISHED, ModelShape, read_shape
from gtpo_cli.recipe import Recipe, build_recipe, load_recipe
from gtpo_cli.recipe.schema import LoraRecipe, ModelRecipe, OptimizerRecipe
from gtpo_cli.training.optimizers import Updater

LLAMA, QWEN = PUBLISHED["meta-llama/Llama-3.1-8B-Instruct"], PUBLISHED["Qwen/Qwen2.5-3B-Instruct"]
OVERRIDES = ["data.max_prompt_tokens=512", "rollout.gpu_memory_utilization=0.6", "model.lora={rank: 32, alpha: 32}"]
SHARED = Engines("unsloth", "vllm", True)


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def recipe(**model: Any) -> Recipe:
    return build_recipe({"model": {"name": "a/b"} | model, "data": {"benchmark": "gsm8k"}}, where="test")


def test_the_published_shapes_have_the_published_number_of_weights() -> None:
    assert LLAMA.linear_parameters + LLAMA.other_parameters == 8_030_261_248
    biases = 36 * (2048 + 256 + 256)  # of Qwen2's q, k and v, which are left out
    assert QWEN.linear_parameters + QWEN.other_parameters + biases == 3_085_938_688
    assert LLAMA.adapter_parameters(LoraRecipe(rank=16, alpha=16)) == 41_943_040
    assert LLAMA.adapter_parameters(LoraRecipe(rank=16, alpha=16, target_modules=("q_proj",))) == 32 * 16 * 8192


@pytest.mark.parametrize("tied", [True, False])
def test_a_shape_counts_the_weights_of_a_real_model(tmp_path: Path, tied: bool) -> None:
    model, tokenizer = random_model(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    shape, source = read_shape(ModelRecipe(name=str(tmp_path)))
    assert shape.linear_parameters + shape.other_parameters == sum(p.numel() for p in model.parameters())
    assert source == "its configuration"


def test_a_model_that_is_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"a folder without config\.json"):
        read_shape(ModelRecipe(name=str(tmp_path / "empty")))


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


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("rank", [64, 0])
@pytest.mark.parametrize("shape", [LLAMA, QWEN], ids=["llama8b", "qwen3b"])
def test_activations_are_those_of_a_trace(shape: ModelShape, rank: int, dtype: str, checkpointing: bool) -> None:
    shape = replace(shape, layers=3)
    lora = {"rank": rank, "alpha": rank} if rank else None
    asked = recipe(load_in_4bit=False, dtype=dtype, lora=lora, gradient_checkpointing=checkpointing)
    low, high = (
        trace_training(shape, rank=rank, dtype=getattr(torch, dtype), checkpointing=checkpointing, tokens=tokens)
        for tokens in (1024, 2048)
    )
    planned = sum(activation_bytes(asked.model, shape, tokens=1024, completion_tokens=0))
    assert planned == pytest.approx(high - low, rel=0.06)


@pytest.mark.parametrize("tokens", [20, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_logits_path_takes_what_is_planned(
    monkeypatch: pytest.MonkeyPatch, tokens: int, dtype: torch.dtype
) -> None:
    """The path of a GPU, its kernel in Triton's interpreter, with chunks of 40 tokens."""
    pytest.importorskip("triton", reason="Triton comes with the extra dev on Linux")
    monkeypatch.setattr("gtpo_cli.kernels.logprobs.has_row_kernel", lambda device: True)
    monkeypatch.setattr("gtpo_cli.kernels.products._multiplies_bfloat16", lambda *_: True)
    for module in ("kernels.row_kernel", "planning.memory"):
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
    assert parts["base weights, 4-bit"].training == pytest.approx(weights)
    assert trained_weights(asked.model, LLAMA) == (335_544_320, 4 * 335_544_320)
    assert parts["gradients"].training == 4 * 335_544_320
    assert parts["optimiser state"].training == pytest.approx(2.04 * 335_544_320)
    assert memory.rows == 8
    tokens = 8 * 1500 + 300  # the group's prompt once
    assert parts["activations kept"].training == 32 * tokens * 2 * 4096
    dequantised = 2 * 4096 * 14336
    assert parts["work of one block or the logits"].training == pytest.approx(
        tokens * (51.6 * 4096 + 15.8 * 14336) + dequantised
    )
    share, slot = 0.4 * (24 * GIB - CONTEXT), 2 * 335_544_320
    assert parts["vLLM engine"].sampling == pytest.approx(share - weights)
    assert parts["vLLM engine"].training == ENGINE_WORK + slot  # asleep
    handed = parts["adapter handed to the engine"]
    assert (handed.sampling, handed.training) == (2 * 335_544_320, 0)
    a_sequence = 1800 * 2 * 32 * 8 * 128 * 2
    assert memory.sequences == (share - weights - slot - ENGINE_WORK) // a_sequence
    assert memory.peak == max(memory.sampling, memory.training)


def test_what_vllm_is_told_counts() -> None:
    """An engine that does not sleep, sequences at once and their work, a cache in 8 bits."""

    def of(*changes: str) -> Memory:
        asked = load_recipe("llama8b_gsm8k", changes)
        return memory_of(asked, LLAMA, SHARED, prompt_tokens=300, completion_tokens=1500, gpu=80 * GIB)

    asleep, awake = of("rollout.standby=always"), of("rollout.standby=never")
    (engine,) = (part for part in awake.parts if part.name == "vLLM engine")
    assert engine.training == engine.sampling
    slot = 2 * 335_544_320
    assert awake.training - asleep.training == pytest.approx(engine.sampling - ENGINE_WORK - slot)
    assert awake.sampling == asleep.sampling
    weights, a_sequence = weight_bytes(load_recipe("llama8b_gsm8k").model, LLAMA), 1800 * 2 * 32 * 8 * 128 * 2
    cache = 0.4 * (80 * GIB - CONTEXT) - weights - slot
    assert of().sequences == (cache - ENGINE_WORK) // a_sequence == 112
    assert of("rollout.max_num_seqs=64").sequences == 64
    work = 45.1 * 128_256 * 1000  # more than the gibibyte that is there anyway
    assert of("rollout.max_num_seqs=1000").sequences == (cache - work) // a_sequence < 112
    assert of("rollout.vllm.kv_cache_dtype=fp8").sequences == (cache - ENGINE_WORK) // (a_sequence // 2)


def test_gradients_and_a_working_engine_are_never_there_together() -> None:
    memory = memory_of(
        load_recipe("llama8b_gsm8k"), LLAMA, SHARED, prompt_tokens=300, completion_tokens=1500, gpu=80 * GIB
    )
    parts = {part.name: part for part in memory.parts}
    assert parts["gradients"].sampling == 0
    assert parts["vLLM engine"].sampling > 20 * GIB > 2 * GIB > parts["vLLM engine"].training


def test_sft_starts_no_engine_and_samples_nothing() -> None:
    asked = load_recipe("llama8b_gsm8k", ["objective.name=sft", "objective.entropy_coef=0"])
    for engines in (SHARED, Engines("transformers", "transformers", False)):
        memory = memory_of(asked, LLAMA, engines, prompt_tokens=300, completion_tokens=1500, gpu=16 * GIB)
        assert memory.sequences is None
        assert not [part for part in memory.parts if "engine" in part.name or "cache" in part.name]
        assert memory.rows == asked.rollout.prompts_per_step  # one reference for each prompt
        assert fits(memory, 16 * GIB)


def test_a_larger_share_is_named_where_the_recipes_samples_in_turns() -> None:
    few = make_plan(load_recipe("llama8b_gsm8k", ["data.max_prompt_tokens=287"]), gpu=16 * GIB)
    assert (few.fits, few.memory.sequences, few.better_share) == (False, 0, 0.6)
    settings = ["data.max_prompt_tokens=287", "rollout.gpu_memory_utilization=0.6"]
    enough = make_plan(load_recipe("llama8b_gsm8k", settings), gpu=16 * GIB)
    assert enough.fits
    assert (enough.memory.sequences or 0) >= 8
    assert enough.better_share is None


def test_without_data_the_plan_is_a_lower_bound_and_reads_none() -> None:
    asked = load_recipe("llama8b_gsm8k", ["data.path=no/such/folder"])
    least = make_plan(asked, gpu=24 * GIB, read_data=False)
    assert (least.prompt_tokens, least.notes) == (0, ())
    assert least.fits
    assert least.memory.training < make_plan(asked, gpu=24 * GIB).memory.training  # with prompts of up to 4,000 tokens
    assert not make_plan(asked, gpu=12 * GIB, read_data=False).fits


def test_a_step_has_no_more_prompts_than_the_data() -> None:
    settings = ["data.limit=2", "rollout.prompts_per_step=8", "rollout.group_size=4"]
    plan = make_plan(load_recipe("tiny_arithmetic", settings), gpu=24 * GIB)
    assert (plan.memory.rows, plan.memory.sequences) == (2 * 4, 2 * 4)


def test_what_is_downloaded_is_what_the_recipe_names() -> None:
    assert downloads(load_recipe("llama8b_gsm8k"), LLAMA) == (
        "meta-llama/Llama-3.1-8B-Instruct (15.0 GiB of 16-bit weights)", "openai/gsm8k (data)",
    )  # fmt: skip
    (copy,) = downloads(load_recipe("llama8b_gsm8k", ["data.path=here"]), replace(LLAMA, quantized=True))
    assert "(5.3 GiB of 4-bit weights)" in copy
    assert downloads(load_recipe("tiny_arithmetic"), LLAMA) == ()


def test_the_copy_in_4_bits_is_named_with_its_size_where_the_run_has_4_bits_anyway() -> None:
    """LLaMA-3-8B's, of the same shape, is a file of 5.70 GB on the hub."""
    copy = smaller_copy(load_recipe("llama8b_gsm8k"), LLAMA)
    assert copy is not None
    assert copy.name == "unsloth/Llama-3.1-8B-Instruct-bnb-4bit"
    assert copy.size == pytest.approx(5.70e9, rel=1e-3)
    assert copy.instead_of == 2 * LLAMA.parameters
    qwen = smaller_copy(load_recipe("qwen3b_gsm8k"), QWEN)
    assert qwen is not None
    assert qwen.name == "unsloth/Qwen2.5-3B-Instruct-bnb-4bit"
    for changes in (["model.load_in_4bit=false"], ["model.name=owner/other"], [f"model.name={copy.name}"]):
        assert smaller_copy(load_recipe("llama8b_gsm8k", changes), LLAMA) is None
    assert smaller_copy(load_recipe("llama8b_gsm8k"), replace(LLAMA, quantized=True)) is None


def test_a_plain_engine_has_weights_of_its_own() -> None:
    asked = load_recipe("llama8b_gsm8k", ["model.backend=transformers", "rollout.engine=vllm"])
    plain = Engines("transformers", "vllm", False)
    memory = memory_of(asked, LLAMA, plain, prompt_tokens=300, completion_tokens=1500, gpu=80 * GIB)
    (engine,) = (part for part in memory.parts if part.name.startswith("vLLM engine"))
    assert engine.sampling == engine.training == 0.4 * 80 * GIB


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


def test_rows_are_halved_until_they_fit() -> None:
    settings = ["data.max_prompt_tokens=512", "rollout.gpu_memory_utilization=0.6"]
    plans = [make_plan(load_recipe("qwen3b_gsm8k", settings), gpu=size * GIB) for size in (8, 80)]
    assert [plan.fits for plan in plans] == [True, True]
    assert plans[0].memory.rows < plans[1].memory.rows
    assert all(plan.memory.peak <= USABLE * plan.gpu for plan in plans)


def test_without_a_size_the_smallest_gpu_is_found() -> None:
    assert make_plan(load_recipe("llama8b_gsm8k"), gpu=None).gpu == 24 * GIB
    assert make_plan(load_recipe("tiny_arithmetic"), gpu=None).gpu == 8 * GIB
