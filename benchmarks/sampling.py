"""Sampling on a CPU. Run: `python benchmarks/sampling.py [--long | --prompts]`.

Against `transformers.generate`, on the built-in model. --long: what a token costs by the length of completions and of
the prompt, on the built-in model and, where it is here (`make real-model`), on SmolLM2-135M (20 minutes). --prompts:
SmolLM2-135M answers prompts that begin alike, as a greedy evaluation asks them: their beginning is encoded once for all
or once for each (eight minutes).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
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
                "generate": partial(generate, policy, prompts, stops, counts["generate"]),
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
    answers: dict[str, list[tuple[int, ...]]] = {}

    def answer(name: str, least: float) -> None:
        with mock.patch.object(decoder, "_SHARED_BEGINNING", least):
            rows = TransformersSampler(policy).sample(prompts, 1, SamplingParams(0.0, max_completion_tokens=64))
        answers[name] = [row[0].token_ids for row in rows]

    candidates = {"once": partial(answer, "once", decoder._SHARED_BEGINNING), "each": partial(answer, "each", math.inf)}
    seconds = interleaved(candidates, rounds=rounds)
    same = sum(a == b for a, b in zip(*answers.values(), strict=True))
    shared, all_tokens = decoder._shared_beginning(prompts), sum(map(len, prompts))
    note = f"{shared} tokens of {all_tokens / len(prompts):.0f} shared; {same} of {len(prompts)} answers the same"
    return [
        Figure("prompts' beginning encoded once over once for each", median_ratio(seconds, "once", "each"), "", note)
    ]


def sample_lengths(sampler: TransformersSampler, tokens: int, prompt: int) -> None:
    sampler.sample([[5 + place % 50 for place in range(prompt)]], GROUP, SamplingParams(max_completion_tokens=tokens))


def sample(sampler: TransformersSampler, prompts: Sequence[Sequence[int]], counts: list[int]) -> None:
    rows = sampler.sample(prompts, GROUP, SamplingParams(max_completion_tokens=64, seed=len(counts)))
    counts.append(sum(len(completion.token_ids) for row in rows for completion in row))


def generate(
    policy: TransformersPolicy, prompts: Sequence[Sequence[int]], stops: frozenset[int], counts: list[int]
) -> None:
    """transformers' own: prompts left-padded and repeated, sampling from the whole distribution."""
    width = max(map(len, prompts))
    ids, mask = (torch.zeros(len(prompts), width, dtype=torch.long) for _ in range(2))
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
    torch.manual_seed(len(counts))
    with torch.no_grad():
        whole = policy.model.generate(
            input_ids=ids.repeat_interleave(GROUP, 0), attention_mask=mask.repeat_interleave(GROUP, 0), do_sample=True,
            max_new_tokens=64, top_k=0, top_p=1.0, eos_token_id=sorted(stops) or None, pad_token_id=0,
        )  # fmt: skip
    counts.append(int((whole[:, width:] != 0).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--prompts", action="store_true")
    arguments = parser.parse_args()
    if arguments.long:
        print(write(arguments.out, "sampling_long", TITLE, long_completions()))
    elif arguments.prompts:
        print(write(arguments.out, "sampling_prompts", TITLE, shared_beginnings()))
    else:
        print(write(arguments.out, "sampling", TITLE, run(rounds=arguments.rounds)))


if __name__ == "__main__":
    main()
