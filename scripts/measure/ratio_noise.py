"""How far from 1 is the ratio of a completion when nothing was updated? (rounding between two forward passes)

    python scripts/measure/ratio_noise.py MODEL [--dtype bfloat16] [--tokens 120]

Samples 16 completions of sums and measures their log-probabilities twice with the same weights: one completion at a
time, and all at once. Prints the spread of a completion's mean difference (nats) and how many completions lie outside
GSPO's clip range. docs/objective.md, section 6, has the figures.
"""

from __future__ import annotations

import argparse

import torch

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy import load_policy
from gtpo_cli.policy.packing import measure_rows
from gtpo_cli.policy.sampler import SamplingParams, collate, load_sampler, sample
from gtpo_cli.recipe import build_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=120, help="most tokens of a completion")
    options = parser.parse_args()
    document = {
        "model": {"name": options.model, "dtype": options.dtype, "lora": None},
        "data": {"benchmark": "arithmetic"},
        "rollout": {"group_size": 8, "max_completion_tokens": options.tokens},
        "objective": {"name": "gspo"},
    }
    recipe = build_recipe(document, [], where="ratio_noise")
    job = Parts(recipe).training_job()
    policy = load_policy(job)
    params = SamplingParams(max_completion_tokens=options.tokens, seed=7)
    rows = collate(sample(load_sampler(policy, job), job.data.prompts[:2], 8, params), device=policy.device)

    def at_once(tokens: int) -> torch.Tensor:
        policy.measuring.limit = tokens
        return measure_rows(rows, lambda part: policy.token_logprobs(part)[0], policy.measuring, packed=policy.packs)

    mean_N = (at_once(1) - at_once(rows.size("tokens"))).sum(dim=1) / rows.mask_NT.sum(dim=1).clamp(min=1)
    clip = recipe.objective.clip
    ratio_N = mean_N.exp()
    outside = (ratio_N < 1 - clip.low) | (ratio_N > 1 + clip.high)
    print(f"standard deviation {float(mean_N.std()):.2g} nats; {int(outside.sum())} of {len(rows)} outside the range")


if __name__ == "__main__":
    main()
