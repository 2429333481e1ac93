"""The methods of `objective.name`: each is its paper, its equation and the switches it sets where a recipe is silent.

A switch that a recipe writes wins, so GTPO's three corrections (`objective.conflict.enabled`,
`objective.filter.enabled`, `objective.entropy_coef`) can be had on top of every method: c = delta (A - gamma <H>)
lambda then stands where the method has A. What the switches compute is in `gtpo_cli/objective`; docs/objective.md has
all of it in one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Method:
    """`switches`: dotted keys of a recipe and what they default to under this method."""

    source: str
    equation: str  # J of a group
    switches: Mapping[str, Any] = field(default_factory=dict)


_NO_CORRECTIONS = {
    "objective.conflict.enabled": False,
    "objective.filter.enabled": "never",
    "objective.entropy_coef": 0.0,
    "optimizer.betas": [0.9, 0.95],
}

METHODS: dict[str, Method] = {
    "gtpo": Method(
        source="arXiv 2508.03772, Eq. 11",
        equation="1/G sum_i 1/|o_i| sum_t min(r c, clip(r) c)",
    ),
    "grpo": Method(
        source="arXiv 2402.03300, Eq. 3; arXiv 2508.03772, Eq. 1",
        equation="1/G sum_i 1/|o_i| sum_t [min(r A, clip(r) A) - beta kl_t]",
        switches=_NO_CORRECTIONS,
    ),
    "dr_grpo": Method(
        source="arXiv 2503.20783",
        equation="1/G sum_i 1/L sum_t min(r A, clip(r) A), A = R - mean(R), L = rollout.max_completion_tokens",
        switches=_NO_CORRECTIONS | {"objective.advantage_scale": "none", "objective.average": "budget"},
    ),
    "dapo": Method(
        source="arXiv 2503.14476",
        equation="sum_{i,t} min(r A, clip(r) A) / (completion tokens of the step)",
        switches=_NO_CORRECTIONS
        | {
            "objective.average": "token",
            "objective.clip.high": 0.28,
            "objective.resample": 3,
            "rewards.length.weight": 5.0,  # half of what a right answer is worth, as in the paper (1 of 2)
        },
    ),
    "gspo": Method(
        source="arXiv 2507.18071, token form",
        equation="1/G sum_i 1/|o_i| sum_t min(s_t A, clip(s_t) A), s_t = sg(exp(mean_t ln r_t)) pi / sg(pi)",
        switches=_NO_CORRECTIONS
        | {"objective.ratio": "sequence", "objective.clip.low": 3e-4, "objective.clip.high": 4e-4},
    ),
    "cispo": Method(
        source="arXiv 2506.13585",
        equation="sum_{i,t} sg(min(r, high)) A ln pi / (completion tokens of the step)",
        switches=_NO_CORRECTIONS
        | {"objective.average": "token", "objective.clip.of": "weight", "objective.clip.high": 5.0},
    ),
    "rloo": Method(
        source="arXiv 2402.14740",
        equation="1/G sum_i sum_t min(r A, clip(r) A), A_i = R_i - mean of the others",
        switches=_NO_CORRECTIONS
        | {"objective.baseline": "leave_one_out", "objective.advantage_scale": "none", "objective.average": "sum"},
    ),
    "sft": Method(
        source="next-token cross-entropy of the reference completion, the prompt masked",
        equation="1/N sum over the N completion tokens of ln pi",
        switches=_NO_CORRECTIONS | {"training.keep_best": "optim/loss"},
    ),
}
