"""Write recipes/sweeps/: the paper's comparisons as sweeps, each for the built-in models and at full size.

    python scripts/write_sweeps.py [--check]

A small sweep trains a model that takes half a minute, with five seeds; docs/claims.md says what is asked of it. Its
twin `<name>_llama8b` has the same variants on the paper's recipe for LLaMA-3.1-8B, for whoever has the GPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import yaml
from written_files import ROOT, parser, write

FOLDER = ROOT / "recipes" / "sweeps"

STEPS = 300
COMMON = {
    "training.max_steps": STEPS,
    "training.save_every": STEPS,
    "training.eval_every": STEPS,
    "rewards.format.mode": "presence",
    "objective.audit": True,
    "tracking.log_completions_every": STEPS,
}
HOT = {"optimizer.learning_rate": 1.0e-3}
WEAK = {"model.name": "builtin:weak"}
FIGURES = {
    "accuracy": "last train/accuracy_rate",
    "test accuracy": "last eval/arithmetic/accuracy_rate",
    "strict format": "last train/strict_format_rate",
    "truncated": "last completions/truncated_share",
    "forgets to stop": "ever completions/truncated_share > 0.5",
    "length": "last completions/length_mean",
    "entropy": "last entropy/mean",
    "entropy peak": "peak entropy/mean",
    "passes ln 2": "ever entropy/mean > 0.6931",
    "filtered": "mean entropy/filtered_share",
    "KL": "last policy/kl",
    "starts pushed down": "mean audit/prefix_negative_share",
    "groups push starts down": "mean audit/prefix_negative_groups",
    "ends pushed down": "mean audit/eos_negative_share",
    "groups push ends down": "mean audit/eos_negative_groups",
}
PAPER_BETAS = [0.999999, 0.999999]
GRPO: dict[str, Any] = {"objective.name": "grpo", "objective.entropy_coef": 0.0}
GRPO_CONTROL = {"objective.name": "grpo", "objective.filter.enabled": "auto", "objective.entropy_coef": 0.1}


@dataclass(frozen=True)
class Comparison:
    """A sweep: the question, the variants, and what only the small one sets."""

    about: str
    variants: dict[str, dict[str, Any]]
    small: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    seconds: int = 70
    twin: bool = True


def _rates(*rates: str) -> dict[str, dict[str, Any]]:
    return {
        f"{method}_{rate}": changes | {"optimizer.learning_rate": float(rate)}
        for rate in rates
        for method, changes in (("gtpo", {}), ("grpo", GRPO))
    }


SWEEPS = {
    "fig2_methods": Comparison(
        "Figure 2: GTPO, GRPO with three weights of the KL term, SFT",
        {
            "gtpo": {},
            "grpo_beta0": GRPO,
            "grpo_beta1e-6": GRPO | {"objective.kl_coef": 1.0e-6},
            "grpo_beta0.04": GRPO | {"objective.kl_coef": 0.04},
            "sft": {"objective.name": "sft", "objective.entropy_coef": 0.0, "training.keep_best": "optim/loss"},
        },
    ),
    "fig3_conflict": Comparison(
        "Figure 3: the conflict correction alone, and GTPO without it",
        {
            "gtpo": {},
            "conflict_only": {"objective.filter.enabled": "never", "objective.entropy_coef": 0.0},
            "without_conflict": {"objective.conflict.enabled": False},
            "grpo": GRPO,
        },
        HOT,
    ),
    "fig4a_gamma": Comparison(
        "Figure 4a: the weight of the entropy term, and no filter",
        {
            "gamma0.1": {},
            "gamma0.01": {"objective.entropy_coef": 0.01},
            "gamma0.001": {"objective.entropy_coef": 0.001},
            "gamma1e-6": {"objective.entropy_coef": 1.0e-6},
            "no_filter": {"objective.filter.enabled": "never"},
        },
        WEAK,
    ),
    "fig4b_thresholds": Comparison(
        "Figure 4b: the filter's threshold",
        {"ln2": {}} | {f"threshold{value}": {"objective.filter.threshold": value} for value in (0.7, 1.05, 2.0)},
        WEAK,
    ),
    "fig4c_only_negative": Comparison(
        "Figure 4c: filtering only completions with A < 0",
        {"gtpo": {}}
        | {
            f"negative{value}": {"objective.filter.threshold": value, "objective.filter.only_negative": True}
            for value in (0.7, 1.05, 2.0)
        },
        WEAK,
    ),
    "fig4d_entropy_control": Comparison(
        "Figure 4d: GRPO with the filter and the entropy term",
        {"gtpo": {}, "grpo": GRPO, "grpo_entropy": GRPO_CONTROL},
        WEAK,
    ),
    "fig5a_kl": Comparison(
        "Figure 5a: the weight of GRPO's KL term, where learning is fast",
        {
            "grpo_beta0": GRPO,
            "grpo_beta1e-6": GRPO | {"objective.kl_coef": 1.0e-6},
            "grpo_beta0.04": GRPO | {"objective.kl_coef": 0.04},
            "gtpo": {},
        },
        HOT,
    ),
    "fig5b_group_size": Comparison(
        "Figure 5b: groups of 8 and of 12",
        {
            "gtpo_g8": {},
            "gtpo_g12": {"rollout.group_size": 12},
            "grpo_g8": GRPO,
            "grpo_g12": GRPO | {"rollout.group_size": 12},
        },
        seconds=90,
    ),
    "fig6_betas": Comparison(
        "Figure 6: Adam's betas, the paper's for GTPO (0.999999) and for GRPO (0.9, 0.95)",
        {
            "gtpo_betas0.9": {"optimizer.betas": [0.9, 0.95]},
            "gtpo_betas0.999999": {"optimizer.betas": PAPER_BETAS},
            "grpo_betas0.9": GRPO | {"optimizer.betas": [0.9, 0.95]},
            "grpo_betas0.999999": GRPO | {"optimizer.betas": PAPER_BETAS},
        },
    ),
    "conflict_variants": Comparison(
        "Beyond the paper: which shared tokens count, and how much",
        {
            "gtpo": {},
            "prefix": {"objective.conflict.alignment": "prefix"},
            "all_positions": {"objective.conflict.span": "all"},
            "weights_0_1": {"objective.conflict.positive_weight": 1.0},
            "weights_0.5_1.5": {"objective.conflict.positive_weight": 1.5, "objective.conflict.negative_weight": 0.5},
        },
        HOT,
    ),
    "reward_and_scale": Comparison(
        "Beyond the paper: strict or presence format reward, advantages divided by their deviation or not",
        {
            "gtpo": {},
            "gtpo_strict": {"rewards.format.mode": "strict"},
            "gtpo_no_scale": {"objective.advantage_scale": "none"},
            "grpo": GRPO,
            "grpo_strict": GRPO | {"rewards.format.mode": "strict"},
            "grpo_no_scale": GRPO | {"objective.advantage_scale": "none"},
        },
        HOT,
    ),
    "learning_rates": Comparison(
        "GTPO and GRPO over learning rates on both sides of the stable range (2e-4 and 1e-3: fig2_methods, fig5a_kl)",
        _rates("1e-4", "5e-4", "2e-3"),
        twin=False,
    ),
    "learning_rates_weak": Comparison(
        "The same from the weak base, whose entropy is high (2e-4: fig4d_entropy_control)",
        _rates("5e-4", "1e-3"),
        WEAK,
        twin=False,
    ),
    "entropy_search": Comparison(
        "Where does entropy pass ln 2 under GRPO? Weak base, and each variant pushes further",
        {
            "hot": GRPO | HOT,
            "very_hot": GRPO | {"optimizer.learning_rate": 5.0e-3},
            "long": GRPO | HOT | {"training.max_steps": 900, "training.eval_every": 900},
            "constant": GRPO | {"optimizer.learning_rate": 5.0e-4, "optimizer.schedule": "constant"},
            "unclipped": GRPO | HOT | {"optimizer.max_grad_norm": 10.0},
            "only_accuracy": GRPO | HOT | {"rewards.format.weight": 0.0},
            "paper_betas": GRPO | HOT | {"optimizer.betas": PAPER_BETAS},
            "warm_sampling": GRPO | HOT | {"rollout.temperature": 1.3},
            "gtpo_hot": HOT,
            "gtpo_very_hot": {"optimizer.learning_rate": 5.0e-3},
        },
        WEAK,
        seeds=(1, 2, 3),
        seconds=60,
        twin=False,
    ),
}


def files() -> dict[str, str]:
    """{file name: text} of all sweeps."""
    texts = {}
    for name, sweep in SWEEPS.items():
        small = {
            "recipe": "tiny_arithmetic",
            "about": sweep.about,
            "set": COMMON | sweep.small,
            "variants": sweep.variants,
            "seeds": list(sweep.seeds),
            "figures": FIGURES,
            "seconds": sweep.seconds,
        }
        texts[f"{name}.yaml"] = _text(small, "about half a minute a run")
        if sweep.twin:
            large = {
                "recipe": "llama8b_gsm8k",
                "about": sweep.about,
                "set": {"objective.audit": True, "training.eval_every": 500, "evaluation.limit": 200},
                "variants": {variant: _paper_betas(changes) for variant, changes in sweep.variants.items()},
                "seeds": [3407, 1, 2],
                "figures": {key: text.replace("arithmetic", "gsm8k") for key, text in FIGURES.items()},
            }
            texts[f"{name}_llama8b.yaml"] = _text(large, "at the paper's size; nobody has run it here")
    return texts


def _paper_betas(changes: dict[str, Any]) -> dict[str, Any]:
    """The paper trains GRPO and SFT with other Adam betas than GTPO; the small recipe has those for all."""
    if changes.get("objective.name", "gtpo") == "gtpo" or "optimizer.betas" in changes:
        return changes
    return changes | {"optimizer.betas": [0.9, 0.95]}


def _text(document: dict[str, Any], how: str) -> str:
    head = f"# {document['about']}: {how}. Written by scripts/write_sweeps.py.\n"
    return head + yaml.safe_dump(document, sort_keys=False, width=1000)


def main() -> int:
    check = parser(__doc__).parse_args().check
    wanted = {FOLDER / name: text for name, text in files().items()}
    return write(wanted, check=check, owned=FOLDER.glob("*.yaml"))


if __name__ == "__main__":
    sys.exit(main())
