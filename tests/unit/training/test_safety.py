"""What a run does on the guard's word and on steps that cannot be taken: real policy, optimiser and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import random_model

from gtpo_cli.checkpoints import CheckpointState, CheckpointStore
from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.recipe.schema import OptimizerRecipe, TrainingRecipe
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.safety import Rollback, Safety, Stop

GOOD = {
    "entropy/mean": 0.3, "train/strict_format_rate": 0.9, "train/accuracy_rate": 0.4, "completions/length_mean": 50.0,
    "completions/truncated_share": 0.05, "groups/uninformative_share": 0.3, "optim/skipped": 0.0,
}  # fmt: skip
BAD = GOOD | {"completions/truncated_share": 0.9}
SKIPPED = {"optim/skipped": 1.0}


class Run:
    """A run of two-step windows with a checkpoint after every second step, fed with made-up metrics."""

    def __init__(
        self, folder: Path, *, history: list[dict[str, float]] | None = None, rollbacks: int = 0, **guard: Any
    ) -> None:
        model, tokenizer = random_model()
        self.policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=64)
        optimizer = OptimizerRecipe(name="adamw", learning_rate=0.01, warmup_ratio=0.0, schedule="cosine")
        self.updater = Updater(self.policy.trainable_parameters(), optimizer, total_steps=40)
        recipe = TrainingRecipe(guard={"window": 2} | guard, max_bad_steps=3)
        self.store = CheckpointStore(folder, keep_last=9)
        self.warnings: list[str] = []
        warn = self.warnings.append
        rollback = Rollback(recipe.guard, self.store, self.policy, self.updater, warn=warn)
        self.safety = Safety(recipe, history=history or [], warn=warn, rollback=rollback, rollbacks=rollbacks)
        self.rows = list(history or [])
        self.state = CheckpointState(0, 0)
        self.best: int | None = None
        self.weights_at: dict[int, torch.Tensor] = {}

    def step(self, metrics: dict[str, float]) -> Stop | None:
        """One update with random gradients, then what the metrics call for."""
        number = len(self.rows) + 1
        torch.manual_seed(number)
        for parameter in self.policy.trainable_parameters():
            parameter.grad = torch.randn(parameter.shape)
        self.updater.update()
        self.updater.advance_schedule()
        row = dict(metrics)
        seen = self.safety.look(row)
        self.rows.append(row)
        stop = self.safety.act(number, row, seen, self.state)
        if stop is None and number % 2 == 0:
            self.state = CheckpointState(number, 0, self.best, None)
            self.store.save(self.state, self.policy, {"updater": self.updater.state_dict()})
            self.weights_at[number] = self.weights()
        return stop

    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.policy.trainable_parameters()])


def test_a_warning_lets_the_run_go_on(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert [run.step(row) for row in [GOOD] * 3 + [BAD] * 4] == [None] * 7
    assert [row["guard/alarms"] for row in run.rows] == [0, 0, 0, 1, 0, 1, 0]
    assert run.warnings[0].startswith("step 4: policy collapse: over the last 2 steps 0.48 of the completions run into")


def test_stop_ends_it_with_what_was_seen(tmp_path: Path) -> None:
    run = Run(tmp_path, action="stop")
    stops = [run.step(row) for row in [GOOD] * 3 + [BAD]]
    assert stops[:3] == [None] * 3
    assert stops[3] is not None
    assert stops[3].save
    assert stops[3].reason.startswith("policy collapse: over the last 2 steps 0.48 of the completions")


@pytest.mark.parametrize("best", [2, None])
def test_rollback_takes_the_best_weights_and_half_the_rate(tmp_path: Path, best: int | None) -> None:
    run = Run(tmp_path, action="rollback", max_rollbacks=2)
    for _ in range(5):
        run.step(GOOD)
    run.state = CheckpointState(4, 0, best, None)
    schedule = [run.updater.learning_rate]
    plain = Run(tmp_path / "plain")
    for _ in range(6):
        plain.step(GOOD)
    schedule.append(plain.updater.learning_rate)
    assert run.step(BAD) is None
    back = 2 if best == 2 else 4  # without a best one: the newest from before the window of the alarm
    assert torch.equal(run.weights(), run.weights_at[back])
    assert run.updater.learning_rate == pytest.approx(schedule[1] / 2)
    assert run.warnings[-1].startswith(f"step 6: went back to the weights of step {back}; the learning rate is")
    assert run.warnings[-1].endswith("(rollback 1 of 2)")
    moments = run.updater.optimizer.state_dict()["state"][0]
    saved = run.store.load_training(back)["updater"]["optimizer"]["state"][0]
    assert torch.equal(moments["exp_avg"], saved["exp_avg"])
    run.step(GOOD)
    plain.step(GOOD)
    assert run.updater.learning_rate == pytest.approx(plain.updater.learning_rate / 2)  # the schedule went on


def test_rollbacks_end_and_survive_a_resume(tmp_path: Path) -> None:
    run = Run(tmp_path, action="rollback", max_rollbacks=1)
    for row in [GOOD] * 5 + [BAD]:
        assert run.step(row) is None
    resumed = Run(tmp_path, action="rollback", max_rollbacks=1, history=run.rows, rollbacks=run.safety.rollbacks)
    resumed.state = run.state
    resumed.updater.load_state_dict(run.updater.state_dict())
    assert resumed.updater.learning_rate == run.updater.learning_rate
    for one in (run, resumed):
        assert one.step(BAD) is None
        stop = one.step(BAD)
        assert stop is not None
        assert stop.reason.startswith("policy collapse after 1 rollback: ")
        assert stop.for_good


def test_a_damaged_checkpoint_is_no_place_to_go_back_to(tmp_path: Path) -> None:
    run = Run(tmp_path, action="rollback")
    for _ in range(5):
        run.step(GOOD)
    (run.store.path(4) / "training.pt").write_bytes(b"")
    assert run.step(BAD) is None
    assert torch.equal(run.weights(), run.weights_at[2])
    assert any("step-000004/training.pt: damaged checkpoint" in text for text in run.warnings)


def test_without_a_checkpoint_from_before_the_run_stops(tmp_path: Path) -> None:
    run = Run(tmp_path, action="rollback")
    run.step(GOOD)
    run.step(GOOD)
    stop = run.step(BAD | {"completions/truncated_share": 1.0})
    assert stop is not None
    assert "there is no earlier checkpoint to go back to" in stop.reason


def test_too_many_bad_steps_in_a_row_stop_the_run_without_saving(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert [run.step(row) for row in [GOOD, SKIPPED, SKIPPED, GOOD, SKIPPED, SKIPPED]] == [None] * 6
    stop = run.step(SKIPPED)
    assert stop is not None
    assert not stop.save
    assert stop.reason.startswith("3 steps in a row made no update")


def test_bad_steps_before_a_resume_count(tmp_path: Path) -> None:
    run = Run(tmp_path, history=[GOOD, SKIPPED, SKIPPED])
    assert run.step(SKIPPED) is not None
