"""A real pre-trained model, SmolLM2-135M, as typed: NF4 in Unsloth's CUDA code, its shared vLLM engine, the export.

A template that opens the reasoning, the real end token, tied head, 30 layers, heads of 64, nine of them on three of
keys and values.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import environment, metrics
from servers import REAL_IS_HERE, Server, ended, engine_of

pytestmark = [
    pytest.mark.long,  # its 30 layers are interpreted: a third of an hour
    pytest.mark.skipif(not REAL_IS_HERE, reason="build/smollm2-135m is not here: make real-model makes it"),
]
END = 2  # <|im_end|>


def samples(server: Server, step: int) -> tuple[Path, list[dict[str, Any]]]:
    file = server.folder / f"runs/real/samples/step-{step:06}.jsonl"
    return file, [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def plain(servers: dict[str, Server]) -> dict[str, torch.Tensor]:
    """Of the first step's completions, sampled from the untrained policy; transformers alone gives what to hold
    everything against (plain.py)."""
    server = servers["smollm"]
    ended(server, "train")
    ended(server, "export")
    file, rows = samples(server, 1)
    run = server.folder / "runs/real"
    thinker, adapter, merged = server.folder / "thinker", run / "checkpoints/step-000002/model", run / "export/merged"
    arguments = (file, thinker, adapter, merged)
    program = [sys.executable, str(Path(__file__).with_name("plain.py")), *map(str, arguments)]
    done = subprocess.run(program, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    found = {name: torch.tensor(values) for name, values in json.loads(done.stdout).items()}
    return found | {"policy": torch.tensor([value for row in rows for value in row["logprobs"]])}


def test_train_on_a_real_model(servers: dict[str, Server]) -> None:
    server = servers["smollm"]
    options = engine_of(ended(server, "train").calls)
    assert (options["quantization"], options["max_model_len"]) == ("bitsandbytes", "96")
    rows = metrics(server.folder / "runs/real")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(0.01 < row["optim/grad_norm"] < 1000 for row in rows)
    for row in rows:  # of the second an adapter that was trained
        assert 0 < row["sampler/gap_mean"] < 0.02
        assert row["sampler/gap_max"] < 0.2
    facts = json.loads((server.folder / "runs/real/environment.json").read_text())
    assert (facts["backend"], facts["engine"]) == ("unsloth", "vllm")


def test_what_a_template_that_thinks_opens_is_paid(servers: dict[str, Server]) -> None:
    server = servers["smollm"]
    said = ended(server, "train").out
    assert "the chat template ends the prompt with <think>, which counts as the completion's" in said
    rows = [row for step in (1, 2) for row in samples(server, step)[1]]
    assert all("<think>" not in row["text"] for row in rows)
    rates = metrics(server.folder / "runs/real")
    assert sum(row["train/accuracy_rate"] for row in rates) > 0.5
    assert sum(row["train/strict_format_rate"] for row in rates) > 0.5


def test_the_models_own_end_token_ends_a_completion(servers: dict[str, Server]) -> None:
    server = servers["smollm"]
    ended(server, "train")
    rows = [row for step in (1, 2) for row in samples(server, step)[1]]
    for row in rows:
        *inner, last = row["token_ids"]
        assert END not in inner
        assert (last == END) == (row["finish_reason"] == "stop")
        assert "<|im_end|>" not in row["text"]
    assert sum(row["finish_reason"] == "stop" for row in rows) >= 1


def test_the_policy_is_the_real_model_in_four_bits(plain: dict[str, torch.Tensor]) -> None:
    """Unsloth's forward in float16 beside transformers in float32: the same template, weights and tied head."""
    rounding = (plain["policy"] - plain["nf4"]).abs()
    assert float(rounding.mean()) < 0.02
    assert float(rounding.max()) < 0.2
    assert float((plain["base"] - plain["nf4"]).abs().mean()) > 5 * float(rounding.mean())  # what the four bits cost


def test_the_merged_export_is_the_base_with_the_adapter(
    servers: dict[str, Server], plain: dict[str, torch.Tensor]
) -> None:
    """In float16, as the run computed; and its own check says the same of other tokens."""
    rounding = float((plain["merged"] - plain["base and adapter"]).abs().mean())
    trained = float((plain["base and adapter"] - plain["base"]).abs().mean())
    assert rounding < 0.1  # docs/export.md
    assert trained > 2 * rounding
    record = json.loads((servers["smollm"].folder / "runs/real/export/merged/export.json").read_text())
    assert record["rounding"]["mean"] < 0.1
    # A step's changes are of the size of float16's last place: which of them round up differs between processors.
    assert record["rounding"]["kept"] == pytest.approx(1, abs=0.3)
    assert record["difference_from_policy"]["mean"] < 1  # it has lost the error of the four bits
    assert record["dtype"] == "float16"


def test_the_run_and_its_export_are_evaluated(servers: dict[str, Server]) -> None:
    server = servers["smollm"]
    engine_of(ended(server, "eval").calls)
    ended(server, "eval merged")  # a model in 16 bits without an adapter, by transformers
    stored = sorted((server.folder / "runs").rglob("evaluation/local/*/samples.jsonl"))
    assert len(stored) == 3  # base, trained, merged
    for file in stored:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(rows) == 2
