"""Runs that something happens to: killed at any moment, no room on the disk, damaged files."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import forks
import pytest
from commands import GTPO, environment
from small_models import random_model
from small_runs import Whole, gtpo, train

FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    command = [str(FOLDER / "killed_at_a_change.py"), "0", *train("whole")]
    forks.run([*GTPO, "--version"], cwd=folder, env=environment())  # which waits for the libraries
    start = time.monotonic()
    done = forks.run(command, cwd=folder, env=environment())
    seconds = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    return Whole(folder / "runs" / "whole", int(done.stdout.rpartition("changes ")[2]), seconds)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all its weights, evaluated, and one with an adapter that was killed within a generation: small, and as
    they come out of the commands."""
    folder = tmp_path_factory.mktemp("real")
    gtpo(folder, train("one", "training.max_steps=2", "training.eval_every=2"))
    gtpo(folder, ["eval", "runs/one", "--base", "--pass-k", "2", "--limit", "4"])
    ahead = ["rollout.steps_per_generation=3", "training.max_steps=3", "training.save_every=1"]
    gtpo(folder, train("ad", "model.lora={rank: 2, alpha: 4}", "training.eval_every=null", *ahead))
    shutil.rmtree(folder / "runs/ad/checkpoints/step-000003")
    model, tokenizer = random_model()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder
