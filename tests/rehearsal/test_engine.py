"""Unsloth's `load_vllm`, its converter, and a real vLLM engine on the policy's own weights: NF4, computed in float16.

One engine in a process, as on a GPU: the commands of test_commands.py have processes of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import policy_of, sampler_of
from policy_contract import LORA, recipe_for
from sampler_contract import CONTEXT, PROMPTS, SamplerContract, gap
from twins import distance, measured, save_in_half, twin

from gtpo_cli.errors import GenerationError, ModelError
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.policy.unsloth_policy import _check_started
from gtpo_cli.policy.vllm_start import capture_graphs_with_adapter
from gtpo_cli.recipe.schema import RolloutRecipe

HEADS = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}  # vLLM takes heads of 32 and more
SHARE = 0.4
ROLLOUT = {
    "gpu_memory_utilization": SHARE, "max_num_seqs": 256, "standby": "always",
    "vllm": {"max_num_batched_tokens": 5200, "enable_prefix_caching": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def pair(on_card: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = save_in_half(tmp_path_factory.mktemp("model"), num_hidden_layers=1, initializer_range=0.1, **HEADS)
    recipe = recipe_for(
        folder, backend="unsloth", max_seq_length=CONTEXT, dtype="float16", lora=LORA, load_in_4bit=True,
        gradient_checkpointing=True, rollout=ROLLOUT,
    )  # fmt: skip
    policy = policy_of(recipe)
    assert policy.shares_engine
    policy.folder = folder
    sampler = sampler_of(policy, recipe)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return policy, sampler


def engine_of(policy: Any) -> Any:
    return policy.model.vllm_engine


class TestSharedEngine(SamplerContract):
    """Two arithmetics in 16 bits: the engine's, and that of Unsloth's kernels in the interpreter."""

    tolerance = 2e-2
    moved = 0.2

    @pytest.fixture
    def pair(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        return pair


def test_base_weights_exist_once(pair: tuple[Any, Any]) -> None:
    policy, _ = pair
    runner = engine_of(policy).llm_engine.model_executor.driver_worker.worker.model_runner
    served = {parameter.data_ptr() for parameter in runner.model.parameters()}
    base = {name: p for name, p in policy.model.named_parameters() if not p.requires_grad and p.ndim == 2}
    assert {p.dtype for name, p in base.items() if "proj" in name} == {torch.uint8}
    fused = ("k_proj", "v_proj", "up_proj")  # the second and third part of a matrix that the engine holds in one piece
    alone = {name: p for name, p in base.items() if not any(part in name for part in fused)}
    assert len(alone) >= 5
    assert {name for name, p in alone.items() if p.data_ptr() not in served} == set()


def test_what_the_recipe_says_reaches_the_engine(pair: tuple[Any, Any], on_card: Any) -> None:
    """Its share of the memory that is free (79 of 80 GiB), and whole rows; Unsloth's own choice would be 0.868."""
    policy, _ = pair
    config = engine_of(policy).llm_engine.vllm_config
    assert config.cache_config.gpu_memory_utilization == pytest.approx(SHARE * 79 / 80)
    assert config.model_config.max_model_len == CONTEXT == policy.max_seq_length
    assert config.model_config.enable_sleep_mode
    scheduler = config.scheduler_config
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (257, 5200)  # at 256 Unsloth takes its own: 96
    assert not config.cache_config.enable_prefix_caching
    assert (config.model_config.quantization, config.model_config.dtype) == ("bitsandbytes", torch.float16)
    with pytest.raises(ModelError, match=r"gpu_memory_utilization: the engine's share only fits rows of 64 tokens"):
        _check_started(policy.model, CONTEXT + 1)


def test_it_is_awake_only_while_it_samples_whatever_happens(pair: tuple[Any, Any], on_card: Any) -> None:
    from vllm.exceptions import VLLMValidationError

    policy, sampler = pair
    assert on_card.calls[0] == "sleep"  # from its start
    engine = engine_of(policy)
    assert engine.llm_engine.engine_core.engine_core.is_sleeping()
    on_card.calls.clear()
    sampler.sample(PROMPTS, 1, SamplingParams(max_completion_tokens=2))
    assert on_card.calls == ["wake", "sleep"]
    with pytest.raises(VLLMValidationError, match="out of vocabulary"):  # vLLM's own refusal, past our checks
        next(sampler._engine.generate([([10**6], sampler._engine_params([1], 1, SamplingParams(), 0))]))
    assert on_card.calls == ["wake", "sleep", "wake", "sleep"]
    assert engine.llm_engine.engine_core.engine_core.is_sleeping()
    on_card.calls.clear()
    numbers = range(30)
    params = SamplingParams(max_completion_tokens=2)
    coming = sampler.sample_blocks([PROMPTS[0]] * 30, 20, params, size=1, seeds=[*numbers], wanted=numbers)
    for _ in range(20):  # 600 completions in all, of which 256 are sampled at once
        next(coming)
        assert on_card.calls == ["wake"]
    coming.close()
    assert on_card.calls == ["wake", "sleep"]
    assert not engine.llm_engine.has_unfinished_requests()
    assert engine.llm_engine.engine_core.engine_core.is_sleeping()


def test_an_engine_that_cannot_wake_is_tried_once_more_and_then_said(
    pair: tuple[Any, Any], on_card: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor above the worker that wakes up is vLLM's own."""
    from vllm.v1.worker.cpu_worker import CPUWorker

    policy, sampler = pair
    monkeypatch.setattr(CPUWorker, "wake_up", CPUWorker.wake_up)  # as it was, afterwards
    on_card.no_room_at_wake_up(3)
    params = SamplingParams(max_completion_tokens=2)
    with pytest.raises(GenerationError, match="does not hold vLLM's engine and everything else there"):
        sampler.sample(PROMPTS, 1, params)
    assert engine_of(policy).llm_engine.is_sleeping()
    on_card.calls.clear()
    assert [len(row) for row in sampler.sample(PROMPTS, 1, params)] == [1] * len(PROMPTS)  # the second waking succeeds
    assert on_card.calls == ["wake", "sleep"]


def test_the_adapter_is_there_in_16_bits_and_only_while_it_samples(pair: tuple[Any, Any]) -> None:
    policy, sampler = pair
    sampler.sync(policy)
    handed = sampler._engine._adapter.lora_tensors
    assert {tensor.dtype for tensor in handed.values()} == {torch.float16}
    assert {parameter.dtype for parameter in policy.trainable_parameters()} == {torch.float32}
    for _ in range(2):  # also without another sync
        sampler.sample(PROMPTS, 1, SamplingParams(max_completion_tokens=2))
        assert sampler._engine._adapter is None
        assert engine_of(policy).llm_engine.list_loras() == set()


def test_an_adapter_that_only_measures_has_16_bits_and_stays_as_it_is(pair: tuple[Any, Any]) -> None:
    """vLLM multiplies alpha / rank into what it gets."""
    policy, sampler = pair
    params = SamplingParams(max_completion_tokens=4, seed=2)
    expected = sampler.sample(PROMPTS, 2, params)
    trained = [parameter.data for parameter in policy.trainable_parameters()]
    for parameter in policy.trainable_parameters():
        parameter.data = parameter.data.half()
    before = [parameter.detach().clone() for parameter in policy.trainable_parameters()]
    try:
        sampler.sync(policy)
        assert sampler.sample(PROMPTS, 2, params) == expected
        assert all(torch.equal(a, b) for a, b in zip(before, policy.trainable_parameters(), strict=True))
    finally:
        for parameter, data in zip(policy.trainable_parameters(), trained, strict=True):
            parameter.data = data
        sampler.sync(policy)


def test_only_graphs_with_an_adapter_are_captured(pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """By vLLM's runner for GPUs, which the CPU build has and does not use."""
    from vllm.config import CompilationConfig
    from vllm.config.lora import LoRAConfig
    from vllm.v1.worker.gpu import model_runner

    asked = LoRAConfig(max_loras=1, max_lora_rank=8), CompilationConfig()
    assert model_runner.get_lora_capture_cases(*asked) == [2]
    assert model_runner.get_lora_capture_cases(None, asked[1]) == [0]
    monkeypatch.setattr(model_runner, "get_lora_capture_cases", lambda *_: [0, 2])
    speculation = {"method": "ngram", "num_speculative_tokens": 3}
    capture_graphs_with_adapter(RolloutRecipe(vllm={"speculative_config": speculation}))
    assert model_runner.get_lora_capture_cases(*asked) == [0, 2]


def test_neither_usage_reports_nor_flashinfer(pair: tuple[Any, Any]) -> None:
    from vllm.usage.usage_lib import is_usage_stats_enabled

    assert not is_usage_stats_enabled()
    assert sys.modules["flashinfer"] is None  # as if it were not installed: tests/unit/policy/test_vllm_start.py


def test_an_end_token_of_the_models_own_configuration_ends_a_completion(pair: tuple[Any, Any]) -> None:
    """vLLM adds those of generation_config.json to ours."""
    policy, sampler = pair
    engine = engine_of(policy)
    (row,) = sampler.sample([PROMPTS[0]], 8, SamplingParams(max_completion_tokens=6, seed=3))
    end = row[0].token_ids[2]
    processor = engine.llm_engine.input_processor
    before = dict(processor.generation_config_fields)
    processor.generation_config_fields["eos_token_id"] = [2, end]
    try:
        (stopped,) = sampler.sample([PROMPTS[0]], 8, SamplingParams(max_completion_tokens=6, seed=3))
    finally:
        processor.generation_config_fields.clear()
        processor.generation_config_fields.update(before)
    assert end not in policy.eos_token_ids
    first = stopped[0]
    assert first.token_ids == row[0].token_ids[: row[0].token_ids.index(end) + 1]
    assert (first.finish_reason, first.truncated) == ("stop", False)


def test_a_stale_adapter_shows_and_sync_mends_it(pair: tuple[Any, Any]) -> None:
    policy, sampler = pair
    torch.manual_seed(1)
    sampler.sync(policy)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    params = SamplingParams(max_completion_tokens=12, seed=5)
    stale = gap(policy, PROMPTS, sampler.sample(PROMPTS, 4, params))
    sampler.sync(policy)
    fresh = gap(policy, PROMPTS, sampler.sample(PROMPTS, 4, params))
    assert fresh < 0.02
    assert stale > 10 * fresh


def test_it_is_the_transformers_policy_on_the_same_weights_before_and_after_sampling(
    pair: tuple[Any, Any], tmp_path: Path
) -> None:
    """Which quantises the folder by itself, and computes in float32: log-probabilities, and all gradients together."""
    policy, sampler = pair
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.copy_(0.1 * torch.randn_like(parameter))
    expected = measured(twin(policy, policy.folder, tmp_path / "adapter", load_in_4bit=True, max_seq_length=CONTEXT))
    for _ in range(2):
        found = measured(policy)
        assert float(((found[0] - expected[0]) / (1 + expected[0].abs())).abs().max()) < 2e-3
        assert distance(found[2], expected[2]) < 5e-3
        sampler.sync(policy)
        sampler.sample(PROMPTS, 2, SamplingParams(max_completion_tokens=4))
