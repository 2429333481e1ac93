"""How the training half of a step grows with G, T and V. Run: `python benchmarks/growth.py` (ten minutes on one core).

Conflict masks, forward, loss and backward of one group, on a model of two layers. Seconds in this process; peak memory
from fresh processes, above one that holds the same model and batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import cache
from pathlib import Path

import torch
from measure import Figure, own_peak_bytes, peak_bytes_of, write
from transformers import AutoTokenizer

from gtpo_cli.objective import (
    SampledRows,
    coefficients,
    conflict_mask,
    conflict_weights,
    group_advantages,
    mean_entropy,
    policy_loss,
    token_shares,
)
from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.policy.transformers_policy import TransformersPolicy

TITLE = "How cost grows"
PROMPT = 64
BASE = {"G": 8, "T": 256, "V": 8_000}
SWEPT = {"G": (4, 8, 16, 32, 64), "T": (128, 256, 512, 1024, 2048, 4096), "V": (1_000, 8_000, 32_000, 128_000)}
_SHAPE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
          "max_position_embeddings": 8192}  # fmt: skip


def run(*, rounds: int = 3, out: Path | None = None) -> list[Figure]:
    """A figure for each size; with `out`, the plot growth.png."""
    torch.set_num_threads(1)
    figures = []
    points: dict[str, list[tuple[int, float, float]]] = {}
    for axis, values in SWEPT.items():
        for value in values:
            size = BASE | {axis: value}
            policy, batch = policy_of(size["V"]), batch_of(**size)
            taken = []
            for _ in range(rounds + 1):
                start = time.process_time()
                half(policy, batch)
                taken.append(time.process_time() - start)
            seconds = statistics.median(taken[1:])
            job = ",".join(str(size[name]) for name in "GTV")
            memory = memory_of(job)
            points.setdefault(axis, []).append((value, seconds, memory / 2**20))
            others = ", ".join(f"{name} {size[name]:,}" for name in "GTV" if name != axis)
            figures.append(Figure(f"{axis} {value:,} ({others})", seconds, "s", note=f"{memory / 2**20:.0f} MiB"))
    if out is not None:
        plot(points, out / "growth.png")
    return figures


@cache
def memory_of(job: str) -> int:
    """Of a size that is on every axis it is measured once."""
    return peak_bytes_of(Path(__file__), f"half,{job}") - peak_bytes_of(Path(__file__), f"inputs,{job}")


def policy_of(vocabulary: int) -> TransformersPolicy:
    """Frozen output layer and embedding, as under an adapter; the blocks train."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **_SHAPE))
    model.get_input_embeddings().weight.requires_grad_(False)
    model.get_output_embeddings().weight.requires_grad_(False)
    return TransformersPolicy(
        model, AutoTokenizer.from_pretrained(resolve_name("builtin:tiny")), temperature=1.0, max_seq_length=8192
    )


def batch_of(G: int, T: int, V: int) -> SampledRows:
    """One group of random tokens, all at full length, whose first eight agree."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, V, (1, G, T), generator=generator)
    ids[..., :8] = ids[:, :1, :8]
    return SampledRows(
        prompt_ids_BP=torch.randint(3, V, (1, PROMPT), generator=generator),
        prompt_mask_BP=torch.ones(1, PROMPT, dtype=torch.bool),
        prompt_N=torch.zeros(G, dtype=torch.long),
        ids_NT=ids[0],
        mask_NT=torch.ones(G, T, dtype=torch.bool),
        sampled_NT=torch.zeros(G, T),
        rewards_N=torch.arange(G) % 3.0,
        truncated_N=torch.zeros(G, dtype=torch.bool),
    )


def half(policy: TransformersPolicy, rows: SampledRows) -> None:
    """What a step does with one group, in micro-batches of 16,384 tokens as `auto` makes them."""
    A_BG, mask_BGT = group_advantages(rows.by_group(rows.rewards_N)), rows.by_group(rows.mask_NT)
    M_BGT = conflict_mask(rows.by_group(rows.ids_NT), mask_BGT, A_BG)
    w_BGT = conflict_weights(M_BGT, A_BG)
    shares_BG = token_shares(mask_BGT)
    keep_N = torch.ones(len(rows), dtype=torch.bool)
    for index in rows.split(16_384, unit="tokens"):
        part, weights = rows[index], w_BGT.flatten(0, 1)[index]
        logp, H = policy.token_logprobs(part, trained_NT=weights != 0)
        H_mean, mask = mean_entropy(H, part.mask_NT), part.mask_NT
        c_NT = coefficients(A_BG.flatten()[index], H_mean, keep_N[index], weights, mask, entropy_coef=0.1)
        loss, _ = policy_loss(logp, c_NT, mask, shares_BG=shares_BG.flatten()[index])
        loss.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
    for parameter in policy.trainable_parameters():
        parameter.grad = None


def plot(points: dict[str, list[tuple[int, float, float]]], file: Path) -> None:
    """Seconds and memory over each axis, both logarithmic, with a line of slope 1 through the last point."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator

    names = {"G": "completions in the group, G", "T": "tokens in a completion, T", "V": "vocabulary, V"}
    figure, rows = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for column, (axis, measured) in enumerate(points.items()):
        x = [value for value, _, _ in measured]
        for row, (index, unit) in enumerate(((1, "CPU seconds"), (2, "MiB above the inputs"))):
            y = [point[index] for point in measured]
            panel = rows[row][column]
            panel.loglog(x, [y[-1] * value / x[-1] for value in x], color="0.8", linewidth=3, label="linear")
            panel.loglog(x, y, "o-", color="#1f5fa8")
            panel.set_xlabel(names[axis])
            panel.set_xticks(x, [f"{value:,}" if value < 10_000 else f"{value // 1000}k" for value in x])
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.minorticks_off()
            panel.grid(alpha=0.3)
            if column == 0:
                panel.set_ylabel(unit)
                panel.legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def job(text: str) -> None:
    """Child process: the inputs, and with "half" what is measured on top of them."""
    torch.set_num_threads(1)
    what, G, T, V = text.split(",")
    policy, batch = policy_of(int(V)), batch_of(int(G), int(T), int(V))
    half(policy, batch_of(2, 16, int(V)))  # what every first call allocates
    if what == "half":
        half(policy, batch)
    print(own_peak_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        job(arguments.job)
    else:
        print(write(arguments.out, "growth", TITLE, run(out=arguments.out)))


if __name__ == "__main__":
    main()
