"""Events written by the tracker, read back by TensorBoard itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")

from gtpo_cli.recipe import build_recipe
from gtpo_cli.tracking.tracker import TensorBoardTracker, open_trackers


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("kept", [2, 0])
def test_steps_done_again_after_a_resume_replace_the_old_ones(tmp_path: Path, kept: int) -> None:
    """Also where the run was killed before its first checkpoint, and begins again at step 1."""
    document = {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}}
    recipe = build_recipe(document, ["tracking={wandb: {mode: off}, tensorboard: true}"], where="test")
    position = 0
    with open_trackers(recipe, tmp_path, total_steps=5, quiet=True) as first:
        for step in (1, 2, 3, 4):
            first.log(step, {"optim/loss": float(step)})
            if step == kept:
                position = first.position
    again = open_trackers(recipe, tmp_path, total_steps=5, start_step=kept, keep_bytes=position, quiet=True)
    with again as second:
        for step in range(kept + 1, 6):
            second.log(step, {"optim/loss": 10.0 * step})
    expected = [(step, float(step) if step <= kept else 10.0 * step) for step in range(1, 6)]
    assert scalars(tmp_path / "tensorboard")["optim/loss"] == expected


def test_each_metric_is_a_scalar_under_its_declared_name(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.log(1, {"optim/loss": 0.5, "rewards/pkg.mod:brevity_mean": 2})
    tracker.log(2, {"optim/loss": -0.25})
    tracker.close()
    read = scalars(tmp_path)
    assert read["optim/loss"] == [(1, 0.5), (2, -0.25)]
    # TensorBoard's tags know no colon.
    assert [values for tag, values in read.items() if tag.startswith("rewards/")] == [[(1, 2.0)]]
