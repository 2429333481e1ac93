"""gtpo train into an offline wandb run, resumed, and into TensorBoard: what is in them, read back."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import wandb_records
import yaml
from commands import Run, environment, metrics
from wandb_server import wandb_server

from gtpo_cli.tracking.wandb import waits_for_upload

TRAIN = [
    "train", "-q", "--recipe", "tiny_arithmetic", "--set", "run_name=one", "--set", "training.max_steps=4",
    "--set", "data.limit=64",
    "--set", "rollout.group_size=4", "--set", "rollout.prompts_per_step=4", "--set", "training.save_every=2",
    "--set", "objective.initial_entropy=0.16", "--set", "objective.filter.threshold=0.2",
    "--set", "rollout.max_completion_tokens=34", "--set", "rollout.mask_truncated=true",
    "--set", "training.eval_every=4", "--set", "evaluation.limit=5", "--set", "tracking.log_completions_every=3",
    "--set", "tracking.wandb.mode=offline",
]  # fmt: skip
COLUMNS = {"prompt", "text", "reward", "advantage", "filtered"}


def test_samples_evaluations_config_and_summary_are_in_the_record(gtpo: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    spoken = [word for word in TRAIN if word != "-q"]
    said = gtpo(*spoken, "--set", "tracking.tensorboard=true").stdout.splitlines()
    run = tmp_path / "runs" / "one"
    (file,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    command = "wandb sync runs/one/wandb/offline-run-*"
    assert "wandb: offline, in runs/one/wandb; to upload it afterwards:" in said
    assert f"  {command}" in said
    assert f"  wandb          offline; to upload it: {command}" in said
    typed = subprocess.run(
        f"{command} --dry-run", shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert str(file.relative_to(tmp_path)) in typed.stdout + typed.stderr

    started, config = wandb_records.started(file)
    assert (started.project, started.display_name) == ("gtpo", "one")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    for key, value in json.loads((run / "environment.json").read_text())["decided"].items():
        section, _, name = key.partition(".")
        recipe[section][name] = value
    assert {key: config[key] for key in recipe} == recipe

    logged = wandb_records.history(file)
    rows = metrics(run)
    assert sorted(logged) == [1, 2, 3, 4]
    for row in rows:
        assert {key: logged[row["step"]][key] for key in row} == row
    last = wandb_records.summary(file)
    assert {key: last[key] for key in rows[-1]} == rows[-1]

    assert [step for step in logged if "samples" in logged[step]] == [1, 3]
    for step in (1, 3):
        table = wandb_records.table(file, logged[step]["samples"])
        stored = [json.loads(line) for line in (run / f"samples/step-{step:06d}.jsonl").read_text().splitlines()]
        assert len(table) == len(stored) == 16
        assert set(table[0]) > COLUMNS
        for told, seen in zip(table, stored, strict=True):
            same = ("problem", "gold", "text", "reward", "advantage", "mean_entropy", "finish_reason")
            assert {key: told[key] for key in same} == {key: seen[key] for key in same}
            assert (told["step"], told["prompt"]) == (step, f"<s><user>{seen['question']}<assistant>")
            why = ["mean entropy over the threshold"] if seen["mean_entropy"] > 0.2 else []
            why += ["truncated"] if seen["finish_reason"] == "length" else []
            assert told["filtered"] == "; ".join(why)
            assert bool(told["filtered"]) != seen["kept"]
    assert {"", "truncated"} < {told["filtered"] for told in all_samples(file, logged)}

    asked = wandb_records.table(file, logged[4]["evaluation/arithmetic"])
    assert len(asked) == 5
    right = sum(row["correct"] for row in asked) / 5
    assert math.isclose(right, rows[-1]["eval/arithmetic/accuracy_rate"])
    assert all(row["text"] and row["question"] for row in asked)

    shown = texts(run / "tensorboard")
    assert [step for step, _ in shown["samples/text_summary"]] == [1, 3]
    assert [step for step, _ in shown["evaluation/arithmetic/text_summary"]] == [4]
    first = shown["samples/text_summary"][0][1].splitlines()
    assert len(first) == 2 + 16
    head = [cell.strip() for cell in first[0].strip("| ").split(" | ")]
    assert set(head) >= COLUMNS
    cells = wandb_records.table(file, logged[1]["samples"])
    for line, row in zip(first[2:], cells, strict=True):
        shown_row = dict(zip(head, line[2:-2].split(" | "), strict=True))
        assert shown_row["text"].replace("\\", "") == row["text"]
        assert float(shown_row["advantage"]) == pytest.approx(row["advantage"], rel=1e-4, abs=1e-6)


def all_samples(file: Path, logged: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for step in logged if "samples" in logged[step]
            for row in wandb_records.table(file, logged[step]["samples"])]  # fmt: skip


def texts(folder: Path) -> dict[str, list[tuple[int, str]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def test_a_resumed_run_goes_on_in_the_same_wandb_run_with_its_tables(gtpo: Run, tmp_path: Path) -> None:
    gtpo(*TRAIN)
    run = tmp_path / "runs" / "one"
    (first,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    last = run / "checkpoints" / "step-000004"
    (last / "state.json").write_text("{")  # damaged: the run goes on from step 2
    gtpo("train", "-q", "--resume", "runs/one")
    (second,) = {*(run / "wandb").glob("offline-run-*/run-*.wandb")} - {first}
    assert first.name == second.name
    assert waits_for_upload(run)
    for file in (first, second):
        file.with_name(f"{file.name}.synced").touch()  # as `wandb sync` leaves it
    assert not waits_for_upload(run)
    logged = wandb_records.history(second)
    assert sorted(logged) == [3, 4]
    assert wandb_records.axes(second) == {"step": "", "*": "step"}
    calls = wandb_records.logged(second)
    assert [items["step"] for items in calls if "optim/loss" in items] == [3, 4]
    assert [items["_step"] for items in calls] == list(range(len(calls))), "wandb counts for itself"
    before = wandb_records.table(first, wandb_records.history(first)[3]["samples"])
    assert wandb_records.table(second, logged[3]["samples"]) == before
    assert {path.name for path in (run / "wandb" / "artifacts").iterdir()} == {"staging"}  # nothing in the user's home


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_the_server_gets_every_step_of_a_resumed_run_under_its_own_number(gtpo: Run, tmp_path: Path, mode: str) -> None:
    """The real client against a stand-in server. wandb's own step would drop steps 3 and 4 of the resumed part."""
    with wandb_server() as server:
        run = tmp_path / "runs" / "one"
        gtpo(*TRAIN, "--set", f"tracking.wandb.mode={mode}", env=server.environment)
        first = metrics(run)
        shutil.rmtree(run / "checkpoints" / "step-000004")
        gtpo("train", "-q", "--resume", "runs/one", env=server.environment)
        if mode == "offline":
            assert server.history == {}
            subprocess.run(
                "wandb sync runs/one/wandb/offline-run-*", shell=True, cwd=tmp_path, check=True, capture_output=True,
                env=environment() | server.environment,
            )  # fmt: skip
        (rows,) = (server.rows(name) for name in server.history)  # one run, which was continued
        losses = [(row["step"], row["optim/loss"]) for row in rows if "optim/loss" in row]
        assert losses == [(row["step"], row["optim/loss"]) for row in [*first, *first[2:]]]
        assert all("step" in row for row in rows)
        assert {row["step"] for row in rows if "eval/arithmetic/accuracy_rate" in row} == {4}
