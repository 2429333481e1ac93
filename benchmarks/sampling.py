"""Sampling on a CPU. Run: `python benchmarks/sampling.py [--long | --prompts]`.

Against `transformers.generate`, on the built-in model. --long: what a token costs by the length of completions and of
the prompt, on the built-in model and, where it is here (`make real-model`), on SmolLM2-135M (20 minutes). --prompts:
SmolLM2-135M answers prompts that begin alike, as a greedy evaluation asks them: their beginning encoded once for all,
once for each, and by `transformers.generate` (fifteen minutes).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measure import Figure, interleaved, median_ratio, write

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy import decoder
from gtpo_cli.policy.decoder import ModelDecoder
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import load_recipe
from gtpo_cli.training.setup import set_up

TITLE = "Sampling"
PROMPTS, GROUP = 8, 8


def run(*, rounds: int = 15) -> list[Figure]:
    """64 completions, as a step of the demo samples them: with their own ends, and all of them 64 tokens long."""
    torch.set_num_threads(1)
    recipe = load_recipe("tiny_arithmetic")
    job = Parts(recipe).training_job()
    policy = set_up(job, say=lambda _: None).policy
    assert isinstance(policy, TransformersPolicy)
    prompts = [ids for _, ids in job.data.prompts[:PROMPTS]]
    figures = []
    ends = policy.eos_token_ids
    for name, stops in (("with their ends", ends), ("64 tokens each", frozenset[int]())):
        policy.eos_token_ids = stops
        counts: dict[str, list[int]] = {"gtpo": [], "through the model": [], "generate": []}
        seconds = interleaved(
            {
                "gtpo": partial(sample, TransformersSampler(policy), prompts, counts["gtpo"]),
                "through the model": partial(
                    sample, TransformersSampler(policy, decoder=ModelDecoder), prompts, counts["through the model"]
                ),
                "generate": partial(generate_samples, policy, prompts, counts["generate"]),
            },
            rounds=rounds,
        )
        speed = {path: [n / s for n, s in zip(counts[path][1:], taken, strict=True)] for path, taken in seconds.items()}
        note = ", ".join(f"{path} {statistics.median(values):,.0f} tokens/s" for path, values in speed.items())
        for path in ("gtpo", "through the model"):
            ratio = statistics.median(b / a for a, b in zip(speed[path], speed["generate"], strict=True))
            what = f"CPU time a token over generate, {name}" + (
                "" if path == "gtpo" else ", through the model's forward"
            )
            figures.append(Figure(what, ratio, "", note if path == "gtpo" else ""))
    policy.eos_token_ids = ends
    return figures


SMOLLM2 = Path(__file__).resolve().parent.parent / "build/smollm2-135m"
LENGTHS = ((48, 10), (384, 10), (1024, 10), (48, 600))  # tokens of the completions and of the prompt


def long_completions(*, rounds: int = 3) -> list[Figure]:
    """CPU milliseconds for a token of all eight completions of a prompt, on average over their length."""
    torch.set_num_threads(1)
    models = [("builtin:tiny", "float32")]
    dtypes = ["float32"] + ["bfloat16"] * torch.cpu._is_avx512_bf16_supported()  # elsewhere it is emulated
    models += [(str(SMOLLM2), dtype) for dtype in dtypes if (SMOLLM2 / "config.json").is_file()]
    figures = []
    for model, dtype in models:
        whole = "model.lora=null", "data.max_prompt_tokens=128", f"model.name={model}", f"model.dtype={dtype}"
        policy = set_up(Parts(load_recipe("tiny_arithmetic", whole)).training_job(), say=lambda _: None).policy
        assert isinstance(policy, TransformersPolicy)
        policy.eos_token_ids, policy.max_seq_length = frozenset(), 2048
        calls = {str(each): partial(sample_lengths, TransformersSampler(policy), *each) for each in LENGTHS}
        seconds = interleaved(calls, rounds=rounds)
        for (tokens, prompt), taken in zip(LENGTHS, seconds.values(), strict=True):
            name = "the built-in model" if model.startswith("builtin:") else f"SmolLM2-135M, {dtype}"
            what = f"a token of {GROUP} completions of {tokens}, after a prompt of {prompt}: {name}"
            figures.append(Figure(what, 1000 * statistics.median(taken) / tokens, "ms"))
    return figures


def shared_beginnings(*, rounds: int = 3) -> list[Figure]:
    """64 problems of a task after the recipe's system prompt, one greedy answer each."""
    torch.set_num_threads(1)
    job = Parts(load_recipe("smollm135m_tasks", [f"model.name={SMOLLM2}"])).training_job()
    policy = set_up(job, say=lambda _: None).policy
    assert isinstance(policy, TransformersPolicy)
    prompts = [ids for _, ids in job.data.prompts[:64]]
    answers: dict[str, list[list[int]]] = {}

    def answer(name: str, least: float) -> None:
        with mock.patch.object(decoder, "_SHARED_BEGINNING", least):
            rows = TransformersSampler(policy).sample(prompts, 1, SamplingParams(0.0, max_completion_tokens=64))
        answers[name] = [list(row[0].token_ids) for row in rows]

    def answer_by_generate() -> None:
        answers["generate"] = generate(policy, prompts, do_sample=False)

    candidates: dict[str, Callable[[], None]] = {
        "once": partial(answer, "once", decoder._SHARED_BEGINNING),
        "each": partial(answer, "each", math.inf),
        "generate": answer_by_generate,
    }
    seconds = interleaved(candidates, rounds=rounds)
    shared, all_tokens = decoder._shared_beginning(prompts), sum(map(len, prompts))
    beginning = f"{shared} tokens of {all_tokens / len(prompts):.0f} shared"
    figures = []
    for other, words in (("each", "once for each"), ("generate", "generate")):
        same = sum(a == b for a, b in zip(answers["once"], answers[other], strict=True))
        what = f"prompts' beginning encoded once over {words}"
        note = f"{beginning}; {same} of {len(prompts)} answers the same"
        figures.append(Figure(what, median_ratio(seconds, "once", other), "", note))
    return figures


def sample_lengths(sampler: TransformersSampler, tokens: int, prompt: int) -> None:
    sampler.sample([[5 + place % 50 for place in range(prompt)]], GROUP, SamplingParams(max_completion_tokens=tokens))


def sample(sampler: TransformersSampler, prompts: Sequence[Sequence[int]], counts: list[int]) -> None:
    rows = sampler.sample(prompts, GROUP, SamplingParams(max_completion_tokens=64, seed=len(counts)))
    counts.append(sum(len(completion.token_ids) for row in rows for completion in row))


def generate_samples(policy: TransformersPolicy, prompts: Sequence[Sequence[int]], counts: list[int]) -> None:
    torch.manual_seed(len(counts))
    repeated = [prompt for prompt in prompts for _ in range(GROUP)]
    counts.append(sum(map(len, generate(policy, repeated, do_sample=True, top_k=0, top_p=1.0))))


def generate(policy: TransformersPolicy, prompts: Sequence[Sequence[int]], **settings: Any) -> list[list[int]]:
    """The completions of transformers' own generate, with their ends: prompts left-padded, 64 tokens at most."""
    width, ends = max(map(len, prompts)), policy.eos_token_ids
    ids, mask = (torch.zeros(len(prompts), width, dtype=torch.long) for _ in range(2))
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
    with torch.no_grad():
        whole = policy.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=64, eos_token_id=sorted(ends) or None, pad_token_id=0,
            **settings,
        )  # fmt: skip
    rows: list[list[int]] = whole[:, width:].tolist()
    return [row[: next((place for place, token in enumerate(row, 1) if token in ends), len(row))] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, help="15; with --long and --prompts 3")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--prompts", action="store_true")
    arguments = parser.parse_args()
    name, figures = "sampling", run
    if arguments.long:
        name, figures = "sampling_long", long_completions
    elif arguments.prompts:
        name, figures = "sampling_prompts", shared_beginnings
    rounds = {} if arguments.rounds is None else {"rounds": arguments.rounds}
    print(write(arguments.out, name, TITLE, figures(**rounds)))


if __name__ == "__main__":
    main()
