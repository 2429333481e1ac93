"""What the training loop costs beside its work. Run: `python benchmarks/run.py loop`.

The work is sampling, scoring, forward and backward, and the optimiser's update; everything else (masks, weights,
metrics, tracking, display, prompt order) is overhead.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import Figure

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tracking import Trackers
from gtpo_cli.training.loop import train
from gtpo_cli.training.optimizers import Updater

TITLE = "Training loop"
WORK: tuple[tuple[type, str], ...] = (
    (TransformersSampler, "sample"),
    (Scorer, "score_groups"),
    (TransformersPolicy, "token_logprobs"),
    (torch.Tensor, "backward"),
    (Updater, "zero_grad"),
    (Updater, "update"),
)


class WorkClock:
    """CPU seconds spent inside the functions of WORK, and at which moment each step was logged."""

    def __init__(self) -> None:
        self.work = 0.0
        self.marks: list[tuple[float, float]] = []  # (process time, work so far) at the end of each step

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.work += time.process_time() - start

        return timed

    def mark(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.marks.append((time.process_time(), self.work))
            return result

        return marked


def run(*, steps: int = 60) -> list[Figure]:
    """Share of a step's CPU time that is overhead, median over steps of the demo's recipe, display off and logs on."""
    clock = WorkClock()
    originals = [(owner, name, getattr(owner, name)) for owner, name in (*WORK, (Trackers, "log"))]
    for owner, name, function in originals:
        setattr(owner, name, clock.mark(function) if owner is Trackers else clock.wrap(function))
    try:
        with tempfile.TemporaryDirectory() as folder:
            recipe = load_recipe(
                "tiny_arithmetic",
                [
                    f"output_dir={folder}",
                    "run_name=bench",
                    f"training.max_steps={steps}",
                    "objective.initial_entropy=0.2",
                ],
            )
            run_folder = RunFolder(Path(folder) / "bench")
            run_folder.create(recipe)
            train(Parts(recipe).training_job(), run_folder, quiet=True)
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)
    shares, overheads = [], []
    for (start, work_before), (end, work_after) in zip(clock.marks[5:-1], clock.marks[6:], strict=True):
        overhead = (end - start) - (work_after - work_before)
        shares.append(overhead / (end - start))
        overheads.append(overhead)
    milliseconds = statistics.median(overheads) * 1e3
    note = (
        f"{milliseconds:.1f} ms a step; median over {len(shares)} steps of tiny_arithmetic (8 prompts x 8 completions)"
    )
    return [Figure("loop overhead", statistics.median(shares), "of a step", note)]
