"""scripts/gpu/campaign.py with every stage, small, on the card that is not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, environment
from environment import ENVIRONMENT
from servers import DATA, save_family

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="tokenizers and GSM8K are not beside the checkout (shared)")

# One block with LLaMA's tokenizer for both models; a few short rows of each kind, since kernels are interpreted.
SETTINGS = [
    "model.dtype=float16", "model.lora={rank: 8, alpha: 8}", "model.max_seq_length=130", "data.max_prompt_tokens=110",
    "data.limit=40", "rollout.group_size=2", "rollout.prompts_per_step=1",
    "optimizer.learning_rate=2e-3",  # so that the export shows the training
]  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("campaign")
    save_family("llama", work)
    model, through = str(work / "llama"), HERE / "through.py"
    # VLLM_USE_AOT_COMPILE: TRL's own engine would compile for the card
    env = environment() | ENVIRONMENT | {"GTPO_REHEARSAL": str(work / "socket"), "VLLM_USE_AOT_COMPILE": "0"}
    with (work / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, str(through), "--serve", env["GTPO_REHEARSAL"]], env=env, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        while not ((work / "socket").exists() and (work / "socket.plain").exists()):
            assert server.poll() is None, (work / "server.log").read_text()[-3000:]
            time.sleep(0.2)
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts/gpu/campaign.py"), "--here", "--work", str(work),
             "--limit-factor", "2", "--", "--small", "--model", model, "--large", model, "--through", str(through),
             "--set", *SETTINGS],
            env=env, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        os.killpg(server.pid, signal.SIGKILL)
    found = {file.stem: json.loads(file.read_text()) for file in (work / "results").glob("*.json")}
    assert found.pop("machine")["versions"]["unsloth"]
    failed = [name for name, result in found.items() if result["ended"] != "well"]
    logs = "".join((work / f"results/{name}.log").read_text()[-3000:] for name in failed)
    assert done.returncode == 0, done.stdout + logs
    return found


def figures(results: dict[str, Any], stage: str) -> dict[str, float]:
    return {figure["name"]: figure["value"] for figure in results[stage]["figures"]}


def test_all_stages_end_well(results: dict[str, Any]) -> None:
    assert {name: result["ended"] for name, result in results.items()} == dict.fromkeys(
        ("contracts", "learns", "decode", "full", "peers", "others"), "well"
    )
    for stage in ("contracts", "others"):
        (tests,) = results[stage]["tables"]["tests"]
        assert " passed" in tests["summary"]
        assert "failed" not in tests["summary"]


def test_the_run_that_learns_is_stopped_resumed_and_evaluated_before_and_after(results: dict[str, Any]) -> None:
    found = figures(results, "learns")
    assert 2 <= found["stopped after step"] <= 4
    assert found["steps after the resume"] == 4
    tables = results["learns"]["tables"]
    assert [row["step"] for row in tables["curve"]] == [1, 2, 3, 4]
    scores = {(row["model"], row["score"]) for row in tables["accuracy"]}
    models = ("base", "after SFT", "after GTPO")
    assert {(model, score) for model in models for score in ("accuracy", "pass@2", "maj@2")} <= scores
    assert ("exported", "pass@2") in scores


def test_the_decode_matrix_has_each_cell(results: dict[str, Any]) -> None:
    for bits in (4, 16):
        cells = results["decode"]["tables"][f"decode, {bits} bits"]
        assert [(row["sequences"], row["adapter"]) for row in cells] == [(2, True), (2, False), (4, True), (4, False)]
        assert all(row["ms for the prompts"] > 0 for row in cells)
        around = [row["what"] for row in results["decode"]["tables"][f"around it, {bits} bits"]]
        assert around == ["load the model and start the engine", "hand over the adapter", "wake up", "sleep"]
        assert results["decode"]["tables"][f"a profile of 20 tokens, {bits} bits"]


def test_the_full_runs_stand_beside_the_plan(results: dict[str, Any]) -> None:
    found = figures(results, "full")
    for name in ("llama8b_gsm8k", "llama8b_gsm8k, 2 steps a generation", "llama8b_gsm8k_80gb"):
        assert found[f"{name}: time/sample, mean"] > 0
        assert found[f"{name}: planned memory"] > 0


def test_trl_unsloths_own_trainer_and_gtpo_take_turns(results: dict[str, Any]) -> None:
    rows = results["peers"]["tables"]["whole GRPO steps"]
    assert [row["peer"] for row in rows] == ["gtpo", "TRL", "Unsloth"]
    assert all(row["seconds a step"] > 0 for row in rows)


def test_the_others(results: dict[str, Any]) -> None:
    found = figures(results, "others")
    assert 5 < found["initial entropy"] < 12  # random weights: near the logarithm of the vocabulary
    assert found["transformers policy, vLLM beside it, no graphs: sampler/gap_mean"] > 0
