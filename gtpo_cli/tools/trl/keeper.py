"""A callback that makes TRL's training a run of gtpo: it finishes each step with `gtpo_cli.training.run.Run`.

Only the main process writes. All processes follow its decisions to stop or save.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState

from gtpo_cli.errors import CheckpointError
from gtpo_cli.policy import Policy
from gtpo_cli.runs.checkpoints import CheckpointState
from gtpo_cli.training.run import Run
from gtpo_cli.training.step import Iteration, Ratios, StepRows
from gtpo_cli.training.stopwatch import Stopwatch

# Files in TRL's checkpoint beside the model.
_NOT_THE_MODEL = (
    "optimizer", "scheduler", "rng_state", "trainer_state", "training_args", "README", "scaler", "global_step",
)  # fmt: skip


@dataclass
class RunKeeper(TrainerCallback):  # type: ignore[misc]  # ships untyped
    """Drives a run by TRL's events, listed here in their order within an update."""

    iterations: int  # updates in a step
    policy: Policy
    run: Run | None = None  # this and the next are None outside the main process
    rows: StepRows | None = None  # of the current generation
    signals: Sequence[int] = ()  # received by this process
    clock: Stopwatch = field(default_factory=Stopwatch)
    ratios: list[Ratios] = field(default_factory=list)  # of this update, in the main process
    sampler_known: bool = False  # whether the sampler's log-probabilities are known
    _not_finite: bool = False
    _due: CheckpointState | None = None  # the checkpoint to write

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step % self.iterations == 0:
            self.clock, self._not_finite = Stopwatch(), False
            if self.rows is not None:  # this step may begin without a generation
                self.rows.iterations = []

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, optimizer: Any, **_: Any
    ) -> None:
        """Drop a gradient that is not finite, so that neither the weights nor the moments change."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            self._not_finite = True
            optimizer.zero_grad(set_to_none=True)

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, *, logs: dict[str, float], **_: Any
    ) -> TrainerControl:
        """Finish the step after an update. TRL's own metrics are not logged."""
        if "loss" not in logs:  # the summary at the end
            return control
        if self.rows is not None:
            ratios, rate = Ratios.merge(self.ratios), logs["learning_rate"]
            made = Iteration(logs["loss"], logs.get("kl"), ratios, rate, logs.get("grad_norm", math.nan))
            self.rows.iterations.append(made)
            self.ratios = []
        if state.global_step % self.iterations == 0:
            control.should_training_stop, control.should_save = self._finish(state.global_step // self.iterations)
        return control

    def _finish(self, number: int) -> tuple[bool, bool]:
        """Finish a step in the main process. Return in all of them whether the run ends and a checkpoint is due."""
        signals = [signal for signals in gather_object([list(self.signals)]) for signal in signals]
        decided: list[tuple[bool, bool]] = [(False, False)]
        if self.run is not None:
            self.run.signals = signals  # from all processes
            stop = self.run.finish_step(number, self._metrics(number))
            decided = [(stop is not None or number == self.run.total_steps, self._due is not None)]
        broadcast_object_list(decided)
        return decided[0]

    def _metrics(self, number: int) -> dict[str, float]:
        assert self.run is not None
        assert self.rows is not None
        self.rows.iterations[-1].not_finite = "the gradient" if self._not_finite else None
        age = (number - 1) % self.run.recipe.rollout.steps_per_generation
        self.rows.samples = replace(self.rows.samples, age=age)
        self.clock.seconds["train"] = self.clock.total - sum(self.clock.seconds.values())
        metrics = self.run.record(number, self.rows, self.clock, self.policy)
        return {name: value for name, value in metrics.items() if self.sampler_known or "sampler/" not in name}

    def save(self, state: CheckpointState) -> None:
        """Note that a checkpoint is due. TRL writes its own first, then `on_save` runs."""
        self._due = state

    def roll_back(self, step: int, factor: float) -> float:
        raise AssertionError("check_recipe refuses training.guard.action: rollback with TRL")

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **_: Any) -> None:
        """Write gtpo's checkpoint with the model from TRL's (`trl/checkpoint-N`), which is complete by now."""
        if self.run is not None and self._due is not None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
            self.run.store.save(self._due, partial(copy_model, folder), trained, {})
            self._due = None


def copy_model(checkpoint: Path, folder: Path) -> None:
    """Copy only the model from a checkpoint of TRL. Raises CheckpointError if it has none."""
    files = [file for file in checkpoint.iterdir() if file.is_file() and not file.name.startswith(_NOT_THE_MODEL)]
    if not any(file.suffix == ".safetensors" for file in files):
        raise CheckpointError(
            f"{checkpoint}: has no complete weights; with FSDP set fsdp_state_dict_type: FULL_STATE_DICT, with "
            "DeepSpeed ZeRO-3 set stage3_gather_16bit_weights_on_model_save"
        )
    for file in files:
        shutil.copy2(file, folder)
