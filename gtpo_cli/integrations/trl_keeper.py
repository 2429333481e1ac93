"""TRL's trainer as a run of ours: a callback that finishes each step by `gtpo_cli.training.run.Run`.

The main process writes; what it decides (to stop, to save) all processes follow.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState

from gtpo_cli.checkpoints import CheckpointState
from gtpo_cli.errors import CheckpointError
from gtpo_cli.models import Policy
from gtpo_cli.training.run import Run
from gtpo_cli.training.step import Ratios, StepResult
from gtpo_cli.training.stopwatch import Stopwatch

# What TRL's checkpoint holds beside the model.
_NOT_THE_MODEL = (
    "optimizer", "scheduler", "rng_state", "trainer_state", "training_args", "README", "scaler", "global_step",
)  # fmt: skip


@dataclass
class RunKeeper(TrainerCallback):  # type: ignore[misc]  # ships untyped
    """Drives a run from TRL's events, here in their order within an update."""

    iterations: int  # updates of a step
    run: Run | None = None  # None in all processes but the main one, as the next two
    policy: Policy | None = None
    result: StepResult | None = None  # of the generation that is trained on
    signals: Sequence[int] = ()  # that came to this process
    clock: Stopwatch = field(default_factory=Stopwatch)
    ratios: list[Ratios] = field(default_factory=list)  # of this update, in the main process
    sampler_known: bool = False  # whether the sampler's log-probabilities are
    _not_finite: bool = False
    _due: CheckpointState | None = None  # the checkpoint that is to be written

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step % self.iterations == 0:
            self.clock, self._not_finite = Stopwatch(), False
            if self.result is not None:  # of this step, where no generation comes first
                self.result.losses, self.result.grad_norms, self.result.kl, self.result.ratios = [], [], [], []

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, optimizer: Any, **_: Any
    ) -> None:
        """A gradient that is not finite changes nothing: not the weights, not the moments."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            self._not_finite = True
            optimizer.zero_grad(set_to_none=True)

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, *, logs: dict[str, float], **_: Any
    ) -> TrainerControl:
        """After an update; TRL's own metrics are left to TRL."""
        if "loss" not in logs:  # the summary at the end
            return control
        if self.result is not None:
            self.result.losses.append(logs["loss"])
            self.result.grad_norms.append(logs.get("grad_norm", math.nan))
            if self.ratios:
                self.result.ratios.append(Ratios.together(self.ratios))
                self.ratios = []
            if "kl" in logs:
                self.result.kl.append(logs["kl"])
            if len(self.result.losses) == 1:
                self.result.learning_rate = logs["learning_rate"]
        if state.global_step % self.iterations == 0:
            control.should_training_stop, control.should_save = self._finish(state.global_step // self.iterations)
        return control

    def _finish(self, number: int) -> tuple[bool, bool]:
        """Finish a step in the main process; (whether the run ends, whether a checkpoint is due), in all of them."""
        signals = [signal for signals in gather_object([list(self.signals)]) for signal in signals]
        decided: list[tuple[bool, bool]] = [(False, False)]
        if self.run is not None:
            self.run.signals = signals  # of any process
            stop = self.run.finish_step(number, self._metrics(number))
            decided = [(stop is not None or number == self.run.total_steps, self._due is not None)]
        broadcast_object_list(decided)
        return decided[0]

    def _metrics(self, number: int) -> dict[str, float]:
        assert self.run is not None
        assert self.result is not None
        assert self.policy is not None
        self.result.not_finite = "the gradient" if self._not_finite else None
        self.result.age = (number - 1) % self.run.recipe.rollout.steps_per_generation
        self.clock.seconds["train"] = self.clock.total - sum(self.clock.seconds.values())
        metrics = self.run.record(number, self.result, self.clock, self.policy)
        return {name: value for name, value in metrics.items() if self.sampler_known or "sampler/" not in name}

    def save(self, state: CheckpointState) -> None:
        """As `Run.begin` asks for: TRL writes its own checkpoint first, which `on_save` follows."""
        self._due = state

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **_: Any) -> None:
        """TRL's checkpoint (`trl/checkpoint-N`) is whole by now: keep its model as one of ours."""
        if self.run is not None and self._due is not None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
            self.run.store.save(self._due, partial(copy_model, folder), trained, {})
            self._due = None


def copy_model(checkpoint: Path, folder: Path) -> None:
    """The model in a checkpoint of TRL's, without what else it holds. Raises CheckpointError for one without it."""
    files = [file for file in checkpoint.iterdir() if file.is_file() and not file.name.startswith(_NOT_THE_MODEL)]
    if not any(file.suffix == ".safetensors" for file in files):
        raise CheckpointError(
            f"{checkpoint}: holds no whole weights; with FSDP ask for fsdp_state_dict_type: FULL_STATE_DICT, with "
            "DeepSpeed ZeRO-3 for stage3_gather_16bit_weights_on_model_save"
        )
    for file in files:
        shutil.copy2(file, folder)
