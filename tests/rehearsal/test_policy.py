"""UnslothPolicy on Unsloth's CUDA forward, beside the transformers policy on the same weights and adapter."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from policy_contract import LORA, PolicyContract, move, ragged_rows, recipe_for, save_model
from twins import distance, measured, save_in_half, twin

from gtpo_cli.policy.loading import choose_dtype, read_model
from gtpo_cli.policy.sampler import collate
from gtpo_cli.policy.unsloth_policy import UnslothPolicy, load_unsloth_policy
from gtpo_cli.types import Completion, Group, Problem

pytestmark = pytest.mark.usefixtures("on_card")


def load(folder: Path, *, temperature: float = 1.0, **model: Any) -> UnslothPolicy:
    recipe = recipe_for(folder, **model)
    os.environ.pop("UNSLOTH_ENABLE_FULL_FINETUNING", None)  # Unsloth is meant to load once in a process
    return load_unsloth_policy(
        recipe.model,
        files=read_model(recipe.model, str(folder)),
        temperature=temperature,
        with_reference=False,
        seed=1,
        engine=None,
    )


class TestPolicyContract(PolicyContract):
    """Without an engine, in float32; one block, since Triton's interpreter is slow."""

    backend = "unsloth"

    @pytest.fixture(scope="class", params=["llama", "qwen2"])
    def folder(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return save_model(tmp_path_factory.mktemp(request.param), request.param, num_hidden_layers=1)

    def load(self, folder: Path, lora: Any = LORA, **changes: Any) -> Any:
        return load(folder, lora=lora, **changes)

    @pytest.mark.parametrize(("temperature", "checkpointing"), [(0.7, True)])
    def test_logprobs_entropies_and_gradients_equal_full_logits(
        self, folder: Path, temperature: float, checkpointing: bool, tmp_path: Path
    ) -> None:
        """Here against the transformers policy: Unsloth's forward computes in no float64."""
        policy = load(folder, temperature=temperature, gradient_checkpointing=checkpointing)
        assert type(policy._causal_lm.base_model).forward.__qualname__ == "LlamaModel_fast_forward"
        move(policy)
        ours = measured(policy)
        theirs = measured(twin(policy, folder, tmp_path / "adapter", temperature=temperature))
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-5)
        assert distance(ours[2], theirs[2]) < 1e-5


def test_a_group_goes_through_the_trunk_with_its_prompt_once(tmp_path: Path) -> None:
    """At most 1.05 (P + sum of the completions), where padded rows are G (P + longest); and longer than the context."""
    policy = load(save_model(tmp_path, num_hidden_layers=1), max_seq_length=64)
    prompt, lengths = tuple(range(8, 48)), (16, 3, 9, 16, 1, 12, 5, 16)
    rows = tuple(Completion(tuple(range(9, 9 + n)), (0.0,) * n, "stop", "") for n in lengths)
    tokens: list[int] = []
    layer = policy._causal_lm.base_model.layers[0].mlp
    layer.register_forward_pre_hook(lambda _, inputs: tokens.append(inputs[0].shape[:-1].numel()))
    packed = collate([Group(Problem("p", "q", "1"), prompt, rows)])
    with torch.no_grad():
        together, _ = policy.token_logprobs(packed)
    assert tokens == [40 + 78 - 8]  # a completion's last token predicts nothing
    assert tokens[0] <= 1.05 * (40 + 78)
    assert tokens[0] > policy.max_seq_length
    for place, row in enumerate(rows):
        with torch.no_grad():
            alone, _ = policy.token_logprobs(collate([Group(Problem("p", "q", "1"), prompt, (row,))]))
        n = len(row.token_ids)
        torch.testing.assert_close(together[place, :n], alone[0, :n], rtol=1e-5, atol=1e-5)


def test_auto_is_bfloat16_by_the_question_that_unsloth_puts_in_torchs_place() -> None:
    on_a_gpu: Any = SimpleNamespace(type="cuda")  # a device of torch's would be the CPU here
    assert torch.cuda.is_bf16_supported.__module__.startswith("unsloth")
    assert choose_dtype("auto", on_a_gpu) == torch.bfloat16


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_four_bits(architecture: str, tmp_path: Path) -> None:
    """NF4 weights in float16: near the transformers policy in float32, before and after saving and loading."""
    folder = save_in_half(tmp_path / "model", architecture, hidden_size=128, head_dim=32, num_hidden_layers=1)
    model = {"dtype": "float16", "load_in_4bit": True, "gradient_checkpointing": True}
    policy = load(folder, **model)
    assert {type(m).__name__ for m in policy.model.modules() if "4bit" in type(m).__name__} >= {"Linear4bit"}
    move(policy)
    plain = twin(policy, folder, tmp_path / "adapter", load_in_4bit=True)
    ours, theirs = measured(policy), measured(plain)
    assert float(((ours[0] - theirs[0]) / (1 + theirs[0].abs())).abs().max()) < 4e-3
    assert distance(ours[2], theirs[2]) < 5e-3
    assert all(float(gradient.abs().max()) > 0 for gradient in ours[2])
    loaded = load(folder, **model)
    loaded.load(tmp_path / "adapter")
    again = measured(loaded)
    assert torch.equal(again[0], ours[0])
    assert distance(again[2], ours[2]) == 0


def test_no_module_of_unsloths_under_the_agpl_was_imported_for_it(tmp_path: Path) -> None:
    """Its own kernel for rows that share prompts; ours stands in its place."""
    policy = load(save_model(tmp_path, num_hidden_layers=1))
    with torch.no_grad():
        policy.token_logprobs(ragged_rows())
    assert policy.packs
    assert not [name for name in sys.modules if "prefix_grouper_kernel" in name]
