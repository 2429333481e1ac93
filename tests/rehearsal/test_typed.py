"""What the commands of servers.py did: metrics, files, words, and what stood beside what in their processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import comparable, contents, metrics
from gpu_notebook import commands, programs, write_files
from servers import COMPLETION, DATA, Done, Server

from gtpo_cli.recipe import load_recipe

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="GSM8K is not beside the checkout (shared/data)")


def ended(server: Server, name: str, *, code: int = 0) -> Done:
    done = server.futures[name].result(timeout=900)
    assert done.code == code, done.out[-6000:]
    assert "Traceback" not in done.out
    assert "pause state" not in done.out  # vLLM's line whenever the engine sleeps or wakes
    return done


def engine_of(calls: list[str]) -> dict[str, str]:
    """The one engine of a process, which got what the recipe says, and slept but while it sampled."""
    engines = [call for call in calls if call.startswith("engine ")]
    assert len(engines) == 1
    rest = calls[calls.index(engines[0]) + 1 :]
    awake = " ".join("sample" if call.startswith("sample") else call for call in rest)
    awake = awake.replace("sample wake sleep", "sampled")
    assert awake.startswith("sleep")  # from its start
    assert not re.search(r"\b(sample|wake)\b|sleep.*\bsleep\b", awake), awake
    assert "sample with gradients" not in rest
    options: dict[str, str] = json.loads(engines[0].removeprefix("engine "))
    return options


def test_train_on_llama(servers: dict[str, Server]) -> None:
    server = servers["llama"]
    done = ended(server, "train")
    recipe = load_recipe("llama8b_gsm8k")
    assert engine_of(done.calls) == {
        "gpu_memory_utilization": str(recipe.rollout.gpu_memory_utilization * 79 / 80),  # of what is free
        "max_model_len": str(110 + 2 * COMPLETION),
        "quantization": "bitsandbytes",
        "enable_sleep_mode": "True",
        "dtype": "torch.float16",
        "max_lora_rank": "8",
    }
    rows = metrics(server.folder / "runs/whole")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(0.01 < row["optim/grad_norm"] < 1000 for row in rows)
    assert all(row["sampler/gap_max"] < 0.05 for row in rows)
    assert rows[0]["sampler/gap_mean"] > 0  # two engines: not one of them twice
    assert "eval/gsm8k/accuracy_rate" in rows[1]
    facts = json.loads((server.folder / "runs/whole/environment.json").read_text())
    assert (facts["backend"], facts["engine"]) == ("unsloth", "vllm")
    assert {"unsloth", "unsloth_zoo", "vllm-bnb-plugin", "triton"} <= facts["packages"].keys()


def test_a_terminated_run_resumes_to_the_same_metrics_and_weights(servers: dict[str, Server]) -> None:
    server = servers["llama"]
    stopped = ended(server, "terminated", code=143)
    assert "gtpo train --resume runs/cut" in stopped.out
    engine_of(stopped.calls)
    engine_of(ended(server, "resumed").calls)
    whole, cut = server.folder / "runs/whole", server.folder / "runs/cut"
    assert comparable(cut) == comparable(whole)
    assert contents(cut) == contents(whole)


def test_eval_loads_once_for_the_base_and_the_trained(servers: dict[str, Server]) -> None:
    server = servers["llama"]
    engine_of(ended(server, "eval").calls)
    stored = sorted(path.name.partition("-n4")[0] for path in (server.folder / "runs/whole/evaluation/gsm8k").iterdir())
    assert stored == ["base", "step-000003"]


def test_generate_and_export(servers: dict[str, Server]) -> None:
    server = servers["llama"]
    assert "4 tokens, truncated" in ended(server, "generate").out
    ended(server, "export merged")
    assert (server.folder / "runs/whole/export/merged/model.safetensors").is_file()
    ended(server, "export adapter")
    assert (server.folder / "runs/whole/export/adapter/adapter_model.safetensors").is_file()


def test_the_other_cells_of_the_notebook(servers: dict[str, Server]) -> None:
    server = servers["llama"]
    words = {
        "plan": "GPU memory", "doctor": "gsm8k.yaml can start here", "inspect": "runs/whole, step 1",
        "compare": "1 shared problem", "report": "report.html",
    }  # fmt: skip
    for name, word in words.items():
        assert word in ended(server, name).out, name
    assert set(commands()) - set(words) == {"train", "eval", "generate", "export merged", "export adapter"}  # above
    (watch,) = programs()
    figure = "import matplotlib; matplotlib.use('agg'); RUN = 'whole'\n" + watch + "\nassert len(metrics) == 3"
    subprocess.run([sys.executable, "-c", figure], cwd=server.folder, check=True)


def test_the_recipe_of_the_notebook_is_the_papers(tmp_path: Path) -> None:
    write_files(tmp_path)
    ours, shipped = (load_recipe(name).model_dump() for name in (str(tmp_path / "gsm8k.yaml"), "llama8b_gsm8k"))
    assert {key for key in ours if ours[key] != shipped[key]} == {"training", "tracking"}  # checkpoints, no wandb


def test_probe_entropy(servers: dict[str, Server]) -> None:
    done = ended(servers["qwen"], "probe")
    engine_of(done.calls)
    found = re.search(r"<H>_ini = ([\d.]+) nats", done.out)
    assert found is not None
    assert 5 < float(found.group(1)) < 12  # random weights: near the logarithm of the vocabulary


def test_train_on_qwen_with_the_longest_step_first(servers: dict[str, Server]) -> None:
    done = ended(servers["qwen"], "train")
    engine_of(done.calls)
    assert re.search(r"the longest row \(\d+ tokens\) fits", done.out)
    assert done.calls[1:4] == ["sleep", "forward", "forward"]  # the stress step, beside an engine that sleeps
    assert all(row["optim/grad_norm"] > 0.01 for row in metrics(servers["qwen"].folder / "runs/long"))


def test_grpo_with_a_kl_term(servers: dict[str, Server]) -> None:
    done = ended(servers["qwen"], "kl")
    engine_of(done.calls)
    assert done.calls.count("reference") == 2
    rows = metrics(servers["qwen"].folder / "runs/kl")
    assert rows[0]["policy/kl"] == pytest.approx(0, abs=1e-6)
    assert rows[1]["policy/kl"] >= 0


def test_sft_starts_no_engine(servers: dict[str, Server]) -> None:
    done = ended(servers["qwen"], "sft")
    assert done.calls == ["forward"] * 4  # two of the stress step, one of the check after the update
    rows = metrics(servers["qwen"].folder / "runs/sft")
    assert all(row["optim/grad_norm"] > 0.01 for row in rows)
    facts = json.loads((servers["qwen"].folder / "runs/sft/environment.json").read_text())
    assert (facts["backend"], facts["engine"]) == ("unsloth", None)
