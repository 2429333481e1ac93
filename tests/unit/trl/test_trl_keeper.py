"""The parts of a TRL run's keeper that need no TRL: gradients that are not finite, and TRL's checkpoints as ours."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import TrainerControl, TrainerState

from gtpo_cli.errors import CheckpointError
from gtpo_cli.tools.trl.keeper import RunKeeper, copy_model


def stepped(keeper: RunKeeper, model: torch.nn.Module, optimizer: torch.optim.Optimizer, gradient: float) -> None:
    """What transformers' trainer does around an update."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    keeper.on_step_begin(None, TrainerState(), TrainerControl())
    keeper.on_pre_optimizer_step(None, TrainerState(), TrainerControl(), model=model, optimizer=optimizer)
    optimizer.step()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_moments(bad: float) -> None:
    keeper = RunKeeper(1, None)  # type: ignore[arg-type]  # nothing is finished here
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    stepped(keeper, model, optimizer, 1.0)
    weights = model.weight.detach().clone()
    moments = optimizer.state[model.weight]["exp_avg"].clone()
    stepped(keeper, model, optimizer, bad)
    assert torch.equal(model.weight, weights)
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], moments)
    stepped(keeper, model, optimizer, 1.0)
    assert not torch.equal(model.weight, weights)


def test_the_model_of_a_checkpoint_is_taken_and_nothing_else(tmp_path: Path) -> None:
    trl, ours = tmp_path / "checkpoint-6", tmp_path / "model"
    (trl / "ref").mkdir(parents=True)
    ours.mkdir()
    model = ("model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja")
    state = ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "trainer_state.json", "training_args.bin", "README.md")
    for name in (*model, *state):
        (trl / name).write_text(name)
    copy_model(trl, ours)
    assert {file.name for file in ours.iterdir()} == set(model)
    assert (ours / "config.json").read_text() == "config.json"
    (trl / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="FULL_STATE_DICT"):
        copy_model(trl, ours)
