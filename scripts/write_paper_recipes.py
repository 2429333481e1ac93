"""Write recipes/paper/: the paper's runs, one short file each: `python scripts/write_paper_recipes.py [--check]`.

Four main recipes hold every value of Listing 1; all others extend one of them and say only what differs. The same table
is the list in docs/paper.md.
"""

from __future__ import annotations

import sys

from written_files import ROOT, below, parser, write

FOLDER = ROOT / "recipes" / "paper"
PAGE = ROOT / "docs" / "paper.md"
_TABLE = "<!-- the table below is written by scripts/write_paper_recipes.py -->"

MODELS = {
    "llama8b": ("LLaMA-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", 128),
    "qwen3b": ("Qwen2.5-3B", "Qwen/Qwen2.5-3B-Instruct", 64),
}
BENCHMARKS = {"gsm8k": "GSM8K", "math": "MATH"}

MAIN = """\
# GTPO on {benchmark} with {model}: the paper's settings (Listing 1).
seed: 3407
model:
  name: {name}
  load_in_4bit: true
  max_seq_length: 5500
  lora:
    rank: {rank}
    alpha: {rank}
    target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]
data:
  benchmark: {key}
  max_prompt_tokens: 4000
rollout:
  group_size: 8
  prompts_per_step: 1
  temperature: 1.0
  max_completion_tokens: 1500
  gpu_memory_utilization: 0.4
rewards:
  format: {{mode: presence}}  # the paper's sentence taken literally; strict is the safer choice
objective:
  name: gtpo
  entropy_coef: 0.1
optimizer:
  name: paged_adamw_8bit
  learning_rate: 1.0e-6
  betas: [0.999999, 0.999999]
  weight_decay: 0.1
  max_grad_norm: 0.1
  schedule: cosine
  warmup_ratio: 0.005
training:
  epochs: 1
  save_every: 500
"""

_BETAS = "optimizer: {betas: [0.9, 0.95]}"


def _grpo(beta: str) -> str:
    return f"objective: {{name: grpo, kl_coef: {beta}, entropy_coef: 0.0}}\n{_BETAS}"


# Name -> (what it is, where in the paper, what differs from the main recipe).
VARIANTS: dict[str, tuple[str, str, str]] = {
    "g12": ("groups of 12", "Figure 5b", "rollout: {group_size: 12}"),
    "grpo_beta0": ("GRPO, beta 0", "Figures 2, 3, 5a", _grpo("0.0")),
    "grpo_beta1e-6": ("GRPO, beta 1e-6", "Figures 2, 5a", _grpo("1.0e-6")),
    "grpo_beta0.04": ("GRPO, beta 0.04", "Figures 2, 5a", _grpo("0.04")),
    "sft": (
        "SFT",
        "Figure 2",
        f"objective: {{name: sft, entropy_coef: 0.0}}\n{_BETAS}\ntraining: {{keep_best: optim/loss}}",
    ),
    "conflict_only": (
        "conflict correction alone: no filter, no entropy term",
        "Figure 3",
        "objective: {entropy_coef: 0.0, filter: {enabled: never}}",
    ),
    "gamma0.01": ("gamma 0.01", "Figure 4a", "objective: {entropy_coef: 0.01}"),
    "gamma0.001": ("gamma 0.001", "Figure 4a", "objective: {entropy_coef: 0.001}"),
    "gamma1e-6": ("gamma 1e-6", "Figure 4a", "objective: {entropy_coef: 1.0e-6}"),
    "no_filter": ("no filter, gamma 0.1", "Figure 4a", "objective: {filter: {enabled: never}}"),
    "threshold0.7": ("filter threshold 0.7", "Figure 4b", "objective: {filter: {threshold: 0.7}}"),
    "threshold1.05": ("filter threshold 1.05", "Figure 4b", "objective: {filter: {threshold: 1.05}}"),
    "threshold2.0": ("filter threshold 2.0", "Figure 4b", "objective: {filter: {threshold: 2.0}}"),
    "negative0.7": (
        "only negative completions filtered, threshold 0.7",
        "Figure 4c",
        "objective: {filter: {threshold: 0.7, only_negative: true}}",
    ),
    "negative1.05": (
        "only negative completions filtered, threshold 1.05",
        "Figure 4c",
        "objective: {filter: {threshold: 1.05, only_negative: true}}",
    ),
    "negative2.0": (
        "only negative completions filtered, threshold 2.0",
        "Figure 4c",
        "objective: {filter: {threshold: 2.0, only_negative: true}}",
    ),
    "grpo_entropy": (
        "GRPO with entropy control: filter and entropy term",
        "Figure 4d",
        f"objective: {{name: grpo, entropy_coef: 0.1, filter: {{enabled: auto}}}}\n{_BETAS}",
    ),
    "grpo_betas": (
        "GRPO with GTPO's Adam betas",
        "Figure 6",
        "objective: {name: grpo, kl_coef: 0.0, entropy_coef: 0.0}\noptimizer: {betas: [0.999999, 0.999999]}",
    ),
    "betas0.9": ("GTPO with GRPO's Adam betas", "Figure 6", _BETAS),
    "released_code": ("as the authors' released code computes it", "", "objective: {compat: released_code}"),
}

SMALL_GPUS = {
    "llama8b_gsm8k_24gb": (
        "llama8b_gsm8k",
        "GTPO on GSM8K with LLaMA-3.1-8B on one GPU of 24 GB: shorter context and completions, smaller adapter.",
        "model: {max_seq_length: 1536, lora: {rank: 32, alpha: 32}}\n"
        "data: {max_prompt_tokens: 512}\n"
        "rollout: {max_completion_tokens: 768}",
    ),
    "qwen3b_gsm8k_16gb": (
        "qwen3b_gsm8k",
        "GTPO on GSM8K with Qwen2.5-3B on one GPU of 16 GB: shorter context and completions, smaller adapter.",
        "model: {max_seq_length: 1536, lora: {rank: 32, alpha: 32}}\n"
        "data: {max_prompt_tokens: 512}\n"
        "rollout: {max_completion_tokens: 768}",
    ),
}


def recipes() -> dict[str, str]:
    """File name without .yaml -> text."""
    files = {}
    for model_key, (model, name, rank) in MODELS.items():
        for key, benchmark in BENCHMARKS.items():
            main = f"{model_key}_{key}"
            files[main] = MAIN.format(model=model, name=name, rank=rank, key=key, benchmark=benchmark)
            for variant, (words, place, changes) in VARIANTS.items():
                where = f" ({place})" if place else ""
                files[f"{main}_{variant}"] = f"# {model} on {benchmark}: {words}{where}.\nextends: {main}\n{changes}\n"
    for file, (main, words, changes) in SMALL_GPUS.items():
        files[file] = f"# {words}\nextends: {main}\n{changes}\n"
    return files


def table() -> str:
    """The table of docs/paper.md."""
    lines = [
        "| figure | recipe, after the main recipe's name and `_` | what it is | what differs |",
        "|---|---|---|---|",
    ]
    for variant, (words, place, changes) in VARIANTS.items():
        lines.append(f"| {place or 'not in the paper'} | `{variant}` | {words} | `{'; '.join(changes.splitlines())}` |")
    return "\n".join(lines) + "\n"


def main() -> int:
    check = parser(__doc__).parse_args().check
    wanted = {FOLDER / f"{name}.yaml": text for name, text in recipes().items()}
    wanted[PAGE] = below(_TABLE, PAGE, table())
    return write(wanted, check=check, owned=FOLDER.glob("*.yaml"))


if __name__ == "__main__":
    sys.exit(main())
