"""What a person sees: commands on a terminal of their own, by the bytes that they write and the screen these make."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from commands import Run
from terminal import OnTerminal, Terminal

QUICK = ["--set", "tracking.wandb.mode=off", "--set", "data.limit=64", "--set", "objective.initial_entropy=0.16"]
TRAIN = ["train", "--recipe", "tiny_arithmetic", *QUICK, "--set", "run_name=one"]
CURSOR_UP, ERASE_LINE, HIDE_CURSOR, SHOW_CURSOR = r"\x1b\[\d*A", "\x1b[2K", "\x1b[?25l", "\x1b[?25h"
SIGNS = re.compile("[\u2400-\u2421]")  # what stands for a character that would steer the terminal


def drawn_in_place(terminal: Terminal, *, at_least: int) -> None:
    """The display was drawn over itself so many times, by codes that reached the terminal as codes."""
    assert not SIGNS.search(terminal.raw), terminal.raw[-2000:]
    assert re.search(CURSOR_UP, terminal.raw)
    assert terminal.raw.count(ERASE_LINE) >= at_least
    assert terminal.raw.rindex(SHOW_CURSOR) > terminal.raw.rindex(HIDE_CURSOR), "the cursor is back"


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (50, 12)])
def test_train(on_terminal: OnTerminal, columns: int, lines: int) -> None:
    evaluate = ["--set", "training.eval_every=10", "--set", "evaluation={samples: 2, limit: 8}"]
    terminal = on_terminal(*TRAIN, "--set", "training.max_steps=20", *evaluate, columns=columns, lines=lines)
    assert terminal.finish() == 0, terminal.raw
    drawn_in_place(terminal, at_least=10)
    text = "\n".join(shown := terminal.shown())
    assert len(shown) <= 50, "frames are not repeated one below the other"
    assert text.count("whole run") == 1
    assert text.count("held out: ") == 2, "what is said stands above the display"
    assert columns < 80 or "ln 2 = 0.693, at the start 0.160, filter on" in text
    assert re.search(r"^step 20/20 .* 100% ", text, flags=re.MULTILINE)
    assert "done: runs/one: step 20 of 20" in text
    assert text.index("held out: ") < text.index("whole run") < text.index("done: ")
    assert shown[-1] == "next: gtpo eval runs/one --base"


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (50, 12)])
def test_the_answer_to_ctrl_c_is_on_the_screen_while_the_step_ends(
    on_terminal: OnTerminal, tmp_path: Path, columns: int, lines: int
) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n"
        "calls = 0\n"
        "def reward(problem, completion):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    while calls > 65 and not pathlib.Path('go').exists():  # from the second step on\n"
        "        time.sleep(0.01)\n"
        "    return 0.0\n"
    )
    plugin = ["--set", "rewards.plugins=[{name: 'slow:reward', weight: 1.0}]", "--set", "training.max_steps=9"]
    terminal = on_terminal(*TRAIN, *plugin, columns=columns, lines=lines)
    terminal.wait_for("whole run")
    terminal.type("\x03")
    terminal.wait_for("checkpoint")  # the end of the answer
    terminal.wait_for("whole run")
    shown = " ".join(line.strip() for line in terminal.screen().display)
    assert "interrupted: finishing and saving the current step; a second Ctrl-C or SIGTERM ends at once" in shown
    assert "loses the steps since the last checkpoint" in shown
    (tmp_path / "go").touch()
    assert terminal.finish() == 130, terminal.raw
    drawn_in_place(terminal, at_least=2)
    if lines == 24:  # a display that is cut ends in a line of full width
        assert terminal.shown().count("one") == 1, "the terminal's ^C moves nothing"
    assert [path.name for path in (tmp_path / "runs/one/checkpoints").iterdir()] == ["step-000002"]


def test_what_libraries_and_rewards_print_while_a_display_is_shown(on_terminal: OnTerminal, tmp_path: Path) -> None:
    """Colours, half lines, brackets that are markup for rich, and bars."""
    (tmp_path / "loud.py").write_text(
        "import sys\nfrom tqdm import tqdm\n"
        "def reward(problem, completion):\n"
        "    print('\\x1b[31mred\\x1b[0m [bold]as it is[/bold] :smile:')\n"
        "    print('[/half]', end='', flush=True)\n"
        "    print('\\x1b]0;title\\x07', file=sys.stderr)\n"
        "    list(tqdm(range(2)))\n"
        "    return 0.0\n"
    )
    plugin = ["--set", "rewards.plugins=[{name: 'loud:reward', weight: 1.0}]", "--set", "training.max_steps=1"]
    terminal = on_terminal(*TRAIN, *plugin, "--set", "rollout={prompts_per_step: 1, group_size: 2}", columns=100)
    assert terminal.finish() == 0, terminal.raw
    assert "\x1b]0" not in terminal.raw
    shown = terminal.shown()
    assert shown.count("red [bold]as it is[/bold] :smile:") == 3  # once before the display
    assert any(line.startswith("[/half]") for line in shown)
    assert any(line.startswith("done: runs/one: step 1 of 1") for line in shown)


def test_no_word_is_broken(gtpo: Run, on_terminal: OnTerminal) -> None:
    terminal = on_terminal("recipes", "list", lines=50)
    assert terminal.finish() == 0, terminal.raw
    piped = gtpo("recipes", "list").stdout
    assert max(map(len, piped.splitlines())) > 80, "what nobody looks at is not folded"
    assert Counter(" ".join(terminal.shown()).split()) >= Counter(piped.replace("\u2500", "").split())
    assert terminal.shown()[-1].startswith("next: gtpo ")


@pytest.fixture
def trained(prepared: Callable[..., None]) -> None:
    prepared([*TRAIN, "--quiet", "--set", "training.max_steps=1"])


@pytest.mark.usefixtures("trained")
def test_eval(on_terminal: OnTerminal) -> None:
    terminal = on_terminal("eval", "runs/one", "--base", "--pass-k", "2", "--limit", "300", columns=120)
    assert terminal.finish() == 0, terminal.raw
    drawn_in_place(terminal, at_least=1)
    text = "\n".join(shown := terminal.shown())
    assert len(shown) <= 40
    assert "pass@2" in text
    assert "━" not in text, "the bar is gone when it is done"
    assert re.search(r"0:00:\d\d elapsed (-:--:--|0:00:\d\d) left", terminal.raw)


@pytest.mark.usefixtures("trained")
def test_export(on_terminal: OnTerminal) -> None:
    terminal = on_terminal("export", "runs/one")
    assert terminal.finish() == 0, terminal.raw
    assert not SIGNS.search(terminal.raw)
    assert len(terminal.shown()) <= 16
    assert terminal.shown()[-1].startswith("next: gtpo ")


def test_sweep(on_terminal: OnTerminal, tmp_path: Path) -> None:
    short = {
        "training.max_steps": 1,
        "rollout.prompts_per_step": 2,
        "data.limit": 64,
        "objective.initial_entropy": 0.16,
        "tracking.wandb.mode": "off",
    }
    sweep = {
        "about": "two",
        "recipe": "tiny_arithmetic",
        "variants": {"a": short, "b": {**short, "rollout.group_size": 4}},
    }
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(sweep | {"seeds": [1]}))
    terminal = on_terminal("sweep", "two.yaml", columns=100)
    assert terminal.finish() == 0, terminal.raw
    drawn_in_place(terminal, at_least=4)
    assert len(terminal.shown()) <= 40
    assert terminal.shown()[-1].startswith("next: gtpo report ")
