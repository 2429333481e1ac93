"""What is trained is float32 and moves by small updates, whatever type the model computes in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from policy_contract import ragged_rows, save_model

from gtpo_cli.policy.loading import read_model
from gtpo_cli.policy.transformers_policy import TransformersPolicy, load_transformers_policy
from gtpo_cli.recipe.schema import LoraRecipe, ModelRecipe, OptimizerRecipe
from gtpo_cli.training.optimizers import Updater

LORA = LoraRecipe(rank=4, alpha=8)


def load(folder: Path, dtype: str, *, lora: LoraRecipe | None = None, trains: bool = True) -> TransformersPolicy:
    recipe = ModelRecipe(name=str(folder), load_in_4bit=False, max_seq_length=128, dtype=dtype, lora=lora)
    return load_transformers_policy(
        recipe, files=read_model(recipe, str(folder)), temperature=1.0, with_reference=True, seed=1, trains=trains
    )


def updater_of(policy: TransformersPolicy, **settings: Any) -> Updater:
    recipe = OptimizerRecipe(**{"name": "adamw", "schedule": "constant", "warmup_ratio": 0.0} | settings)
    return Updater(policy.trainable_parameters(), recipe, total_steps=50, dtype=policy.dtype)


def weights_of(policy: TransformersPolicy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.trainable_parameters()])


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_twenty_small_updates_reach_the_weights(tmp_path: Path, dtype: str, lora: LoraRecipe | None) -> None:
    policy = load(save_model(tmp_path), dtype, lora=lora)
    assert {parameter.dtype for parameter in policy.trainable_parameters()} == {torch.float32}
    assert policy.dtype == getattr(torch, dtype)
    updater = updater_of(policy, learning_rate=1e-6)
    before, batch = weights_of(policy), ragged_rows()
    for _ in range(20):
        updater.backward(-policy.token_logprobs(batch)[0].sum() / 50)
        updater.update()
    moments = [moment[name] for moment in updater.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert {moment.dtype for moment in moments} == {torch.float32}
    assert float((weights_of(policy) != before).float().mean()) > 0.99  # in 16 bits 0.007 of all weights


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_float32_weights_compute_in_the_recipes_type(tmp_path: Path, dtype: str) -> None:
    folder, batch = save_model(tmp_path), ragged_rows()
    exact, policy, measured = load(folder, "float32"), load(folder, dtype), load(folder, dtype, trains=False)
    assert measured.model.dtype == getattr(torch, dtype)  # what is only measured takes half the memory
    hidden: list[torch.Tensor] = []
    policy.backbone.layers[0].mlp.down_proj.register_forward_hook(lambda module, given, out: hidden.append(out))
    logp, entropy = policy.token_logprobs(batch)
    assert hidden[0].dtype == getattr(torch, dtype)
    assert logp.dtype == torch.float32
    bound = 0.15 if dtype == "bfloat16" else 0.02
    for other in (exact, measured):
        torch.testing.assert_close(logp, other.token_logprobs(batch)[0], rtol=0, atol=bound)
    torch.testing.assert_close(entropy, exact.token_logprobs(batch)[1], rtol=0, atol=bound)
    torch.testing.assert_close(policy.reference_logprobs(batch), logp.detach(), rtol=0, atol=0)
    assert float((logp - exact.token_logprobs(batch)[0]).detach().abs().max()) > 0  # it is not float32


def gradients(policy: TransformersPolicy, small: float) -> torch.Tensor:
    """Of a loss this small, as that of a completion among many thousand tokens, made larger again."""
    updater = updater_of(policy, learning_rate=1e-9, max_grad_norm=1e6)
    updater.backward(policy.token_logprobs(ragged_rows())[0].sum() * small)
    updater._scaler.unscale_(updater.optimizer)
    return torch.cat([parameter.grad.flatten() for parameter in policy.trainable_parameters()]) / small


def test_small_gradients_survive_float16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_model(tmp_path)
    exact = gradients(load(folder, "float32", lora=LORA), 1.0)

    def error(small: float) -> float:
        return float((gradients(load(folder, "float16", lora=LORA), small) - exact).norm() / exact.norm())

    assert error(1e-6) < 0.01
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, enabled: GRAD_SCALER(device, enabled=False))
    assert error(1e-6) > 0.05  # without the scale


GRAD_SCALER = torch.amp.GradScaler


def test_the_scale_is_saved_and_gives_way_to_infinite_gradients(tmp_path: Path) -> None:
    policy = load(save_model(tmp_path), "float16", lora=LORA)
    updater = updater_of(policy)
    before, scale = weights_of(policy), updater._scaler.get_scale()
    updater.backward(policy.token_logprobs(ragged_rows())[0].sum() * torch.inf)
    assert not torch.isfinite(torch.tensor(updater.update()))
    assert updater._scaler.get_scale() == scale / 2
    assert torch.equal(weights_of(policy), before)
    other = updater_of(policy)
    other.backward(policy.token_logprobs(ragged_rows())[0].sum())
    other.update()
    state = torch.load(_saved(updater, tmp_path / "state.pt"), weights_only=True)
    other.load_state_dict(state | {"optimizer": other.state_dict()["optimizer"]})
    assert other._scaler.get_scale() == scale / 2


def _saved(updater: Updater, file: Path) -> Path:
    torch.save(updater.state_dict(), file)
    return file
