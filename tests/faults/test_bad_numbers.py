"""Steps that are not finite, and policies that collapse, in whole runs of the loop."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import metrics
from safetensors.torch import load_file

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.recipe import load_recipe
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.training import loop
from gtpo_cli.training import run as run_module
from gtpo_cli.training.loop import train
from gtpo_cli.training.run import Outcome

SMALL = [
    "rollout.prompts_per_step=1", "rollout.group_size=4", "rollout.max_completion_tokens=16", "tracking.wandb.mode=off",
    "objective.initial_entropy=0.2", "training.save_every=2", "tracking.log_completions_every=1000",
]  # fmt: skip


def run_with_bad_gradients(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bad: set[int], *changes: str
) -> tuple[Outcome, list[str]]:
    """A run in whose steps `bad` a gradient is NaN; what was said, too."""
    set_up = loop.set_up

    def spoiled(*arguments: Any, **options: Any) -> Any:
        setup = set_up(*arguments, **options)
        calls = [0]

        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            return gradient * math.nan if calls[0] in bad else gradient

        next(iter(setup.policy.trainable_parameters())).register_hook(spoil)
        return setup

    monkeypatch.setattr(loop, "set_up", spoiled)
    recipe = load_recipe("tiny_arithmetic", [*SMALL, f"output_dir={folder}", "run_name=run", *changes])
    run = RunFolder(folder / "run")
    run.create(recipe)
    said: list[str] = []
    return train(Parts(recipe).training_job(), run, quiet=True, say=said.append), said


def all_finite(checkpoint: Path) -> bool:
    weights = load_file(checkpoint / "model" / "model.safetensors")
    return all(bool(torch.isfinite(value).all()) for value in weights.values())


def test_a_bad_step_is_skipped_shown_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = run_with_bad_gradients(tmp_path, monkeypatch, {3}, "training.max_steps=6")
    assert (result.step, result.stopped) == (6, None)
    rows = metrics(tmp_path / "run")
    assert [row["optim/skipped"] for row in rows] == [0, 0, 1, 0, 0, 0]
    assert rows[2]["optim/grad_norm"] is None  # JSON has no NaN
    assert rows[2]["train/reward_mean"] >= 0
    assert "step 3 was skipped: the gradient was not finite; its completions:" in capsys.readouterr().out
    samples = (tmp_path / "run" / "samples" / "step-000003.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in samples]) == 4
    assert all_finite(tmp_path / "run" / "checkpoints" / "step-000006")


def test_a_collapsing_run_goes_back_to_its_best_weights_and_recovers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRPO at a learning rate of 0.0015 forgets within ten steps how to add; at a tenth of it, it learns."""
    monkeypatch.setattr(run_module, "ROLLBACK_RATE", 0.1)
    recipe = load_recipe("tiny_arithmetic", [
        "objective.name=grpo", "rewards.format.mode=presence", "rollout.max_completion_tokens=48",
        "training.max_steps=70",
        "training.guard={action: rollback, window: 10}", "training.save_every=5",
        "tracking.wandb.mode=off", "optimizer.learning_rate=0.0015", "optimizer.schedule=constant",
        f"output_dir={tmp_path}", "run_name=run",
    ])  # fmt: skip
    run = RunFolder(tmp_path / "run")
    run.create(recipe)
    result = train(Parts(recipe).training_job(), run, quiet=True)
    assert (result.step, result.stopped) == (70, None)
    rows = metrics(run.path)
    (alarm,) = (row["step"] for row in rows if row["guard/alarms"])
    output = capsys.readouterr().out
    assert f"step {alarm}: policy collapse: over the last 10 steps the accuracy rate fell from" in output
    assert f"step {alarm}: went back to the weights of step" in output
    assert rows[alarm]["optim/learning_rate"] == pytest.approx(0.00015)  # of the step after the alarm
    accuracy = [row["train/accuracy_rate"] for row in rows]
    lost, recovered = sum(accuracy[alarm - 4 : alarm]) / 4, sum(accuracy[-10:]) / 10
    print(f"accuracy {lost:.2f} when the guard spoke at step {alarm}, {recovered:.2f} at the end")
    assert lost < 0.1
    assert recovered > 0.6
