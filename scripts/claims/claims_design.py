"""What is run for docs/claims.md: bases, settings, methods and studies, each study a file for `gtpo sweep`.

Registered before the runs (docs/claims/registration.md): what is changed here is another experiment. A variant is named
`<setting>.<method>`; in a tuning sweep its learning rate stands behind that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from statistics import fmean
from typing import Any

from gtpo_cli.entropy_filter import LN_2

BASES = "build/bases"
JSON_TASK = "examples/json_extraction"

Overrides = dict[str, Any]
Variants = dict[str, Overrides]
Cell = tuple[str, str, str]  # family, setting, method

RATES = ("1.5e-4", "3e-4", "6e-4")
TUNING_SEEDS = (101, 102)
CLOSE = 0.01  # of rates that are so close to the best in test accuracy, the lowest

COMMON: Overrides = {
    "model.load_in_4bit": False, "model.lora": None, "model.gradient_checkpointing": False,  # all weights
    "training.max_steps": 100, "training.save_every": 100, "training.eval_every": 100, "training.keep_best": None,
    "evaluation.limit": 400, "data.system_prompt": None, "tracking.log_completions_every": 100,
    "rewards.format.weight": 0.0,  # a right answer is all that is rewarded
}  # fmt: skip
JSON: Overrides = {
    "data.benchmark": "local", "data.path": f"{JSON_TASK}/data", "data.max_prompt_tokens": 100,
    "rollout.max_completion_tokens": 80, "rewards.format.tags": {"reasoning": None, "answer": "json"},
    "rewards.accuracy.equality": "text", "training.max_steps": 60, "training.eval_every": 60,
}  # fmt: skip
FIGURES = {
    "accuracy at first": "first train/accuracy_rate",  # at the temperature of training; problems never seen before
    "accuracy": "last train/accuracy_rate",
    "strict format": "last train/strict_format_rate",
    "truncated": "last completions/truncated_share",
    "forgets to stop": "ever completions/truncated_share > 0.5",
    "length": "last completions/length_mean",
    "entropy at first": "first entropy/mean",
    "entropy": "last entropy/mean",
    "filtered at first": "first entropy/filtered_share",
    "filtered": "mean entropy/filtered_share",
}
PRESENCE: Overrides = {"rewards.format.mode": "presence"}
GREEDY: Overrides = {"evaluation.temperature": 0.01}  # the same runs, tested without chance
SHARPENED = {"tiny": ("t1.3", "t1.6", "t1.8"), "qwen2": ("t1.6", "t2.0"), "mistral": ("t1.6", "t2.0")}

# -- bases: the arguments of scripts/models/build_tiny_model.py; `json` is the warm start of examples/json_extraction --

BUILT = {
    **{f"words{percent}": ["--free-words", str(percent / 100)] for percent in (25, 50, 75, 100)},
    "qwen2": ["--model-type", "qwen2"],
    "mistral": ["--model-type", "mistral"],
}

# -- settings: a family is a path of initial entropy, in its order ----------------------------------------------------


def warmer(base: str, *temperatures: float) -> Variants:
    """Settings of one base, sampled at these temperatures."""
    return {f"t{t}": {"model.name": base, "rollout.temperature": t} for t in temperatures}


FAMILIES: Mapping[str, Variants] = {
    "tiny": warmer("builtin:tiny", 1.0, 1.3, 1.6, 1.8, 2.0),
    "words": {
        **{f"w{percent}": {"model.name": f"{BASES}/words{percent}"} for percent in (25, 50, 75, 100)},
        "w100_t1.3": {"model.name": f"{BASES}/words100", "rollout.temperature": 1.3},
    },
    "qwen2": warmer(f"{BASES}/qwen2", 1.0, 1.6, 2.0),
    "mistral": warmer(f"{BASES}/mistral", 1.0, 1.6, 2.0),
    "json": {name: JSON | setting for name, setting in warmer(f"{BASES}/json", 1.0, 1.5, 2.0).items()},
}
MIDDLE = {"tiny": "t1.6", "json": "t1.5"}  # where all methods are compared
PATH_SEEDS = {"tiny": (1, 2, 3, 4), "words": (1, 2, 3, 4), "qwen2": (1, 2, 3), "mistral": (1, 2, 3), "json": (1, 2, 3)}

# -- methods -----------------------------------------------------------------------------------------------------------

CORRECTED: Overrides = {"objective.conflict.enabled": True}
PLAIN = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo")
METHODS: Variants = {"gtpo": {"objective.name": "gtpo"}}
for _name in PLAIN:
    METHODS[_name] = {"objective.name": _name}
    METHODS[f"{_name}_conflict"] = {"objective.name": _name, **CORRECTED}
SAME = ("gspo", "rloo")  # with one update a batch GSPO is GRPO, and RLOO Dr. GRPO with another unit of the gradient
ON_PATHS = ("grpo", "grpo_conflict", "gtpo")
OTHERS = tuple(name for name in METHODS if name not in ON_PATHS)

# -- studies -----------------------------------------------------------------------------------------------------------


def tuning() -> dict[str, Overrides]:
    """The sweeps that choose learning rates: every method at every rate, with seeds that are not used again.

    On the paths one seed, since neighbouring settings choose together; where all methods are compared, two.
    """

    def cells(family: str, pairs: Iterable[tuple[str, str]]) -> Variants:
        return {
            f"{setting}.{method}-{rate}": FAMILIES[family][setting] | METHODS[method] | _rate(rate)
            for (setting, method), rate in product(pairs, RATES)
        }

    sweeps = {}
    for family, settings in FAMILIES.items():
        others = [(MIDDLE[family], method) for method in OTHERS if family in MIDDLE]
        sweeps[f"tune_{family}"] = _sweep(cells(family, [*product(settings, ON_PATHS), *others]), TUNING_SEEDS[:1])
        if others:
            sweeps[f"tune_again_{family}"] = _sweep(cells(family, others), TUNING_SEEDS[1:])
    return sweeps


def tuned_accuracy(rows: Iterable[tuple[str, str, float]]) -> dict[Cell, dict[str, float]]:
    """{(family, setting, method): {rate: accuracy}}, means over (family, variant of a tuning sweep, test accuracy)."""
    found: dict[Cell, dict[str, list[float]]] = {}
    for family, variant, accuracy in rows:
        cell, rate = next((variant.removesuffix(f"-{rate}"), rate) for rate in RATES if variant.endswith(f"-{rate}"))
        setting, method = cell.rsplit(".", 1)
        found.setdefault((family, setting, method), {}).setdefault(rate, []).append(accuracy)
    return {key: {rate: fmean(values) for rate, values in by_rate.items()} for key, by_rate in found.items()}


def chosen_rates(tuned: Mapping[Cell, Mapping[str, float]]) -> dict[Cell, str]:
    """The rate of each cell: the best mean over its setting and those beside it on the path, where they were tried."""
    chosen = {}
    for family, setting, method in tuned:
        path = list(FAMILIES[family])
        place = path.index(setting)
        beside = [(family, other, method) for other in path[max(0, place - 1) : place + 2]]
        means = {rate: fmean(tuned[cell][rate] for cell in beside if cell in tuned) for rate in RATES}
        chosen[family, setting, method] = next(rate for rate in RATES if means[rate] >= max(means.values()) - CLOSE)
    return chosen


def comparisons(rates: Mapping[Cell, str]) -> dict[str, Overrides]:
    """The sweeps that count, in the order in which they are run."""

    def cell(family: str, setting: str, method: str) -> Overrides:
        return FAMILIES[family][setting] | METHODS[method] | _rate(rates[family, setting, method])

    sweeps = {}
    for family, settings in FAMILIES.items():
        variants = {f"{setting}.{method}": cell(family, setting, method) for setting in settings for method in ON_PATHS}
        sweeps[f"path_{family}"] = _sweep(variants, PATH_SEEDS[family])
    for family, setting in MIDDLE.items():
        variants = {f"{setting}.{method}": cell(family, setting, method) for method in OTHERS}
        sweeps[f"methods_{family}"] = _sweep(variants, PATH_SEEDS[family])
        shown = METHODS if family == "tiny" else ON_PATHS
        variants = {f"{setting}.{method}": cell(family, setting, method) | PRESENCE for method in shown}
        sweeps[f"presence_{family}"] = _sweep(variants, (1, 2))
    for study, family, setting, changes in _VARIANTS_OF_GTPO:
        variants = {f"{setting}.{name}": cell(family, setting, "gtpo") | change for name, change in changes.items()}
        sweeps[f"{study}_{family}"] = _sweep(variants, PATH_SEEDS[family][:3])
    sweeps["end_token"] = _sweep(_end_token(), (1, 2))
    for family, sharpened in SHARPENED.items():
        variants = {f"{setting}.{m}": cell(family, setting, m) | GREEDY for setting in sharpened for m in ON_PATHS}
        sweeps[f"greedy_{family}"] = _sweep(variants, PATH_SEEDS[family])
    setting, twice = MIDDLE["tiny"], {"objective.num_iterations": 2}
    sweeps["twice_tiny"] = _sweep({f"{setting}.{m}": cell("tiny", setting, m) | twice for m in METHODS}, (1, 2))
    return sweeps


_OFF: Variants = {
    "conflict": {"objective.conflict.enabled": False},
    "filter": {"objective.filter.enabled": "never"},
    "entropy": {"objective.entropy_coef": 0.0},
}
# GTPO with every subset of its parts taken out, at GTPO's rate: the whole is in path_*
_PARTS: Variants = {
    f"no_{'_'.join(out)}": {key: value for name in out for key, value in _OFF[name].items()}
    for out in (
        ("conflict",), ("filter",), ("entropy",),
        ("conflict", "filter"), ("conflict", "entropy"), ("filter", "entropy"), ("conflict", "filter", "entropy"),
    )
}  # fmt: skip
_THRESHOLDS: Variants = {
    "never": _OFF["filter"],
    **{str(nats): {"objective.filter.threshold": nats} for nats in (0.5, 1.0, 1.5, 2.0, 2.5)},
}
_FEWER_THRESHOLDS = {name: _THRESHOLDS[name] for name in ("never", "0.5", "1.0")}
# of a base that starts above ln 2, where the paper's rule leaves the filter off
_ALWAYS: Variants = {
    f"always{nats:.1f}": {"objective.filter.enabled": "always", "objective.filter.threshold": nats}
    for nats in (LN_2, 1.0, 1.5)
}
_SPANS: Variants = {
    "all": {"objective.conflict.span": "all"},
    "prefix": {"objective.conflict.alignment": "prefix"},
    "all_prefix": {"objective.conflict.span": "all", "objective.conflict.alignment": "prefix"},
}
_VARIANTS_OF_GTPO = (
    ("parts", "tiny", "t1.8", _PARTS),
    ("parts", "words", "w100", _PARTS),
    ("thresholds", "tiny", "t2.0", _THRESHOLDS),
    ("thresholds", "qwen2", "t2.0", _FEWER_THRESHOLDS),
    ("thresholds", "mistral", "t2.0", _FEWER_THRESHOLDS),
    ("thresholds", "words", "w100_t1.3", _ALWAYS),
    ("spans", "tiny", "t1.6", _SPANS),
    ("spans", "words", "w50", _SPANS),
)


def _end_token() -> Variants:
    """What sets off the lost end token: rate, reward and size of the group (always 64 completions a step)."""
    rewards = {
        "accuracy": {},
        "strict": {"rewards.format.weight": 1.0},
        "presence": {"rewards.format.weight": 1.0, **PRESENCE},
    }
    variants = {}
    for (reward, changes), rate, size in product(rewards.items(), ("6e-4", "1.2e-3"), (4, 8, 16)):
        group = {"rollout.group_size": size, "rollout.prompts_per_step": 64 // size}
        for method in ("grpo", "grpo_conflict") if size == 8 else ("grpo",):
            variants[f"{reward}.g{size}.{rate}.{method}"] = METHODS[method] | changes | _rate(rate) | group
    return variants


def _rate(rate: str) -> Overrides:
    return {"optimizer.learning_rate": float(rate)}


def _sweep(variants: Variants, seeds: tuple[int, ...]) -> Overrides:
    task = "local" if any("data.path" in changes for changes in variants.values()) else "arithmetic"
    figures = {"test accuracy": f"last eval/{task}/accuracy_rate", **FIGURES}
    return {
        "recipe": "tiny_arithmetic",
        "set": COMMON,
        "variants": variants,
        "seeds": list(seeds),
        "figures": figures,
        "window": 0.1,
    }
