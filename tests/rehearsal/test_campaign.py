"""scripts/gpu/campaign.py with every stage, small, on the card that is not there. One is cut off and made again."""

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
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not DATA.is_dir(), reason="tokenizers and GSM8K are not beside the checkout (shared)"),
]

# One block with LLaMA's tokenizer for both models; a few short rows of each kind, since kernels are interpreted.
SETTINGS = [
    "model.dtype=float16", "model.lora={rank: 8, alpha: 8}", "model.max_seq_length=57", "data.max_prompt_tokens=45",
    "data.system_prompt=null", "data.limit=300", "rollout.group_size=2", "rollout.prompts_per_step=1",
    "optimizer.learning_rate=2e-3",  # so that the export shows the training
]  # fmt: skip

# LLaMA's without its system message of 25 tokens: the kernels take some hundredths of a second for each token.
TEMPLATE = """{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>
{{ message['content'] }}<|eot_id|>{% endfor %}
{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>
{% endif %}"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("campaign")
    save_family("llama", work)
    shrink_tokenizer(work / "llama/tokenizer.json")
    (work / "llama/chat_template.jinja").write_text(TEMPLATE)
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
        command = [
            sys.executable, str(ROOT / "scripts/gpu/campaign.py"), "--here", "--work", str(work), "--minutes", "60",
            "--limit-factor", "2", "--", "--small", "--model", model, "--large", model, "--through", str(through),
            "--set", *SETTINGS,
        ]  # fmt: skip
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as cut_off:
            while not (earlier := figures_so_far(work / "results/card24.json")):
                assert cut_off.poll() is None, (work / "results/card24.log").read_text()[-3000:]
                time.sleep(0.1)
            cut_off.kill()
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    found = {file.stem: json.loads(file.read_text()) for file in (work / "results").glob("*.json")}
    assert found.pop("machine")["versions"]["unsloth"]
    (kept,) = (found.pop(name) for name in list(found) if name.startswith("card24-"))
    assert kept["figures"][: len(earlier)] == earlier
    assert "ended" not in kept
    assert "code" not in kept["commands"][-1]  # that one was under way
    failed = [name for name, result in found.items() if result["ended"] != "well"]
    files = [work / "server.log", *(work / f"results/{name}.log" for name in failed)]
    logs = "".join(file.read_text()[-3000:] for file in files)
    assert done.returncode == 0, done.stdout + logs
    found["peers"]["log"] = (work / "results/peers.log").read_text()
    found["said"] = done.stdout.splitlines()
    return found


def shrink_tokenizer(file: Path) -> None:
    """Keep the first 40,000 tokens and the special ones: each of some thirty commands reads and copies it often."""
    document = json.loads(file.read_text())
    bpe = document["model"]
    bpe["vocab"] = {token: number for token, number in bpe["vocab"].items() if number < 40_000}
    bpe["merges"] = [pair for pair in bpe["merges"] if {*pair, "".join(pair)} <= bpe["vocab"].keys()]
    file.write_text(json.dumps(document))


def figures_so_far(result: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(result.read_text())["figures"] if result.is_file() else []
    return found


def figures(results: dict[str, Any], stage: str) -> dict[str, float]:
    return {figure["name"]: figure["value"] for figure in results[stage]["figures"]}


STAGES = ("contracts", "learns", "decode", "full", "card24", "flashinfer", "head", "peers", "full16", "others")


def test_all_stages_end_well_and_one_that_was_cut_off_is_made_again(results: dict[str, Any]) -> None:
    before = STAGES.index("card24")
    assert results["said"][:before] == [f"{name}: ended well before" for name in STAGES[:before]]
    assert [line for line in results["said"][before:] if not line.endswith("at most")] == [
        f"{name}: well" for name in STAGES[before:]
    ]
    for stage in ("contracts", "others"):
        (tests,) = results[stage]["tables"]["tests"]
        assert " passed" in tests["summary"]
        assert "failed" not in tests["summary"]


def test_the_run_that_learns_is_evaluated_before_and_after_exported_and_resumed(results: dict[str, Any]) -> None:
    assert figures(results, "learns")["steps after the resume"] == 3
    tables = results["learns"]["tables"]
    assert [row["step"] for row in tables["curve"]] == [1, 2, 3]
    scores = {(row["model"], row["score"]) for row in tables["accuracy"]}
    models = ("base", "after SFT", "after GTPO")
    assert {(model, score) for model in models for score in ("accuracy", "pass@2", "maj@2")} <= scores
    assert ("exported", "pass@2") in scores


def test_decoding_is_measured_with_and_without_an_adapter(results: dict[str, Any]) -> None:
    for bits in (16, 4):
        (row,) = results["decode"]["tables"][f"decode, {bits} bits"]
        assert row["sequences"] == 2
        assert row["ms for the prompts"] > 0
        difference = row["ms a token"] - row["ms a token without the adapter"]
        assert row["ms a token for the adapter"] == pytest.approx(difference, abs=2e-3)
        around = [row["what"] for row in results["decode"]["tables"][f"around it, {bits} bits"]]
        assert around == ["load the model and start the engine", "hand over the adapter", "wake up", "sleep"]
        assert results["decode"]["tables"][f"a profile of 20 tokens, {bits} bits"]


def test_the_full_runs_stand_beside_the_plan(results: dict[str, Any]) -> None:
    recipes = {"full": "llama8b_gsm8k", "card24": "llama8b_gsm8k", "full16": "llama8b_gsm8k_80gb"}
    for stage, recipe in recipes.items():
        found = figures(results, stage)
        assert found[f"{recipe}: time/sample, mean"] > 0
        assert found[f"{recipe}: planned memory"] > 0
        assert found[f"{recipe}: planned memory of an evaluation"] > 0
        keys = "what auto is on 24 GiB" if stage == "card24" else "what auto was"
        assert {"key": "rollout.standby", "value": "never"} in results[stage]["tables"][keys]
    assert figures(results, "full")["steps after the resume"] == 3
    scores = {(row["model"], row["score"]) for row in results["full"]["tables"]["accuracy of random weights"]}
    assert ("after three steps", "pass@2") in scores
    assert figures(results, "card24")["taken by another process"] == 0  # there is no card


def test_flashinfer_that_is_not_there_is_no_failure(results: dict[str, Any]) -> None:
    assert results["flashinfer"]["notes"] == ["FlashInfer is not installed here, so nothing was started."]


def test_the_engines_output_layer_in_both_types(results: dict[str, Any]) -> None:
    found = figures(results, "head")
    gaps = [found[f"SmolLM2, output layer in {dtype}: sampler/gap_mean"] for dtype in ("bfloat16", "float32")]
    assert 0 < min(gaps)
    assert gaps[0] != gaps[1]


def test_trl_unsloths_own_trainer_and_gtpo_take_turns(results: dict[str, Any]) -> None:
    rows = results["peers"]["tables"]["whole GRPO steps"]
    beside = "the adapter beside the weights"  # Unsloth folds it by a kernel for GPUs alone
    assert [(row["peer"], row["samples with"]) for row in rows] == [
        ("gtpo", beside), ("TRL", "merged weights, copied to vLLM at each step"), ("Unsloth", beside),
        ("Unsloth-unfolded", beside),
    ]  # fmt: skip
    assert all(row["seconds a step"] > 0 for row in rows)
    assert results["peers"]["log"].count("merged-weight rollouts (automatic) are not used") == 1  # Unsloth as it comes


def test_the_others(results: dict[str, Any]) -> None:
    assert figures(results, "others")["transformers policy, vLLM beside it, no graphs: sampler/gap_mean"] > 0
