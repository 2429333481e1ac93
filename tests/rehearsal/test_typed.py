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
from servers import CACHE, COMPLETION, DATA, Server, ended, engine_of

from gtpo_cli.recipe import load_recipe

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="GSM8K is not beside the checkout (shared/data)")


def test_train_on_llama(servers: dict[str, Server]) -> None:
    server = servers["llama"]
    done = ended(server, "train")
    assert "vLLM's first start with a model takes minutes, because it compiles" in done.out
    recipe = load_recipe("llama8b_gsm8k")
    assert engine_of(done.calls) | {"max_num_batched_tokens": ""} == {
        "gpu_memory_utilization": str(recipe.rollout.gpu_memory_utilization * 79 / 80),  # of what is free
        "max_model_len": str(69 + 2 * COMPLETION),
        "quantization": "bitsandbytes",
        "enable_sleep_mode": "True",
        "dtype": "torch.float16",
        "max_lora_rank": "8",
        "max_num_seqs": "32",  # the completions of four steps; the probe asks for two
        "max_num_batched_tokens": "",
        "enforce_eager": "False",
        "kv_cache_dtype": "auto",
        "speculative_config": "None",
    }
    rows = metrics(server.folder / "runs/whole")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["samples/age"] for row in rows] == [0, 1, 2, 3, 0]
    samples = [call for call in done.calls if call.startswith("sample")]
    assert samples == ["sample without torch.float32"] * 4  # the probe, two generations, an evaluation
    assert all(0.01 < row["optim/grad_norm"] < 1000 for row in rows)
    assert all(row["sampler/gap_max"] < 0.05 for row in rows)
    assert rows[0]["sampler/gap_mean"] > 0  # two engines: not one of them twice
    assert "eval/gsm8k/accuracy_rate" in rows[-1]
    facts = json.loads((server.folder / "runs/whole/environment.json").read_text())
    assert (facts["backend"], facts["engine"]) == ("unsloth", "vllm")
    assert {"unsloth", "unsloth_zoo", "vllm-bnb-plugin", "triton"} <= facts["packages"].keys()


def test_a_run_terminated_within_a_generation_and_then_without_room_resumes_to_the_same(
    servers: dict[str, Server],
) -> None:
    server = servers["llama"]
    stopped = ended(server, "terminated", code=143)
    assert "gtpo train --resume runs/cut" in stopped.out
    engine_of(stopped.calls)
    failed = ended(server, "no room", code=2)
    assert "memory does not hold vLLM's engine and everything else there (CUDA Error: out of memory" in failed.out
    assert "\nstep 4 is saved: gtpo train --resume runs/cut" in failed.out
    engine_of(ended(server, "resumed").calls)
    whole, cut = server.folder / "runs/whole", server.folder / "runs/cut"
    assert comparable(cut) == comparable(whole)
    ended_alike = [contents(run) for run in (whole, cut)]
    for content in ended_alike:
        del content["states"]  # `cut` has checkpoints of steps 4 and, mostly, 2
    assert ended_alike[0] == ended_alike[1]


def test_eval_loads_once_for_the_base_and_the_trained(servers: dict[str, Server]) -> None:
    server = servers["llama"]
    calls = ended(server, "eval").calls
    engine_of(calls)
    # One of the engine for each, whatever the problems. Nothing trains, so the adapter has 16 bits.
    samples = [call for call in calls if call.startswith("sample")]
    assert samples == ["sample without torch.float16"] * 2
    stored = sorted(path.name.partition("-n4")[0] for path in (server.folder / "runs/whole/evaluation/gsm8k").iterdir())
    assert stored == ["base", "step-000005"]


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
        "plan": "GPU memory", "doctor": "gsm8k.yaml can start here", "inspect": "In step 1 of runs/whole, ",
        "compare": "1 shared problem", "report": "report.html",
    }  # fmt: skip
    for name, word in words.items():
        assert word in ended(server, name).out, name
    assert set(commands()) - set(words) == {"train", "eval", "generate", "export merged", "export adapter"}  # above
    (watch,) = programs()
    figure = "import matplotlib; matplotlib.use('agg'); RUN = 'whole'\n" + watch + "\nassert len(metrics) == 5"
    subprocess.run([sys.executable, "-c", figure], cwd=server.folder, check=True)


def test_the_recipe_of_the_notebook_is_the_papers(tmp_path: Path) -> None:
    write_files(tmp_path)
    ours, shipped = (load_recipe(name).model_dump() for name in (str(tmp_path / "gsm8k.yaml"), "llama8b_gsm8k"))
    assert {key for key in ours if ours[key] != shipped[key]} == {"training", "tracking"}  # checkpoints, no wandb


def test_probe_entropy(servers: dict[str, Server]) -> None:
    done = ended(servers["qwen"], "probe")
    assert engine_of(done.calls)["gpu_memory_utilization"] == str(0.85 * 79 / 80)  # for measuring: training has 0.4
    assert "sample without torch.float16" in done.calls
    found = re.search(r"<H>_ini = ([\d.]+) nats", done.out)
    assert found is not None
    assert 5 < float(found.group(1)) < 12  # random weights: near the logarithm of the vocabulary


def test_train_on_qwen_with_the_longest_step_first(servers: dict[str, Server]) -> None:
    done = ended(servers["qwen"], "train")
    engine_of(done.calls)
    assert re.search(r"the longest row \(\d+ tokens\) fits", done.out)
    assert done.calls[1:3] == ["forward", "forward"]  # the stress step, beside an engine that is awake: both fit
    assert all(row["optim/grad_norm"] > 0.01 for row in metrics(servers["qwen"].folder / "runs/long"))


def test_the_recipe_of_a_small_current_model(servers: dict[str, Server]) -> None:
    """Qwen3, in 16 bits, whose answers stand in boxes."""
    server = servers["qwen3"]
    done = ended(server, "train")
    options = engine_of(done.calls)
    assert (options["quantization"], options["max_num_seqs"]) == ("None", "16")
    (row,) = metrics(server.folder / "runs/small")
    assert row["optim/grad_norm"] > 0.001
    assert row["sampler/gap_max"] < 0.05
    facts = json.loads((server.folder / "runs/small/environment.json").read_text())
    assert (facts["backend"], facts["engine"]) == ("unsloth", "vllm")


def test_grpo_with_a_kl_term(servers: dict[str, Server]) -> None:
    done = ended(servers["qwen"], "kl")
    assert "since it compiles" not in done.out  # enforce_eager
    options = engine_of(done.calls)
    assert options["enable_sleep_mode"] == "False"
    assert (options["max_num_seqs"], options["max_num_batched_tokens"]) == ("24", "3000")
    assert (options["enforce_eager"], options["kv_cache_dtype"]) == ("True", CACHE)
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
    assert options["speculative_config"] == str(speculation)
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
