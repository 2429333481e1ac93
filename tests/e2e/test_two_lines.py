"""The smallest recipe of docs/start.md, with an own model: its open keys fit the machine and stay in the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from commands import Run
from policy_contract import save_model

from gtpo_cli.recipe import load_recipe


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_two_lines_train_on_a_cpu_and_the_run_keeps_what_they_came_to(gtpo: Run, tmp_path: Path) -> None:
    save_model(tmp_path / "model", max_position_embeddings=512)
    (tmp_path / "my.yaml").write_text("model: {name: model}\ndata: {benchmark: arithmetic}\n")
    short = ["training.max_steps=1", "rollout.max_completion_tokens=8", "objective.initial_entropy=1", "run_name=run",
             "tracking.wandb.mode=off", "data.limit=8"]  # fmt: skip
    done = gtpo("train", "--recipe", "my.yaml", *(part for change in short for part in ("--set", change)))
    opened = (
        "model.load_in_4bit: false, model.dtype: float32, model.gradient_checkpointing: false, optimizer.name: adamw"
    )
    assert f"million weights: {opened}" in done.stdout
    saved = yaml.safe_load((tmp_path / "runs/run/recipe.yaml").read_text())
    assert [saved["model"][key] for key in ("load_in_4bit", "dtype", "gradient_checkpointing")] == [
        False, "float32", "auto",  # the last changes no step, so another machine may decide otherwise
    ]  # fmt: skip
    assert (saved["optimizer"]["name"], saved["rollout"]["gpu_memory_utilization"]) == ("adamw", "auto")
    decided = json.loads((tmp_path / "runs/run/environment.json").read_text())["decided"]
    assert decided == {
        "model.load_in_4bit": False, "model.dtype": "float32", "model.gradient_checkpointing": False,
        "optimizer.name": "adamw", "rollout.gpu_memory_utilization": 0.4,
    }  # fmt: skip
    first = load_recipe(tmp_path / "runs/run/recipe.yaml")
    resumed = gtpo("train", "--resume", "runs/run", "--set", "training.max_steps=2")
    assert "million weights: model.gradient_checkpointing: false" in resumed.stdout
    training = first.training.model_copy(update={"max_steps": 2})
    assert load_recipe(tmp_path / "runs/run/recipe.yaml") == first.model_copy(update={"training": training})
