"""What one call of vLLM's engine for a whole evaluation does for it, on a CPU. After `make test-vllm`:
`.venv-engines/bin/python benchmarks/evaluation.py [--a-call 4]` (a few minutes).

The built-in model with an adapter, `arithmetic`, 48 problems of 64 completions: as `gtpo eval` asks for them, all at
once, and so many problems a call. The completions are the same. CPU time of the process that samples and measures;
other processes grade.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import Figure, write

TITLE = "Evaluation, with vLLM's engine on a CPU"
CPU_ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
SETTINGS = [
    "model.lora={rank: 8, alpha: 8}", "rollout.engine=vllm", "rollout.max_num_seqs=256",
    "evaluation={limit: 48, samples: 64, max_completion_tokens: 64}",
]  # fmt: skip


def run(*, a_call: int) -> list[Figure]:
    os.environ |= CPU_ENGINE

    from gtpo_cli.data.unseen import load_benchmark
    from gtpo_cli.evaluation.loading import PolicyLoader, Subject
    from gtpo_cli.evaluation.measure import _evaluate_problems
    from gtpo_cli.machine.resolve import measuring_job
    from gtpo_cli.recipe import load_recipe
    from gtpo_cli.rewards import Scorer

    recipe = load_recipe("tiny_arithmetic", SETTINGS)
    job = measuring_job(recipe, temperature=recipe.evaluation.temperature)
    subject = PolicyLoader().load(Subject("base", job))
    benchmark = load_benchmark(recipe, "arithmetic", job.encoder, max_seq_length=512)
    engine = subject.sampler._engine._engine.llm_engine  # type: ignore[attr-defined]
    in_flight = counted(engine)
    everything = range(len(benchmark.prompts))
    figures = []
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:

        def evaluated(numbers: Sequence[int]) -> int:
            """Tokens."""
            found: list[Any] = []
            _evaluate_problems(
                recipe.evaluation, subject, benchmark, numbers, scorer, recipe.seed, lambda problem: None, found.extend
            )
            return sum(completion.tokens for problem in found for completion in problem.completions)

        evaluated(range(4))  # compiles
        for calls in ([everything[i : i + a_call] for i in everything[::a_call]], [everything]):
            in_flight.clear()
            started = time.process_time()
            tokens = sum(map(evaluated, calls))
            seconds = time.process_time() - started
            words = f"{len(calls)} call{'s' * (len(calls) > 1)}"
            together = sum(in_flight) / len(in_flight)
            note = f"{len(in_flight)} steps of the engine, {together:.0f} sequences in each; {tokens:,} tokens"
            figures.append(Figure(f"evaluation in {words}", tokens / seconds, "tokens a CPU second", note))
    return figures


def counted(engine: Any) -> list[int]:
    """The sequences in the engine at each of its steps, from now on."""
    numbers: list[int] = []
    step = engine.step

    def counting() -> Any:
        numbers.append(min(256, engine.get_num_unfinished_requests()))
        return step()

    engine.step = counting
    return numbers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--a-call", type=int, default=4, help="problems in a call")
    arguments = parser.parse_args()
    print(write(arguments.out, "evaluation", TITLE, run(a_call=arguments.a_call)))
