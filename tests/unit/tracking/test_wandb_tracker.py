"""The real wandb, offline, in processes of its own: what it writes, that it never asks, that no network is no end."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gtpo_cli.errors import GtpoError
from gtpo_cli.recipe import load_recipe
from gtpo_cli.tracking.wandb import WandbTracker

pytestmark = pytest.mark.slow  # processes with the real wandb in them

TIMEOUT = 60.0  # seconds; a prompt would wait for ever

RUN = """
import sys
from pathlib import Path
import gtpo_cli.tracking.wandb as module
from gtpo_cli.recipe import load_recipe
from gtpo_cli.tracking.wandb import WandbTracker

module.INIT_TIMEOUT = 1.0

def run(folder, mode, resumed=False, steps=(1, 2)):
    recipe = load_recipe("tiny_arithmetic", [
        f"tracking.wandb={{mode: {mode}, project: a-project}}", "seed=3407"
    ])
    tracker = WandbTracker(recipe, Path(folder), resumed=resumed, warn=lambda text: print("WARNED", text))
    for step in steps:
        tracker.log(step, {"train/reward_mean": step + 0.40625, "optim/loss": float("nan")})
    tracker.close()
    run = tracker._run
    print("DONE", folder, run.id, "offline" if run.offline else "online")
    return run.id
"""


RESUMED = """
first = run("a-run", "auto")
Path("b/wandb").mkdir(parents=True)
Path("b/wandb/run_id").write_text(first)
run("b", "offline", resumed=True, steps=(3,))
"""


def environment(home: Path, **extra: str) -> dict[str, str]:
    """This one, without any trace of a wandb account."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "NETRC"))}
    return kept | {"HOME": str(home), "PYTHONUNBUFFERED": "1"} | extra


def run_without_stdin(code: str, folder: Path, **extra: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN + code],
        cwd=folder,
        env=environment(folder / "home", **extra),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def recorded(run_dir: Path) -> bytes:
    """The one offline record in the run folder."""
    (path,) = run_dir.glob("wandb/offline-run-*/run-*.wandb")
    return path.read_bytes()


def test_auto_without_a_key_records_offline_and_sends_only_recipe_and_metrics(tmp_path: Path) -> None:
    lines = run_without_stdin(RESUMED, tmp_path, WANDB_ENTITY="an-entity", WANDB_TAGS="one-tag")
    assert len(lines) == 2, "silent, without a warning"
    done, folder, run_id, where = lines[0].split()
    assert (done, folder, where) == ("DONE", "a-run", "offline")
    assert lines[1].split() == ["DONE", "b", run_id, "offline"], "the resumed part has the id of the first"

    record = recorded(tmp_path / "a-run")
    for part in [
        "train/reward_mean",
        "1.40625",
        "2.40625",
        "optim/loss",
        "a-run",
        "a-project",
        "an-entity",
        "one-tag",
        "3407",
    ]:
        assert part.encode() in record
    assert b"3.40625" not in record
    assert b"3.40625" in recorded(tmp_path / "b")

    # Strings in the record have their length before them.
    for private in {socket.gethostname(), str(Path(sys.executable)), str(tmp_path), sys.argv[0]} - {""}:
        assert bytes([min(255, len(private))]) + private.encode() not in record
    (files,) = tmp_path.glob("a-run/wandb/offline-run-*/files")
    assert list(files.iterdir()) == [], "no code, no requirements, no machine description, no console output"


def test_online_without_a_key_on_a_terminal_asks_nothing_and_records_offline(tmp_path: Path) -> None:
    """Only on a terminal would wandb ask; so this one has a terminal, on which nobody answers."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN + "run('a', 'online')"],
        cwd=tmp_path,
        env=environment(tmp_path / "home", TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    watchdog = threading.Timer(TIMEOUT, process.kill)
    watchdog.start()
    output = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed: the process has ended
        while part := os.read(ours, 4096):
            output += part
    process.wait()
    watchdog.cancel()
    os.close(ours)
    assert process.returncode == 0, output
    warned, done = output.decode().splitlines()
    assert re.match(r"WARNED wandb: not online \(no API key is configured: run `(\S*/)?wandb login`", warned)
    assert warned.endswith("; recording offline")
    assert done.startswith("DONE a ")
    assert b"1.40625" in recorded(tmp_path / "a")


def test_a_network_that_is_away_costs_seconds_and_a_warning(tmp_path: Path) -> None:
    with socket.socket() as unused:  # bound, not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        start = time.monotonic()
        lines = run_without_stdin("run('a', 'auto')", tmp_path, WANDB_API_KEY="a" * 40, WANDB_BASE_URL=url)
        assert time.monotonic() - start < 30
    assert lines[0].startswith("WARNED wandb: not online (")
    assert lines[1].split()[0::3] == ["DONE", "offline"]
    assert b"2.40625" in recorded(tmp_path / "a")


STOPPED = """
import os, signal, subprocess, sys, time
from pathlib import Path
import gtpo_cli.tracking.wandb as module
from gtpo_cli.recipe import load_recipe
from gtpo_cli.tracking import read_metrics
from gtpo_cli.tracking.tracker import open_trackers

module.FINISH_TIMEOUT = 1.0
recipe = load_recipe("tiny_arithmetic", ["tracking.wandb.mode=offline"])
trackers = open_trackers(recipe, Path("run"), total_steps=9, quiet=True)
trackers.log(1, {"optim/loss": 1.0})
time.sleep(1)
children = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True).stdout.split()
assert children
for child in children:
    os.kill(int(child), signal.SIGSTOP)  # wandb's own process stands still from now on
start = time.monotonic()
for step in range(2, 1500):
    trackers.log(step, {"optim/loss": 1.0})
print("LOGGED", time.monotonic() - start)
start = time.monotonic()
trackers.close()
print("CLOSED", time.monotonic() - start)
for child in children:
    os.kill(int(child), signal.SIGCONT)
print("STEPS", len(read_metrics(Path("run/metrics.jsonl"))), flush=True)
"""


def test_a_wandb_that_stands_still_holds_no_step_up(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], cwd=tmp_path, env=environment(tmp_path / "home"), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("LOGGED", "CLOSED", "STEPS")))
    assert float(told["LOGGED"]) < 5.0
    assert float(told["CLOSED"]) < 20.0
    assert told["STEPS"] == "1499"


def test_settings_that_lie_in_a_run_do_not_tell_wandb_where_to_send_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cd RUN; gtpo train --resume .: wandb would read wandb/settings of the working folder."""
    monkeypatch.chdir(tmp_path)
    for file in ("recipe.yaml", "metrics.jsonl", "wandb/settings"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("[default]\nbase_url = http://127.0.0.1:9/\n")
    with pytest.raises(GtpoError, match=r"^wandb/settings in the working folder would tell wandb where to send"):
        WandbTracker(load_recipe("tiny_arithmetic"), tmp_path, warn=print)
