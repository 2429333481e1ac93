"""What several steps a generation (`rollout.steps_per_generation`) do for vLLM on a CPU, and gtpo's own sampler beside
it. After `make real-model` and `make test-vllm`: `.venv-engines/bin/python benchmarks/ahead.py` (a quarter of an hour).

SmolLM2-135M with an adapter, 8 completions a step, as in the paper's recipes, of at most 32 tokens. Wall time:
sampling and training are one process's, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Figure, write

TITLE = "Steps a generation, with vLLM's engine on a CPU"
MODEL = Path(__file__).resolve().parent.parent / "build/smollm2-135m"
STEPS_PER_GENERATION = (1, 2, 4, 8)
STEPS = 8  # of a run
CPU_ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}


def run(*, rounds: int = 2) -> list[Figure]:
    sampled: dict[int, list[float]] = {K: [] for K in STEPS_PER_GENERATION}
    made: dict[int, list[float]] = {K: [] for K in STEPS_PER_GENERATION}
    for turn in range(rounds):
        for K in STEPS_PER_GENERATION if turn % 2 == 0 else STEPS_PER_GENERATION[::-1]:
            tokens_a_second, steps_a_minute = trained(K)
            sampled[K].append(tokens_a_second)
            made[K].append(steps_a_minute)
    own = statistics.median(trained(1, engine="transformers")[0] for _ in range(rounds))
    figures = [Figure("sampling, gtpo's own sampler", own, "tokens/s")]
    for K in STEPS_PER_GENERATION:
        words = f"{K} step{'s' * (K > 1)} a generation"
        more = statistics.median(a / b for a, b in zip(sampled[K], sampled[1], strict=True))
        figures += [
            Figure(f"sampling, {words}", statistics.median(sampled[K]), "tokens/s", f"{more:.2f} of one step's"),
            Figure(f"whole steps, {words}", statistics.median(made[K]), "a minute"),
        ]
    return figures


def trained(K: int, *, engine: str = "vllm") -> tuple[float, float]:
    """Tokens a second while sampling, and steps a minute, of `gtpo train`."""
    settings = [
        f"model.name={MODEL}", "model.lora={rank: 16, alpha: 32}", f"rollout.engine={engine}",
        "rollout.prompts_per_step=1", "rollout.group_size=8", f"rollout.steps_per_generation={K}",
        f"training.max_steps={STEPS}", "run_name=bench", "rollout.max_completion_tokens=32",
        "objective.initial_entropy=1.8", "training.save_every=100",
    ]  # fmt: skip
    changes = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "gtpo_cli", "train", "--quiet", "--recipe", "smollm135m_words", *changes]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, env=os.environ | CPU_ENGINE, check=True, stdout=subprocess.DEVNULL)
        rows = (Path(folder) / "runs/bench/metrics.jsonl").read_text().splitlines()
    counted = [json.loads(row) for row in rows]
    tokens = sum(8 * row["completions/length_mean"] for row in counted)
    sampling = sum(row["time/sample"] for row in counted)
    everything = sum(row["time/step"] for row in counted)
    return tokens / sampling, 60 * len(counted) / everything


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    print(write(arguments.out, "ahead", TITLE, run(rounds=arguments.rounds)))
