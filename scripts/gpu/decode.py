"""Milliseconds for a token of all sequences in flight, through Unsloth's shared engine.

python decode.py --model FOLDER --bits 4 --batches 8 64 256 --tokens 64 --out FILE

FILE is JSON, and written again after each batch, which is decoded with an adapter on all linear layers and without one.
There is no FP8: gtpo has no base weights in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy import load_policy, unsloth_policy
from gtpo_cli.policy.sampler import load_sampler
from gtpo_cli.policy.vllm_sampler import SharedEngine, VllmSampler, run_requests
from gtpo_cli.recipe import load_recipe

PROMPT = 200  # tokens
_prompts = count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--bits", type=int, choices=(4, 16), required=True)
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", nargs="*", default=[])
    arguments = parser.parse_args()
    settings = [
        *arguments.set, f"model.name={arguments.model}", "model.backend=unsloth", "rollout.engine=vllm",
        f"model.load_in_4bit={str(arguments.bits == 4).lower()}", "rollout.standby=always",
        f"rollout.max_num_seqs={max(arguments.batches)}", f"model.max_seq_length={PROMPT + arguments.tokens + 8}",
        f"rollout.max_completion_tokens={arguments.tokens}",
        f"evaluation.max_completion_tokens={arguments.tokens}", f"data.max_prompt_tokens={PROMPT}",
    ]  # fmt: skip
    # Both kinds of graphs, since the cells without an adapter are timed too.
    unsloth_policy.capture_graphs_with_adapter = lambda _: None  # type: ignore  # imported there
    started = time.perf_counter()
    recipe = load_recipe("llama8b_gsm8k", settings)
    job = Parts(recipe).job()
    policy = load_policy(job)
    sampler = load_sampler(policy, job)
    loaded = time.perf_counter() - started
    assert isinstance(sampler, VllmSampler)
    engine = sampler._engine
    assert isinstance(engine, SharedEngine)
    around: dict[str, list[float]] = {"hand over the adapter": [], "wake up": [], "sleep": []}
    for _ in range(4):  # the first of each warms up
        around["hand over the adapter"].append(_seconds(lambda: engine.update(policy)))
        around["wake up"].append(_seconds(engine._wake_up))
        around["sleep"].append(_seconds(engine._sleep))
    parts = [{"what": "load the model and start the engine", "seconds": round(loaded, 1)}]
    parts += [{"what": what, "seconds": round(statistics.median(each[1:]), 4)} for what, each in around.items()]
    matrix: list[dict[str, Any]] = []
    found = {"decode": matrix, "around it": parts}
    _write(arguments.out, found)

    engine.update(policy)
    engine._wake_up()
    for batch in arguments.batches:
        row: dict[str, Any] = {"sequences": batch}
        for adapter, words in ((engine._adapter, ""), (None, " without the adapter")):
            taken = {  # with all tokens, and with the first alone, which comes with the prompt
                tokens: min([_decode(engine, batch, tokens, adapter) for _ in range(3)][1:])
                for tokens in (arguments.tokens, 1)
            }
            of_a_token = (taken[arguments.tokens] - taken[1]) / (arguments.tokens - 1)
            row[f"ms a token{words}"] = round(1000 * of_a_token, 3)
            row[f"tokens/s{words}"] = round(batch / of_a_token)
            row[f"ms for the prompts{words}"] = round(1000 * taken[1], 1)
        row["ms a token for the adapter"] = round(row["ms a token"] - row["ms a token without the adapter"], 3)
        matrix.append(row)
        _write(arguments.out, found)
    profile = _profile(lambda: _decode(engine, arguments.batches[0], min(20, arguments.tokens), engine._adapter))
    _write(arguments.out, found | {"a profile of 20 tokens": profile})


def _write(file: Path, found: dict[str, Any]) -> None:
    file.with_suffix(".tmp").write_text(json.dumps(found))
    file.with_suffix(".tmp").replace(file)


def _decode(engine: SharedEngine, batch: int, tokens: int, adapter: Any) -> float:
    """Seconds of sampling so many tokens for each sequence. No two prompts begin alike, else vLLM's cache has them."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=1.0, logprobs=0)
    starts = [211 * next(_prompts) for _ in range(batch)]
    requests = [([1000 + (start + place) % 120011 for place in range(PROMPT)], params) for start in starts]
    return _seconds(lambda: list(run_requests(engine._engine, requests, adapter)))


def _seconds(do: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    do()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def _profile(do: Callable[[], Any]) -> list[dict[str, Any]]:
    from torch.profiler import profile, supported_activities

    with profile(activities=supported_activities()) as recorded:  # type: ignore[no-untyped-call]
        do()
    rows = sorted(recorded.key_averages(), key=lambda row: -row.self_device_time_total)[:20]
    return [
        {"kernel": row.key[:100], "calls": row.count, "ms on the card": round(row.self_device_time_total / 1000, 2)}
        for row in rows
    ]


if __name__ == "__main__":
    main()
