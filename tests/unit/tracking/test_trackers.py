"""All trackers at once: the record is sacred, the others are not; what a recipe opens, and in which order it closes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.tracking import JsonlTracker, Trackers, read_metrics
from gtpo_cli.tracking.tracker import open_trackers
from gtpo_cli.tracking.wandb import BackgroundTracker

STEP = {"optim/loss": 0.5, "train/reward_mean": 11.0}


OPEN = """
import sys
from pathlib import Path
from gtpo_cli.recipe import build_recipe
from gtpo_cli.tracking.tracker import open_trackers
document = {{"model": {{"name": "builtin:tiny"}}, "data": {{"benchmark": "arithmetic"}},
            "tracking": {{"wandb": {{"mode": "off"}}}}}}
recipe = build_recipe(document, where="test")
with open_trackers(recipe, Path('{folder}'), total_steps=10) as trackers:
"""


class Recorder:
    """A tracker that keeps what it is given, and fails at `bad_step` and, if told so, when it is closed."""

    def __init__(self, bad_step: int | None = None, *, bad_close: bool = False) -> None:
        self.steps: list[int] = []
        self.closed = 0
        self._bad_step = bad_step
        self._bad_close = bad_close

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._bad_step:
            raise ConnectionError("the\nserver is away")
        self.steps.append(step)

    def close(self) -> None:
        self.closed += 1
        if self._bad_close:
            raise TimeoutError("no answer")


def recipe(*overrides: str) -> Recipe:
    document = {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}}
    return build_recipe(document, ["tracking.wandb.mode=off", *overrides], where="test")


def text_console() -> Console:
    return Console(file=io.StringIO(), width=80)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_failing_tracker_is_switched_off_with_one_warning_and_the_run_goes_on(tmp_path: Path) -> None:
    good, bad = Recorder(), Recorder(bad_step=2)
    warnings: list[str] = []
    with Trackers(JsonlTracker(tmp_path / "m.jsonl"), others=[bad, good], warn=warnings.append) as trackers:
        for step in (1, 2, 3, 4):
            trackers.log(step, STEP)
    assert warnings == [
        "Recorder tracking failed and is off from step 2 on (ConnectionError: the server is away); "
        "metrics.jsonl has every step"
    ]
    assert (bad.steps, bad.closed) == ([1], 1)
    assert (good.steps, good.closed) == ([1, 2, 3, 4], 1)
    assert [row["step"] for row in read_metrics(tmp_path / "m.jsonl")] == [1, 2, 3, 4]


def test_a_reader_that_goes_away_is_no_reason_to_stop(tmp_path: Path) -> None:
    """`gtpo train | head`: rich would end the process at the first line that nobody reads."""
    code = f"""
{OPEN.format(folder=tmp_path)}
    for step in range(1, 11):
        trackers.log(step, {{"optim/loss": 0.5}})
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    complaints = process.stderr.read()
    assert process.wait(timeout=60) == 0, complaints
    assert complaints.count("UserWarning: Console tracking failed and is off from step 1 on (BrokenPipeError") == 1
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 10


def test_tensorboard_that_is_not_installed_names_the_extra_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # what Python does with a missing module
    with pytest.raises(RecipeError, match=r"\.\[tensorboard\]"):
        open_trackers(recipe("tracking.tensorboard=true"), tmp_path, total_steps=2, console=text_console())
    JsonlTracker(tmp_path / "metrics.jsonl").close()


class TableRecorder(Recorder):
    """A recorder that takes tables too, and fails at those of `bad_table`."""

    def __init__(self, bad_table: int | None = None) -> None:
        super().__init__()
        self.tables: list[tuple[int, str, int]] = []
        self._bad_table = bad_table

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        if step == self._bad_table:
            raise ConnectionError("away")
        self.tables.append((step, name, len(rows)))


def test_tables_go_to_those_that_take_them_and_end_no_run(tmp_path: Path) -> None:
    plain, good, bad = Recorder(), TableRecorder(), TableRecorder(bad_table=2)
    behind = BackgroundTracker(good, close_seconds=10)
    warnings: list[str] = []
    others = [plain, behind, BackgroundTracker(Recorder(), close_seconds=10), bad]
    with Trackers(JsonlTracker(tmp_path / "m.jsonl"), others=others, warn=warnings.append) as trackers:
        for step in (1, 2, 3):
            trackers.log_table(step, "samples", [{"text": "a"}] * step)
            trackers.log_table(step, "none", [])
            trackers.log(step, STEP)
    assert good.tables == [(1, "samples", 1), (2, "samples", 2), (3, "samples", 3)]
    assert bad.tables == good.tables[:1]
    assert (plain.steps, good.steps, bad.steps, bad.closed) == ([1, 2, 3], [1, 2, 3], [1], 1)
    assert warnings == [
        "TableRecorder tracking failed and is off from step 2 on (ConnectionError: away); metrics.jsonl has every step"
    ]
