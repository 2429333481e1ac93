"""A run folder for a run that TRL makes: the same metrics, samples and checkpoints as gtpo's own loop writes.

A callback of TRL's trainer. The main process writes; what it decides (to stop, to save) all processes follow.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState

from gtpo_cli.checkpoints import CheckpointState, CheckpointStore
from gtpo_cli.errors import CheckpointError
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.tracking import Trackers
from gtpo_cli.training.audit import audit_metrics
from gtpo_cli.training.best import Best
from gtpo_cli.training.interrupts import reason
from gtpo_cli.training.safety import Safety, Stop
from gtpo_cli.training.samples import write_samples
from gtpo_cli.training.step import StepResult
from gtpo_cli.training.step_metrics import step_metrics
from gtpo_cli.training.stopwatch import Stopwatch

# What TRL's checkpoint holds beside the model.
_NOT_THE_MODEL = (
    "optimizer", "scheduler", "rng_state", "trainer_state", "training_args", "README", "scaler", "global_step",
)  # fmt: skip


@dataclass(slots=True)
class Writers:
    """What only the main process has."""

    trackers: Trackers
    store: CheckpointStore
    safety: Safety
    best: Best
    tokenizer: Any
    eos_token_ids: frozenset[int]


@dataclass
class RunKeeper(TrainerCallback):  # type: ignore[misc]  # ships untyped
    """`state`: that of the newest checkpoint; `stopped`: why the run ended before its last step, None otherwise."""

    recipe: Recipe
    run: RunFolder
    state: CheckpointState
    writers: Writers | None  # None in all processes but the main one
    signals: list[int] = field(default_factory=list)  # that came
    clock: Stopwatch = field(default_factory=Stopwatch)
    result: StepResult | None = None  # of the batch that is trained on, in the main process
    sampler_known: bool = False  # whether the sampler's log-probabilities are
    stopped: str | None = None
    _not_finite: bool = False
    _for_good: bool = False  # whether a resume has to stop there too

    @property
    def _updates(self) -> int:
        return self.recipe.objective.num_iterations

    # -- TRL's events, in their order within an update ----------------------------------------------------------------

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step % self._updates == 0:
            self.clock, self._not_finite = Stopwatch(), False

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
        if self.writers is not None and self.result is not None:
            self.result.losses.append(logs["loss"])
            self.result.grad_norms.append(logs.get("grad_norm", float("nan")))
            if "kl" in logs:
                self.result.kl.append(logs["kl"])
            if len(self.result.losses) == 1:
                self.result.learning_rate = logs["learning_rate"]
        if state.global_step % self._updates:
            return control
        number = state.global_step // self._updates
        stop = self._agree(self._log(number) if self.writers is not None else None)
        if stop is not None:
            self.stopped, self._for_good = stop.reason, stop.for_good
            control.should_training_stop = True
            control.should_save = stop.save
        return control

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **_: Any) -> None:
        """TRL's own checkpoint (`trl/checkpoint-N`) is whole by now: keep its model as one of ours."""
        number = state.global_step // self._updates
        if self.writers is not None:
            saved = SavedModel(Path(args.output_dir) / f"checkpoint-{state.global_step}", model)
            best = self.state.best_step, self.state.best_value
            if scheduled := number % self.recipe.training.save_every == 0 or state.global_step == state.max_steps:
                best = self.writers.best.choose(number, self.state)
            position = self.writers.trackers.position
            stopped = self.stopped if self._for_good else None
            after = CheckpointState(number, position, *best, scheduled=scheduled, stopped=stopped)
            self.writers.store.save(after, saved, {})
            self.state = after

    # -- the main process ---------------------------------------------------------------------------------------------

    def _log(self, number: int) -> Stop | None:
        assert self.writers is not None
        assert self.result is not None
        writers, result = self.writers, self.result
        result.not_finite = "the gradient" if self._not_finite else None
        every = self.recipe.tracking.log_completions_every
        if result.not_finite or number == 1 or number % every == 0:
            file = write_samples(self.run.samples, number, result, writers.tokenizer)
            if result.not_finite:
                writers.trackers.warn(f"step {number} was skipped: a gradient was not finite; its completions: {file}")
        self.clock.seconds["train"] = self.clock.total - sum(self.clock.seconds.values())
        metrics = step_metrics(result, self.clock)
        if not self.sampler_known:
            metrics = {name: value for name, value in metrics.items() if not name.startswith("sampler/")}
        if self.recipe.objective.audit:
            metrics |= audit_metrics(self.recipe, result, writers.eos_token_ids)
        seen = writers.safety.look(metrics)
        writers.trackers.log(number, metrics)
        writers.best.note(metrics)
        return writers.safety.act(number, metrics, seen, self.state)

    def _agree(self, stop: Stop | None) -> Stop | None:
        """The main process's decision, or that of a signal that reached any process."""
        signals = [number for numbers in gather_object([list(self.signals)]) for number in numbers]
        if stop is None and signals:
            stop = Stop(reason(signals), save=True)
        decided: list[Stop | None] = broadcast_object_list([stop])
        return decided[0]


@dataclass(frozen=True, slots=True)
class SavedModel:
    """The model in a checkpoint of TRL's, as `CheckpointStore.save` asks for one."""

    folder: Path
    model: Any

    def trainable_parameters(self) -> Iterable[torch.nn.Parameter]:
        return (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def save(self, folder: Path) -> None:
        files = [file for file in self.folder.iterdir() if file.is_file() and not file.name.startswith(_NOT_THE_MODEL)]
        if not any(file.suffix == ".safetensors" for file in files):
            raise CheckpointError(
                f"{self.folder}: holds no whole weights; with FSDP ask for fsdp_state_dict_type: FULL_STATE_DICT, with "
                "DeepSpeed ZeRO-3 for stage3_gather_16bit_weights_on_model_save"
            )
        for file in files:
            shutil.copy2(file, folder)
