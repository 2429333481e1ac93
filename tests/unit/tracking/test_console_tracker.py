"""The display on real rich consoles: what it says, that nothing is cut off, how often it draws, what it leaves."""

from __future__ import annotations

import io
import re
import sys
import time
from typing import Any

import pyte
import pytest
from rich.console import Console

from gtpo_cli.recipe.schema import FilterRecipe
from gtpo_cli.terminal.console import WARNING
from gtpo_cli.terminal.console import Console as GtpoConsole
from gtpo_cli.terminal.display import ConsoleTracker, entropy_note

NOTE = "ln 2 = 0.693, at the start 0.162, filter on"
STEP = {
    "train/reward_mean": 17.421,
    "train/reward_std": 3.114,
    "train/accuracy_rate": 0.8125,
    "train/strict_format_rate": 0.984375,
    "entropy/mean": 0.1534,
    "entropy/filtered_share": 0.0156,
    "conflict/share": 0.2314,
    "completions/truncated_share": 0.0,
    "completions/length_mean": 28.94,
    "optim/loss": -0.01234,
    "optim/grad_norm": 0.08312,
    "optim/learning_rate": 1.9e-4,
    "speed/tokens_per_second": 18432.2,
    "memory/peak_bytes": 812_000_000,
    "policy/kl": 0.0021,
    "time/step": 0.1,
    "rewards/brevity_mean": 0.5,
}


def shown(tracker: ConsoleTracker, width: int) -> list[str]:
    """The lines of the display as a terminal of that width shows them."""
    console = Console(file=io.StringIO(), record=True, width=width, height=40)
    tracker._console = console
    console.print(tracker.frame())
    return console.export_text().splitlines()


def plain(total: int, **options: object) -> ConsoleTracker:
    return ConsoleTracker(total, console=Console(file=io.StringIO(), width=80), **options)  # type: ignore[arg-type]


def live_console(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=24, color_system=None)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_every_figure_is_there_uncut_at_every_usual_width(width: int) -> None:
    tracker = plain(600, note=NOTE)
    tracker.log(1, STEP)
    lines = shown(tracker, width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 12
    text = " ".join(" ".join(lines).split())
    for part in [
        "step 1/600",
        "0% 0:00:00 elapsed",
        "left",
        "reward 17.42 ± 3.11 17.42",
        "accuracy 81.2% 81.2%",
        "strict format 98.4% 98.4%",
        "loss -0.0123 -0.0123",
        "entropy 0.153 0.153",
        "ln 2 = 0.693, at the start 0.162, filter on",
        "filtered 1.6%",
        "conflict 23.1%",
        "truncated 0.0%",
        "length 28.9",
        "grad norm 0.0831",
        "tokens/s 18,432",
        "KL 0.0021",
        "lr 1.90e-04",
        "peak mem 0.8 GB",
    ]:
        assert part in text
    assert "…" not in text


def test_an_sft_run_shows_loss_and_entropy_only() -> None:
    tracker = plain(100)
    tracker.log(1, {"optim/loss": 2.31, "entropy/mean": 1.9})
    _, header, loss, entropy = shown(tracker, 80)
    assert header.split() == ["this", "step", "last", "20", "whole", "run"]
    assert loss.split()[:3] == ["loss", "2.3100", "2.3100"]
    assert entropy.split()[:3] == ["entropy", "1.900", "1.900"]


def test_the_mean_is_over_the_last_20_steps_and_a_missing_figure_is_no_old_one() -> None:
    tracker = plain(100)
    for step in range(1, 31):
        tracker.log(step, {"optim/loss": float(step)})
    assert shown(tracker, 80)[2].split()[:3] == ["loss", "30.0000", "20.5000"]  # mean of 11..30
    tracker.log(31, {"entropy/mean": 0.5})
    assert shown(tracker, 80)[2].split()[:3] == ["loss", "-", "20.5000"]


def test_entropy_past_ln_2_stands_out() -> None:
    tracker = plain(100, note=NOTE)
    styles = []
    for step, entropy in enumerate([0.69, 0.70], 1):
        tracker.log(step, {"entropy/mean": entropy})
        (line,) = [line for line in tracker._row_lines() if line.plain.startswith("entropy")]
        styles.append(next(span.style for span in line.spans))
    assert styles == ["bold", WARNING]


@pytest.mark.parametrize(
    ("initial_entropy", "settings", "note"),
    [
        (0.1622, {}, NOTE),
        (1.2, {}, "ln 2 = 0.693, at the start 1.200, filter off"),
        (0.3, {"threshold": 1.05}, "ln 2 = 0.693, at the start 0.300, filter on above 1.050"),
        (1.2, {"enabled": "always"}, "ln 2 = 0.693, at the start 1.200, filter on"),
        (None, {}, ""),
    ],
)
def test_the_note_on_entropy(initial_entropy: float | None, settings: dict[str, object], note: str) -> None:
    assert entropy_note(initial_entropy, FilterRecipe.model_validate(settings)) == note


def test_in_a_notebook_one_short_line_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal: dict[str, Any] = {"force_terminal": True, "width": 80, "color_system": None}
    assert GtpoConsole(**terminal).is_interactive
    monkeypatch.setenv("JPY_PARENT_PID", "1")  # as IPython's kernels set it
    console = GtpoConsole(file=io.StringIO(), **terminal)
    assert console.color_system is None  # as asked; where nothing is asked for:
    assert GtpoConsole(force_terminal=True).color_system == "truecolor"
    assert GtpoConsole(file=io.StringIO()).color_system is None
    tracker = ConsoleTracker(1000, console=console)
    for step in range(1, 500):
        tracker.log(step, STEP)
    tracker.message("held out: 1")
    tracker.log(1000, STEP)
    tracker.close()
    assert "\x1b" not in printed(console)
    lines = [line.rpartition("\r")[2].rstrip() for line in printed(console).split("\n")]  # as a page shows them
    assert len(lines) == 4
    assert lines.pop() == ""
    assert re.fullmatch(r"step +1/1000  reward 17.42  accuracy 81.2%  strict format 98.4%  .*", lines[0])
    assert lines[1] == "held out: 1"
    assert lines[2].startswith("step 1000/1000  reward 17.42")
    assert max(map(len, re.split(r"[\r\n]", printed(console)))) < 80


def test_the_live_display_draws_seldom_and_gives_the_terminal_back() -> None:
    console = live_console()
    before = sys.stdout, sys.stderr
    tracker = ConsoleTracker(100_000, console=console)
    try:
        start, step = time.monotonic(), 0
        while time.monotonic() - start < 1.2:
            step += 1
            tracker.log(step, STEP)
    finally:
        tracker.close()
        tracker.close()
    assert step > 1000, "logging must not wait for drawing"
    draws = printed(console).count("whole run")
    assert 2 <= draws <= 5, "twice a second, once at the end"
    assert (sys.stdout, sys.stderr) == before
    assert f"{step}/100000" in printed(console), "the last state stays on the screen"
    assert printed(console).endswith("\x1b[?25h"), "the cursor is back"


def screen(output: str) -> list[str]:
    """What a terminal shows after `output`."""
    shown = pyte.Screen(80, 24)
    pyte.Stream(shown).feed(output.replace("\n", "\r\n"))  # as a terminal's driver does
    return [line.rstrip() for line in shown.display]
