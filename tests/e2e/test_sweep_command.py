"""gtpo sweep as typed: it survives a kill, skips what is done, says what failed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from browsers import CHROMIUM, check_curves, check_paper, check_widths, check_without_scripts, chromium, silent
from commands import Run, comparable, contents

from gtpo_cli.recipe import shipped_sweeps

FILE = """\
recipe: tiny_arithmetic
about: a trial
set: {training.max_steps: 6, training.save_every: 2, tracking.wandb.mode: "off", objective.initial_entropy: 0.16}
variants:
  gtpo: {}
  grpo: {objective.name: grpo}
seeds: [1, 2]
"""


def test_a_killed_sweep_goes_on_where_it_was_and_what_is_done_is_not_run_again(gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text(FILE)
    plan = gtpo("sweep", "trial.yaml", "--dry-run").stdout
    assert "4 of 4 runs to do, 1 at a time: how long that takes is known after the first one" in plan
    folder = tmp_path / "runs" / "sweeps" / "trial"
    process = subprocess.Popen(
        [sys.executable, "-m", "gtpo_cli", "sweep", "trial.yaml"], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 180
    while not (folder / "done" / "gtpo-1.json").exists() or not (folder / "runs" / "grpo-1" / "recipe.yaml").exists():
        assert time.monotonic() < deadline, (folder / "logs" / "gtpo-1.log").read_text()
        time.sleep(0.1)
    assert len(processes(tmp_path)) > 1
    process.kill()
    process.wait()
    time.sleep(1.0)
    still = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(folder.name) in _read(p) and "train" in _read(p)]
    assert still == []  # its runs died with it
    assert processes(tmp_path) == set()
    first = (folder / "done" / "gtpo-1.json").stat().st_mtime_ns
    output = gtpo("sweep", "trial.yaml", "--jobs", "2").stdout
    assert (folder / "done" / "gtpo-1.json").stat().st_mtime_ns == first
    assert "trial: 4 of 4 runs" in output
    assert re.search(r"\baccuracy +grpo +2 +0\.\d+ \(.*\) +[+-]0\.\d+ \(", output)
    for key in ("gtpo-1", "gtpo-2", "grpo-1", "grpo-2"):
        steps = [
            json.loads(line)["step"] for line in (folder / "runs" / key / "metrics.jsonl").read_text().splitlines()
        ]
        assert steps == [1, 2, 3, 4, 5, 6]
    alone = ["--recipe", str(folder / "recipes" / "gtpo-1.yaml"), "--set", "output_dir=alone", "--quiet"]
    gtpo("train", *alone)
    assert comparable(tmp_path / "alone" / "gtpo-1") == comparable(folder / "runs" / "gtpo-1")
    assert contents(tmp_path / "alone" / "gtpo-1") == contents(folder / "runs" / "gtpo-1")
    assert (folder / "report.html").is_file()
    if CHROMIUM:
        with chromium() as browser:
            check_without_scripts(browser, folder / "report.html")
            check_paper(browser, folder / "report.html")
            with silent(browser) as page:
                check_widths(page, folder / "report.html")
                check_curves(page, folder / "report.html")
    assert "0 of 4 runs to do" in gtpo("sweep", "trial.yaml", "--dry-run").stdout
    named = "figures: {accuracy: last train/accuracy_rate, distance: last policy/kl}\n"
    (tmp_path / "trial.yaml").write_text(FILE + named)
    shown = gtpo("sweep", "trial.yaml").stdout
    assert "distance is not in the table: no run has logged the metric of 'last policy/kl'" in shown
    assert "accuracy is not" not in shown


def test_the_best_rate_is_chosen_before_the_runs_that_count(gtpo: Run, tmp_path: Path) -> None:
    settings = ["training.max_steps: 1", "rollout.prompts_per_step: 2", "data.limit: 64"]
    settings += ["tracking.wandb.mode: off", "objective.initial_entropy: 0.16", "optimizer.warmup_ratio: 0"]
    tune = "{values: [1.0e-4, 3.0e-4], seeds: [7]}"
    lines = ["recipe: tiny_arithmetic", f"set: {{{', '.join(settings)}}}", "variants: {grpo: {objective.name: grpo}}"]
    (tmp_path / "trial.yaml").write_text("\n".join([*lines, "seeds: [1]", "jobs: 2", f"tune: {tune}"]) + "\n")
    plan = gtpo("sweep", "trial.yaml", "--dry-run").stdout
    assert "these choose optimizer.learning_rate for each variant, by last train/accuracy_rate; then come 1 run" in plan
    assert "3 of 3 runs to do, 2 at a time: how long that takes is known after the first one" in plan
    output = gtpo("sweep", "trial.yaml").stdout
    assert "trial: 3 of 3 runs" in output
    folder = tmp_path / "runs" / "sweeps" / "trial"
    assert sorted(file.stem for file in (folder / "done").iterdir()) == ["grpo-1", "grpo-value1-7", "grpo-value2-7"]
    chosen = json.loads((folder / "results.json").read_text())["chosen"]["grpo"]
    assert chosen in (1.0e-4, 3.0e-4)
    (row,) = [json.loads(line) for line in (folder / "runs/grpo-1/metrics.jsonl").read_text().splitlines()]
    assert row["optim/learning_rate"] == pytest.approx(chosen)
    assert re.search(rf"^ *grpo +{chosen} +[\d.]+$", output, re.M)


def test_sweeps_are_listed_and_the_next_line_keeps_the_options(gtpo: Run) -> None:
    listed = [line.rstrip() for line in gtpo("sweep").stdout.splitlines()]
    assert [line.split()[0] for line in listed[2:-1]] == list(shipped_sweeps())
    assert "fig5a_kl                      4  Figure 5a: the weight of GRPO's KL term" in listed
    options = ["--recipe", "llama8b_gsm8k", "--only", "grpo_beta0.04", "--seeds", "1", "--jobs", "2", "--out", "here"]
    options += ["--set", "training.max_steps=4"]
    plan = gtpo("sweep", "fig5a_kl", *options, "--dry-run").stdout.splitlines()
    assert plan[0] == "recipe llama8b_gsm8k, training.max_steps=4"
    assert [plan[3].split(None, 1)[0], plan[3].split(None, 1)[1].rstrip()] == [
        "grpo_beta0.04",
        "objective.name=grpo, objective.entropy_coef=0.0, optimizer.betas=[0.9, 0.95], objective.kl_coef=0.04",
    ]
    assert plan[7].split() == ["grpo_beta0.04-1", "to", "do"]
    assert plan[-1] == "# next: gtpo sweep fig5a_kl " + " ".join(options)


def processes(file: Path, *, link: str = "cwd") -> set[int]:
    """Those that have the file as their working folder, or as what `link` is in /proc."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked, or is not ours
            if (process / link).readlink() == file:
                found.add(int(process.name))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:  # it ended while we looked
        return ""


def test_a_run_that_fails_is_named_with_its_reason_and_the_others_go_on(gtpo: Run, tmp_path: Path) -> None:
    variants = "{good: {}, bad: {data.path: nowhere.jsonl, data.benchmark: local}}"
    lines = [line for line in FILE.splitlines() if not line.startswith((" ", "variants", "seeds"))]
    (tmp_path / "trial.yaml").write_text("\n".join([*lines, f"variants: {variants}", "seeds: [1]"]) + "\n")
    output = gtpo("sweep", "trial.yaml", code=1).stdout
    assert (table := re.search(r"\baccuracy +good +1 ", output))
    assert output.index("FAILED") < table.start()
    assert re.search(r"FAILED bad-1: .*nowhere\.jsonl.* \(all of it: runs/sweeps/trial/logs/bad-1\.log\)", output)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_sigterm_and_sighup_let_the_runs_save(gtpo: Run, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "trial.yaml").write_text(FILE.replace("training.max_steps: 6", "training.max_steps: 5000"))
    folder = tmp_path / "runs" / "sweeps" / "trial"
    process = subprocess.Popen(
        [sys.executable, "-m", "gtpo_cli", "sweep", "trial.yaml"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    metrics = folder / "runs" / "gtpo-1" / "metrics.jsonl"
    deadline = time.monotonic() + 180
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "stopped: 0 of 4 runs are done, the others are saved" in output
    steps = metrics.read_text().count("\n")
    assert (folder / "runs" / "gtpo-1" / "checkpoints" / f"step-{steps:06d}").is_dir()


def test_a_second_ctrl_c_ends_the_runs_at_once(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text(FILE.replace("training.max_steps: 6", "training.max_steps: 5000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "gtpo_cli", "sweep", "trial.yaml"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        stdout=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    folder = tmp_path / "runs" / "sweeps" / "trial"
    deadline = time.monotonic() + 180
    while not (folder / "runs" / "gtpo-1" / "metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (pid,) = processes(folder / "logs" / "gtpo-1.log", link="fd/1")
    os.kill(pid, signal.SIGSTOP)  # it cannot save
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.splitlines()[-1]) == (130, "interrupted")
    time.sleep(1.0)
    assert processes(tmp_path) == set()
