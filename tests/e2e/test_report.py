"""gtpo report and gtpo inspect as typed; the pages in a real browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
from pathlib import Path

import pytest
from commands import Prepared, Run

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TRAIN = [
    "train", "-q", "--recipe", "tiny_arithmetic", "--set", "training.max_steps=4", "--set", "data.limit=64",
    "--set", "objective.initial_entropy=0.16", "--set", "tracking.log_completions_every=2",
]  # fmt: skip


@pytest.fixture
def three_runs(prepared: Prepared, tmp_path: Path) -> Path:
    """GTPO, GRPO and SFT on the built-in task, evaluated."""
    commands = []
    for name in ("gtpo", "grpo", "sft"):
        settings = [f"run_name={name}", f"objective.name={name}", "training.eval_every=2", "evaluation.limit=4"]
        commands.append([*TRAIN, *(part for setting in settings for part in ("--set", setting))])
        base = ["--base"] if name == "gtpo" else []
        commands.append(["eval", f"runs/{name}", "--pass-k", "4", "--limit", "4", *base])
    prepared(*commands)
    return tmp_path


def rendered(page: Path) -> tuple[str, str]:
    """(the document after the browser has loaded it, what the browser logged)."""
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
         "--virtual-time-budget=2000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_three_runs_in_one_report(gtpo: Run, three_runs: Path) -> None:
    output = gtpo("report", "runs/gtpo", "runs/grpo", "runs/sft").stdout.splitlines()
    page = three_runs / "runs" / "report-gtpo-grpo-sft" / "report.html"
    assert output[0] == str(page.relative_to(three_runs))
    assert page.resolve().as_uri() in output[1]
    assert output[-1] == "next: gtpo inspect runs/gtpo"
    rows = (page.parent / "table.csv").read_text().splitlines()
    assert {row.split(",")[2] for row in rows[1:]} == {"base", "GTPO", "GRPO", "SFT"}
    text = page.read_text()
    for name in ("accuracy", "strict_format", "entropy", "conflict", "filtered", "length", "arithmetic_pass_at_k"):
        assert f'<figure id="{name}">' in text
        assert (page.parent / "charts" / f"{name}.png").stat().st_size > 5000
    before = page.read_bytes()
    gtpo("report", "runs/gtpo", "runs/grpo", "runs/sft")
    assert page.read_bytes() == before
    if BROWSER:
        document, log = rendered(page)
        assert not re.findall(r"CONSOLE.*", log)
        assert document.count("<figure") == document.count("<canvas") == text.count("<figure")


def test_one_run_and_a_folder_of_ones_own(gtpo: Run, three_runs: Path) -> None:
    gtpo("report", "runs/sft")
    assert (three_runs / "runs" / "sft" / "report" / "report.html").is_file()
    gtpo("report", "runs/sft", "--out", "mine")
    assert (three_runs / "mine" / "table.md").is_file()
    assert "is not a run folder" in gtpo("report", "runs/none", code=2).stderr


def test_a_model_that_was_only_evaluated_has_a_report(gtpo: Run, tmp_path: Path) -> None:
    gtpo("eval", "builtin:tiny", "--pass-k", "4", "--limit", "4")
    gtpo("report", "runs/models/builtin-tiny")
    page = (tmp_path / "runs/models/builtin-tiny/report/report.html").read_text()
    assert "untrained" in page


def test_inspect_shows_a_step_a_completion_and_a_page(gtpo: Run, tmp_path: Path) -> None:
    gtpo(*TRAIN, "--set", "run_name=one")
    run = tmp_path / "runs" / "one"
    output = gtpo("inspect", "runs/one", "--step", "2").stdout
    rows = [json.loads(line) for line in (run / "samples" / "step-000002.jsonl").read_text().splitlines()]
    right = sum(row["accuracy"] > 0 for row in rows)
    assert output.startswith(f"In step 2 of runs/one, {right} of 64 answers to 8 problems were right. ")
    assert output.splitlines()[-1] == "next: gtpo generate runs/one"
    shown = re.findall(r"A ([+-]\d\.\d{3}), <H> (\d\.\d{4})", output)
    number = int(re.findall(r"^problem (\d)", output, re.MULTILINE)[0])
    groups = [rows[8 * place : 8 * place + 8] for place in range(8)]
    group = groups[number - 1]
    assert group == max(groups, key=lambda group: statistics.stdev(row["reward"] for row in group))
    tokens = [row["token_ids"] for row in group]
    once = [row for place, row in enumerate(group) if tokens.index(row["token_ids"]) == place]
    assert shown == [(f"{row['advantage']:+.3f}", f"{row['mean_entropy']:.4f}") for row in once]
    table = gtpo("inspect", "--problem", str(number), "--completion", "2", "--step", "2").stdout
    assert len(re.findall(r"^ +\d+ ", table, re.MULTILINE)) == len(group[1]["token_ids"])
    newest = gtpo("inspect").stdout
    assert newest.startswith("In step 4 of runs/one, ")
    assert "choose from 1, 2, 4" in gtpo("inspect", "--step", "7", code=2).stderr
    gtpo("inspect", "--html")
    page = run / "report" / "inspect-step-000004.html"
    if BROWSER:
        document, log = rendered(page)
        assert not re.findall(r"CONSOLE.*", log)
        rows = [json.loads(line) for line in (run / "samples" / "step-000004.jsonl").read_text().splitlines()]
        assert document.count('class="completion ') == len({f"{row['problem']} {row['token_ids']}" for row in rows})
