"""A run that was killed and resumed equals one that was not, bit for bit."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import forks
import pytest
from commands import SIGNALLED, Prepared, Run, comparable, contents, environment

from gtpo_cli.recipe import load_recipe

# Small but with all state there is: iterations, KL reference, schedule, best checkpoint.
SETTINGS = [
    "rollout.prompts_per_step=2", "rollout.group_size=4", "rollout.max_completion_tokens=32",
    "objective.probe.num_prompts=16", "objective.num_iterations=2", "objective.kl_coef=0.01",
    "training.max_steps=12", "training.save_every=3", "training.keep_last=2", "tracking.log_completions_every=4",
    "data.limit=64",
]  # fmt: skip


def train_arguments(name: str, extra: list[str]) -> list[str]:
    overrides = [f"run_name={name}", *SETTINGS, *extra]
    return ["train", "--quiet", "--recipe", "tiny_arithmetic", *(a for o in overrides for a in ("--set", o))]


def lines(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


# Checkpoints in the middle of generations, and a last one that is shorter.
AHEAD = ["rollout.steps_per_generation=5", "objective.resample=1", "training.eval_every=4", "evaluation.limit=8"]


@pytest.mark.parametrize(
    ("number", "code", "extra"),
    [(signal.SIGINT, 130, []), (signal.SIGTERM, 143, []), (signal.SIGHUP, 129, []), (signal.SIGTERM, 143, AHEAD)],
)
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(
    gtpo: Run, prepared: Prepared, tmp_path: Path, number: int, code: int, extra: list[str]
) -> None:
    prepared(train_arguments("whole", extra))
    run = tmp_path / "runs" / "stopped"
    command = [SIGNALLED, str(int(number)), "4", *train_arguments("stopped", extra)]
    assert forks.run(command, cwd=tmp_path, env=environment()).returncode == code
    assert lines(run) == 4
    assert (run / "checkpoints" / "step-000004").is_dir()
    output = gtpo("train", "--quiet", "--resume").stdout  # the latest run is found by itself
    assert "resuming runs/stopped" in output
    assert comparable(run) == comparable(tmp_path / "runs" / "whole")
    assert contents(run) == contents(tmp_path / "runs" / "whole")


def test_a_finished_run_goes_on(gtpo: Run, tmp_path: Path) -> None:
    """With a constant rate as if it had been asked for all steps at once; else the schedule is of the new length."""
    small = ["rollout.max_completion_tokens=16", "objective.initial_entropy=0.1", "training.save_every=2"]
    constant = [*small, "optimizer.schedule=constant", "optimizer.warmup_ratio=0"]
    for name, steps in (("whole", 4), ("longer", 2)):
        gtpo(*train_arguments(name, [*constant, f"training.max_steps={steps}"]))
    longer = ["train", "--quiet", "--resume", "runs/longer", "--set"]
    output = gtpo(*longer, "training.max_steps=4", "--set", "training.keep_last=1").stdout
    said = "the run now has 4 steps; the constant learning rate spans all of them and continues with 0.0002 at step 3"
    assert said in output
    assert "step 4 of 4" in output
    assert comparable(tmp_path / "runs/longer") == comparable(tmp_path / "runs/whole")
    assert load_recipe(tmp_path / "runs/longer/recipe.yaml").training.max_steps == 4  # a later resume goes there too
    for change, said in (
        ("training.max_steps=3", "runs/longer: has made 4 steps, so it cannot end at step 3; set a later end"),
        ("optimizer.learning_rate=1", "--set optimizer.learning_rate with --resume: the steps so far were made with"),
        ("run_name=other", "--set run_name with --resume: the steps so far were made with run_name: longer"),
    ):
        assert said in gtpo(*longer, change, code=2).stderr
    finished = gtpo("train", "--resume", "runs/longer").stdout
    assert finished == (
        "runs/longer is finished: step 4 of 4; a larger training.max_steps continues it\n"
        "next: gtpo train --resume runs/longer --set training.max_steps=8\n"
    )
    leftover = tmp_path / "runs/longer/checkpoints/.step-000002.tmp"  # killed while an old checkpoint was removed
    leftover.mkdir()
    gtpo("train", "--resume", "runs/longer")
    assert not leftover.exists()
    assert load_recipe(tmp_path / "runs/longer/recipe.yaml").training.max_steps == 4
    said = " ".join(gtpo(*longer, "objective.kl_coef=1", code=2).stderr.split())
    assert "you can change its end (training.max_steps, training.epochs) and what changes no step (" in said
    output = gtpo(*longer, "training.guard.action=stop").stdout  # what changes no step needs no word on the schedule
    assert "the run now has" not in output
    assert load_recipe(tmp_path / "runs/longer/recipe.yaml").training.guard.action == "stop"

    gtpo(*train_arguments("cosine", [*small, "optimizer.warmup_ratio=0", "training.max_steps=2"]))
    gtpo("train", "--quiet", "--resume", "runs/cosine", "--set", "training.max_steps=4")
    rates = [row["optim/learning_rate"] for row in comparable(tmp_path / "runs/cosine")]
    assert rates == pytest.approx([2e-4, 1e-4, 1e-4, 1e-4 * (1 - 0.5**0.5)], rel=1e-9)


def test_a_run_goes_on_with_other_data_only_when_it_is_asked_to(gtpo: Run, tmp_path: Path) -> None:
    def write(*golds: int) -> None:
        rows = [{"question": f"{n}+1+1-1", "answer": str(gold)} for n, gold in enumerate(golds)]
        (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(*range(1, 9))
    data = "data={benchmark: local, path: mine.jsonl, limit: null}"
    gtpo(*train_arguments("one", [data, "training.max_steps=2"]))
    resume = ["train", "-q", "--resume", "runs/one", "--set", "training.max_steps=3"]
    write(1, 2, 99, *range(4, 9))
    said = gtpo(*resume, code=2).stderr
    assert "runs/one: 1 of its 8 problems differs from what it began with, in question or gold answer" in said
    assert "the first is local/mine/3; put the data back as they were, or go on with what is there now: --force" in said
    write(*range(1, 7))
    assert "it began with 8 problems, and now there are 6" in gtpo(*resume, code=2).stderr
    gtpo(*resume, "--force")
    gtpo(*resume[:-1], "training.max_steps=4")  # with the data that it went on with
