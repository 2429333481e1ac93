"""`gtpo train --engine trl` as a user types it: a run folder like any other, alone and in two processes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
import pytest
import torch
from commands import ROOT, comparable, contents, environment, metrics
from safetensors.torch import load_file

from gtpo_cli.runs.checkpoints import write_manifest

SETTINGS = [
    "rollout.prompts_per_step=3", "rollout.group_size=4", "rollout.max_completion_tokens=32",
    "objective.probe.num_prompts=8", "training.max_steps=6", "training.save_every=2", "training.keep_last=3",
    "tracking.wandb.mode=off", "tracking.log_completions_every=3", "objective.audit=true", "data.limit=40",
]  # fmt: skip
LORA = [
    "model.lora={rank: 4, alpha: 8}", "objective.num_iterations=2", "optimizer.learning_rate=1e-3",
    "objective.kl_coef=0.04",
]  # fmt: skip
GTPO = [sys.executable, "-m", "gtpo_cli"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "gtpo_cli"]


def run_in(folder: Path, command: list[str], *, code: int = 0) -> str:
    if command[: len(GTPO)] == GTPO:
        done = forks.run(command, cwd=folder, env=_environment())
    else:
        done = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def _environment() -> dict[str, str]:
    return environment() | forks.WITH_TRL


def train(name: str, *changes: str, recipe: str = "tiny_arithmetic") -> list[str]:
    overrides = [f"run_name={name}", *SETTINGS, *changes]
    return ["train", "--quiet", "--engine", "trl", "--recipe", recipe, *(p for o in overrides for p in ("--set", o))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of TRL alone and on two processes, and the same recipe in gtpo's own loop."""
    path = tmp_path_factory.mktemp("trl")
    out = run_in(path, [*GTPO, *train("alone")])
    assert "next: gtpo eval runs/alone --base" in out or "eval runs/alone --base" in out
    for done in forks.run_distributed([*GTPO, *train("two")], 2, cwd=path, env=_environment()):
        assert done.returncode == 0, done.stderr
    own = [part for part in train("own") if part not in ("--engine", "trl")]
    run_in(path, [*GTPO, *own])
    return path


@pytest.mark.parametrize("name", ["alone", "two"])
def test_the_run_folder_is_like_one_of_our_own(folder: Path, name: str) -> None:
    run, own = folder / "runs" / name, folder / "runs" / "own"
    rows, own_rows = metrics(run), metrics(own)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    unknown = {"sampler/gap_mean", "sampler/gap_max"}  # TRL's sampler gives no probabilities
    mine, theirs = (
        [{name for name in row if not name.startswith("audit/")} for row in of] for of in (own_rows, rows)
    )  # which parts of the audit there are depends on the completions
    assert theirs == [names - unknown for names in mine]
    assert all(any(name.startswith("audit/") for name in row) for row in rows)
    for mine, theirs in zip(own_rows, rows, strict=True):
        assert theirs["optim/learning_rate"] == pytest.approx(mine["optim/learning_rate"], rel=1e-12)
        assert theirs["optim/skipped"] == 0.0
        assert 0.0 < theirs["entropy/mean"] < 1.0
        phases = theirs["time/sample"] + theirs["time/reward"] + theirs["time/train"]
        assert phases == pytest.approx(theirs["time/step"], rel=0.05)
    assert {path.name for path in (run / "checkpoints").iterdir()} == {
        path.name for path in (own / "checkpoints").iterdir()
    }
    assert {path.name for path in (run / "samples").iterdir()} == {path.name for path in (own / "samples").iterdir()}
    facts = json.loads((run / "environment.json").read_text())
    assert facts["processes"] == (2 if name == "two" else 1)
    assert facts["trainer"].startswith("trl ")


@pytest.mark.parametrize("name", ["alone", "two"])
def test_later_commands_work_from_it(folder: Path, name: str) -> None:
    run = f"runs/{name}"
    out = run_in(folder, [*GTPO, "eval", run, "--limit", "4", "--pass-k", "2"])
    assert "pass@2" in out
    assert "lambda" in run_in(folder, [*GTPO, "inspect", run, "--step", "3"])
    run_in(folder, [*GTPO, "report", run])


def test_a_run_that_is_resumed_goes_on_as_it_would_have(folder: Path, tmp_path: Path) -> None:
    """On one process bit for bit: the newest checkpoint and what was logged since are lost."""
    (tmp_path / "runs").mkdir()
    whole = folder / "runs" / "alone"
    run = tmp_path / "runs" / "alone"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints" / "step-000006")
    shutil.rmtree(run / "checkpoints" / "step-000004")
    recorded = run / "environment.json"
    recorded.write_text(json.dumps(json.loads(recorded.read_text()) | {"products": "float16"}))
    out = run_in(tmp_path, [*GTPO, "train", "--quiet", "--resume", "runs/alone"])
    assert "resuming" in out
    assert "this machine multiplies in float32, and the one before in float16" in " ".join(out.split())
    assert comparable(run) == comparable(whole)
    expected, found = contents(whole), contents(run)
    assert found["model.safetensors"] == expected["model.safetensors"]


def test_several_steps_from_one_generation(tmp_path: Path) -> None:
    """TRL's own setting: the figures of a generation in each of its steps, the last generation cut by the run's end."""
    changes = [
        "rollout.steps_per_generation=2",
        "training.max_steps=5",
        "optimizer={learning_rate: 1e-2, warmup_ratio: 0}",
    ]
    run_in(tmp_path, [*GTPO, *train("ahead", *changes)])
    own = [part for part in train("own", *changes) if part not in ("--engine", "trl")]
    run_in(tmp_path, [*GTPO, *own])
    run = tmp_path / "runs/ahead"
    rows, own_rows = metrics(run), metrics(tmp_path / "runs/own")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["samples/age"] for row in rows] == [row["samples/age"] for row in own_rows] == [0, 1, 0, 1, 0]
    for mine, theirs in zip(own_rows, rows, strict=True):
        names = [{name for name in row if not name.startswith(("audit/", "sampler/"))} for row in (mine, theirs)]
        assert names[0] == names[1]
    for row in rows:
        at_once = row["samples/age"] == 0
        assert any(name.startswith("ratio/") for name in row) != at_once  # before an update it is 1
        if not at_once:
            assert row["ratio/mean"] != pytest.approx(1.0, abs=1e-5)
            assert row["ratio/max"] > 1.001
            assert row["ratio/clipped_share"] > 0
    assert rows[0]["train/reward_mean"] == rows[1]["train/reward_mean"] != rows[2]["train/reward_mean"]
    assert len({row["optim/grad_norm"] for row in rows}) == 5
    lines = (run / "samples/step-000003.jsonl").read_text().splitlines()
    sampled = [json.loads(line)["problem"] for line in lines]
    assert len(sampled) == 2 * 12
    of_step = [json.loads(line)["problem"] for line in (tmp_path / "runs/own/samples/step-000003.jsonl").open()]
    assert sampled[:12] == of_step
    whole = comparable(run), contents(run)
    for step in (4, 5):
        shutil.rmtree(run / f"checkpoints/step-{step:06d}")
    run_in(tmp_path, [*GTPO, "train", "--quiet", "--resume", "runs/ahead"])
    assert (comparable(run), contents(run)) == whole


def test_what_only_the_main_process_sees_ends_them_all(folder: Path, tmp_path: Path) -> None:
    """It used to wait for the others, which waited for it."""
    run = tmp_path / "runs" / "two"
    shutil.copytree(folder / "runs" / "two", run)
    recipe, newest = run / "recipe.yaml", run / "checkpoints" / "step-000006"
    recipe.write_text(recipe.read_text().replace("action: warn", "action: stop"))
    state = json.loads((newest / "state.json").read_text())
    (newest / "state.json").write_text(json.dumps(state | {"stopped": "policy collapse"}))
    (newest / "manifest.json").unlink()
    write_manifest(newest)
    out = run_in(tmp_path, [*TORCHRUN, "train", "--resume", "runs/two"], code=1)
    assert "error: runs/two: the guard stopped this run at step 6 (policy collapse)" in out


def test_fsdp2_is_the_same(folder: Path) -> None:
    """Weights and optimizer sharded over both processes; TRL samples by process, so both are of two."""
    config = ROOT / "examples/accelerate/fsdp2.yaml"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config), "-m", "gtpo_cli"]
    run_in(folder, [*launch, *train("sharded")])
    for found, expected in zip(comparable(folder / "runs/sharded"), comparable(folder / "runs/two"), strict=True):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    weights = [
        load_file(folder / f"runs/{run}/checkpoints/step-000006/model/model.safetensors") for run in ("sharded", "two")
    ]
    for name, tensor in weights[1].items():
        torch.testing.assert_close(weights[0][name], tensor, rtol=1e-5, atol=1e-7)
    assert "pass@1" in run_in(folder, [*GTPO, "eval", "runs/sharded", "--limit", "2", "--pass-k", "1"])


def test_it_starts_from_another_run(folder: Path) -> None:
    out = run_in(folder, [*GTPO, *train("next", "training.max_steps=1"), "--from", "runs/own:last"])
    assert "loading builtin:tiny from runs/own:6" in out
    files = [folder / f"runs/{place}/model.safetensors" for place in
             ("next/checkpoints/step-000001/model", "own/checkpoints/step-000006/model", "next/start")]  # fmt: skip
    first, *others = (load_file(file) for file in files)  # the rate of step 1 is 0
    assert all(torch.equal(first[name], other[name]) for other in others for name in other)
    with_kl = [*train("no-kl", "objective.kl_coef=0.1"), "--from", "runs/own"]
    assert "error: model.start: with --engine trl the reference of a KL term" in run_in(
        folder, [*GTPO, *with_kl], code=2
    )


def test_lora_with_iterations_on_two_processes_stops_and_goes_on(tmp_path: Path) -> None:
    """SIGTERM to the launcher ends the run with a checkpoint; it goes on on one process."""
    command = [*TORCHRUN, *train("lora", *LORA, "training.max_steps=200")]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    log = tmp_path / "runs" / "lora" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert "stopped (terminated)" in out, out
    run = tmp_path / "runs" / "lora"
    assert all(0.0 <= row["policy/kl"] < 1.0 for row in metrics(run))
    assert metrics(run)[-1]["policy/kl"] > 0.0
    reached = max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").iterdir())
    assert reached == len(metrics(run)) >= 3
    assert (run / "checkpoints" / f"step-{reached:06d}" / "model" / "adapter_model.safetensors").is_file()
    out = run_in(tmp_path, [*GTPO, "eval", "runs/lora", "--limit", "2", "--pass-k", "1"])
    assert "pass@1" in out


def test_what_trl_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    changes = ["objective.name=sft", "training.eval_every=3", "training.guard.action=rollback"]
    out = run_in(tmp_path, [*GTPO, *train("refused", *changes)], code=2)
    for key in ("objective.name", "training.eval_every", "training.guard.action"):
        assert f"error: {key}: " in out
    assert not (tmp_path / "runs" / "refused").exists()
    head = "model.lora={rank: 4, alpha: 8, target_modules: [q_proj, lm_head]}"
    out = run_in(tmp_path, [*GTPO, *train("head", head)], code=2)
    assert "error: model.lora.target_modules: no linear layer between embedding and output is called lm_head" in out
    assert "Traceback" not in out
    out = run_in(tmp_path, [*GTPO, *train("refused"), "--trl", "learning_rate=1"], code=2)
    assert "--trl learning_rate: the recipe decides that" in out
    out = run_in(tmp_path, [*GTPO, *train("refused"), "--trl", "nonsense=1"], code=2)
    assert "nonsense" in out


def test_a_launcher_that_started_too_few_is_found_out(tmp_path: Path) -> None:
    accelerate = [str(Path(sys.executable).parent / "accelerate"), "launch", "--cpu", "--num_processes", "2"]
    done = subprocess.run(
        [*accelerate, "-m", "gtpo_cli", *train("few")], cwd=tmp_path, env=_environment(), capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "error: accelerate launch started one process though several were requested" in done.stderr
    assert not (tmp_path / "runs").exists()
