"""Output that nobody reads, a working folder that is gone, signals outside the loop and twice, too little memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import forks
import pytest
from commands import GTPO, Prepared, environment, metrics

SMALL = [
    "rollout.prompts_per_step=2", "rollout.group_size=4", "rollout.max_completion_tokens=16",
    "objective.probe.num_prompts=8", "training.max_steps=4", "training.save_every=2", "tracking.wandb.mode=off",
    "data.limit=64",
]  # fmt: skip


def train(name: str, *changes: str) -> list[str]:
    overrides = [f"run_name={name}", *SMALL, *changes]
    return ["train", "--recipe", "tiny_arithmetic", *(part for override in overrides for part in ("--set", override))]


def shell(folder: Path, command: list[str], redirect: str) -> subprocess.CompletedProcess[str]:
    line = ["bash", "-c", f'"$@" {redirect}', "bash", *command]
    return subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    ("redirect", "said"),
    [
        ("2> err | head -n 1; code=${PIPESTATUS[0]}; cat err >&2; exit $code", "Broken pipe"),
        ("> /dev/full", "No space left on device"),
        (">&- 2>&- <&-", ""),
    ],
)
def test_training_goes_on_where_nobody_reads_its_output(tmp_path: Path, redirect: str, said: str) -> None:
    done = shell(tmp_path, [*GTPO, *train("one")], redirect)
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in metrics(tmp_path / "runs" / "one")] == [1, 2, 3, 4]
    assert {path.name for path in (tmp_path / "runs/one/checkpoints").iterdir()} == {"step-000002", "step-000004"}
    assert done.stderr == (f"warning: cannot write to standard output ({said}); going on\n" if said else "")


def test_a_command_whose_output_is_its_product_ends_with_a_word(tmp_path: Path) -> None:
    show = [*GTPO, "recipes", "show", "tiny_arithmetic"]
    for arguments, redirect, code, said in (
        (show, ">&-", 2, "error: output or network: Bad file descriptor; leave standard output open"),
        ([*GTPO, "--version"], ">&-", 2, "error: output or network: Bad file descriptor"),
        ([*GTPO, "recipes", "show", "nothing"], "2>&-", 2, ""),
        ([*GTPO, "recipes", "show", "nothing"], "2> /dev/full", 2, ""),
        (show, "2>&-", 0, ""),
    ):
        done = shell(tmp_path, arguments, redirect)
        assert done.returncode == code, (arguments, redirect, done.stderr)
        assert done.stderr.startswith(said)
        assert len(done.stderr.splitlines()) == bool(said)


def forked(folder: Path, program: str, *arguments: str, input: bytes = b"") -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program)
    return forks.run([str(file), *arguments], cwd=folder, env=environment(), input=input)


def start(folder: Path, command: list[str], when: Callable[[], bool]) -> forks.Command:
    process = forks.Command([*GTPO, *command], cwd=folder, env=environment())
    deadline = time.monotonic() + 100
    while not when():
        assert process.runs(), process.wait().stderr
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


CTRL_C_TWICE = """
import os, signal, time
calls = 0
def press():
    for _ in range(2): os.kill(os.getpid(), signal.SIGINT)
class Finalized:
    def __del__(self): press()  # Python drops exceptions of a finalizer
def reward(problem, completion):
    global calls
    calls += 1
    if calls == 21:  # in step 3 of 8 completions each, after the trial
        PRESS
        time.sleep(60)
    return 0.0
"""


@pytest.mark.parametrize("how", ["press()", "Finalized()"])
def test_a_second_ctrl_c_ends_at_once_and_says_what_is_lost(tmp_path: Path, how: str) -> None:
    (tmp_path / "presser.py").write_text(CTRL_C_TWICE.replace("PRESS", how))
    plugin = "rewards.plugins=[{name: 'presser:reward'}]"
    command = [*train("long", plugin, "tracking.log_completions_every=100"), "-q"]
    done = forks.run([*GTPO, *command], cwd=tmp_path, env=environment())
    assert done.returncode == 130, done.stderr
    first, last = done.stderr.strip().splitlines()
    assert first.startswith("interrupted: finishing and saving the current step; a second Ctrl-C or SIGTERM ends at")
    lost = "only the current step is lost; gtpo train --resume runs/long continues from step 2"
    assert last == f"interrupted: {lost}"
    assert [path.name for path in (tmp_path / "runs/long/checkpoints").iterdir()] == ["step-000002"]


REWARDS_THAT_NEVER_RETURN = """
import time
calls = 0
def first():  # is for the made-up answer, before there is a run
    global calls
    calls += 1
    return calls == 1
def waits(problem, completion): return 0.0 if first() else time.sleep(1e6)
def computes(problem, completion):
    while not first(): pass
    return 0.0
def at_once(problems, completions): return [0.0] if first() else time.sleep(1e6)
async def sleeps(problem, completion): return 0.0 if first() else time.sleep(1e6)  # and blocks every other one
"""


@pytest.mark.parametrize("reward", ["waits", "computes", "at_once", "sleeps"])
def test_two_sigterms_end_a_run_whose_reward_never_returns(tmp_path: Path, reward: str) -> None:
    (tmp_path / "stuck.py").write_text(REWARDS_THAT_NEVER_RETURN)
    plugin = f"rewards.plugins=[{{name: stuck:{reward}}}]"
    log = tmp_path / "runs" / "one" / "metrics.jsonl"
    process = start(tmp_path, [*train("one", plugin, "objective.initial_entropy=0.16"), "-q"], log.exists)
    time.sleep(2.0)  # the first completions are there
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(1.5)
    assert process.runs()
    os.kill(process.pid, signal.SIGTERM)
    done = process.wait(timeout=30)
    assert done.returncode == 143, done.stderr
    assert done.stderr.splitlines()[-1].startswith("terminated before the first step: nothing was trained")


@pytest.mark.parametrize("how", ["os.rename('runs/one', 'elsewhere')", "os.makedirs('deep'); os.chdir('deep')"])
def test_a_run_folder_that_is_moved_while_training_is_told_as_that(tmp_path: Path, how: str) -> None:
    (tmp_path / "mover.py").write_text(
        "import os\ncalls = 0\ndef reward(problem, completion):\n    global calls\n    calls += 1\n"
        f"    if calls == 21: {how}\n    return 0.0\n"  # in step 3 of 8 completions each, after the trial
    )
    plugin = "rewards.plugins=[{name: 'mover:reward'}]"
    command = [*train("one", plugin, "tracking.log_completions_every=100"), "-q"]
    done = forks.run([*GTPO, *command], cwd=tmp_path, env=environment())
    assert done.returncode == 2, done.stderr
    assert "error: runs/one/checkpoints/step-000004: the checkpoint cannot be written" in done.stderr
    assert "earlier ones are untouched. Its folder was moved or deleted, or the working folder changed" in done.stderr
    assert "room" not in done.stderr
    where = "elsewhere" if "rename" in how else "runs/one"
    assert not (tmp_path / "runs" / "one").exists() or where == "runs/one", "it is not made again, half"
    shutil.copytree(tmp_path / where, tmp_path / "runs" / "back")
    (tmp_path / "mover.py").write_text("def reward(problem, completion): return 0.0\n")
    again = forks.run([*GTPO, "train", "--resume", "runs/back", "-q", "--force"], cwd=tmp_path, env=environment())
    assert again.returncode == 0, again.stderr
    assert [row["step"] for row in metrics(tmp_path / "runs" / "back")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (train("probed"), "before the first step: nothing was trained, and the same command starts again"),
        (["probe-entropy"], "during the measurement: nothing of it is kept"),
    ],
)
def test_ctrl_c_during_the_probe_says_what_happened(tmp_path: Path, command: list[str], said: str) -> None:
    done = forked(tmp_path, INTERRUPTED_PROBE, *command)
    assert (done.returncode, done.stderr) == (130, f"interrupted {said}\n")
    assert "training runs/probed" not in done.stdout
    assert not (tmp_path / "runs" / "probed").exists()


# A Ctrl-C when the first completions of the probe are there.
INTERRUPTED_PROBE = """
import os, signal, sys
import gtpo_cli.evaluation.probe as probe
from gtpo_cli.cli.app import main
measured = probe.mean_entropies
probe.mean_entropies = lambda *arguments: (os.kill(os.getpid(), signal.SIGINT), measured(*arguments))[1]
sys.argv = ["gtpo", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("command", ["export", "report"])
def test_ctrl_c_during_an_export_or_a_report_says_what_is_there(
    prepared: Prepared, tmp_path: Path, command: str
) -> None:
    prepared([*train("one"), "-q"])
    done = forked(tmp_path, INTERRUPTED, command)
    said = {
        "export": ": runs/one/export/merged is unchanged",
        "report": " before the page was written: the same command starts again",
    }[command]
    assert (done.returncode, done.stderr) == (130, f"interrupted{said}\n")
    assert not (tmp_path / "runs/one/export/merged").exists()
    assert not (tmp_path / "runs/one/report/report.html").exists()


# A Ctrl-C as an export has been written aside and is read back, or the page of a report is filled in.
INTERRUPTED = """
import os, signal, sys
import gtpo_cli.tools.export.exporter as exporter
import gtpo_cli.tools.report.page as page
from gtpo_cli.cli.app import main
exporter.read_back = page.render = lambda *arguments: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["gtpo", *sys.argv[1:]]
main()
"""


def test_an_evaluation_that_is_terminated_keeps_what_was_graded(tmp_path: Path) -> None:
    stored = tmp_path / "runs" / "models" / "builtin-tiny" / "evaluation"
    process = start(
        tmp_path, ["eval", "builtin:tiny", "--pass-k", "16"],
        lambda: any(file.stat().st_size for file in stored.glob("*/*/samples.jsonl")),
    )  # fmt: skip
    os.kill(process.pid, signal.SIGTERM)
    done = process.wait(timeout=60)
    assert done.returncode == 143
    assert done.stderr == "terminated: the completions so far are stored, and the same command continues\n"
    assert any(file.stat().st_size for file in stored.glob("*/*/samples.jsonl"))
