"""Defaults that follow from another key: the methods of `objective.name`, with paper and equation, and where an answer
stands (`rewards.answer`).

A recipe can override every switch. So GTPO's three corrections (`objective.token_weights.rule: conflict`,
`objective.filter.enabled`, `objective.entropy_coef`) work with every method: c = delta (A - gamma <H>) lambda then
replaces A. `gtpo_cli/objective` computes the switches; docs/objective.md has them in one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gtpo_cli.recipe.data import PRESETS

_NO_CORRECTIONS = {
    "objective.token_weights.rule": "none",
    "objective.filter.enabled": "never",
    "objective.entropy_coef": 0.0,
    "optimizer.betas": [0.9, 0.95],
}

# What `rewards.answer` means for keys that the recipe leaves open.
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "tags": {},
    "boxed": {"rewards.format.tags.reasoning": None, "data.system_prompt": PRESETS["qwen_boxed"]},
    "last_line": {"rewards.format.tags.reasoning": None, "data.system_prompt": PRESETS["dapo"]},
    "hashes": {"rewards.format.tags.reasoning": None, "data.system_prompt": PRESETS["verl_hashes"]},
}

METHODS: Mapping[str, Mapping[str, Any]] = {
    # arXiv 2508.03772, Eq. 11: 1/G sum_i 1/|o_i| sum_t min(r c, clip(r) c); the schema's own defaults
    "gtpo": {},
    # arXiv 2402.03300, Eq. 3; arXiv 2508.03772, Eq. 1: 1/G sum_i 1/|o_i| sum_t [min(r A, clip(r) A) - beta kl_t]
    "grpo": _NO_CORRECTIONS,
    # arXiv 2503.20783: 1/G sum_i 1/L sum_t min(r A, clip(r) A), A = R - mean(R), L = rollout.max_completion_tokens
    "dr_grpo": _NO_CORRECTIONS | {"objective.advantages.config": {"scale": "none"}, "objective.average": "budget"},
    # arXiv 2503.14476: sum_{i,t} min(r A, clip(r) A) / (completion tokens of the step). The paper resamples a group if
    # all or none of its answers are right, gtpo if its rewards are all equal.
    "dapo": _NO_CORRECTIONS
    | {
        "objective.average": "token",
        "objective.clip.high": 0.28,
        "objective.resample": 3,
        "rewards.length.weight": 5.0,  # half the reward of a right answer, as in the paper (1 of 2)
    },
    # arXiv 2507.18071: 1/G sum_i 1/|o_i| sum_t min(s_t A, clip(s_t) A), s_t = sg(exp(mean_t ln r_t)) pi / sg(pi)
    "gspo": _NO_CORRECTIONS | {"objective.loss.rule": "sequence"},
    # arXiv 2506.13585: sum_{i,t} sg(min(r, high)) A ln pi / (completion tokens of the step); without its dynamic
    # sampling and length penalty, which it adopts from DAPO
    "cispo": _NO_CORRECTIONS | {"objective.average": "token", "objective.loss.rule": "weight"},
    # arXiv 2402.14740: 1/G sum_i sum_t min(r A, clip(r) A), A_i = R_i - mean of the others; a KL term is in the
    # loss, as in all methods here, and not in the reward
    "rloo": _NO_CORRECTIONS
    | {"objective.advantages.config": {"baseline": "leave_one_out", "scale": "none"}, "objective.average": "sum"},
    # next-token cross-entropy of the reference completion, the prompt masked: 1/N sum over its N tokens of ln pi
    "sft": _NO_CORRECTIONS | {"training.keep_best": "optim/loss"},
}

# The clip range of a rule for the loss (`objective.loss.rule`), where 0.2 on both sides means something else to it.
CLIPS: Mapping[str, Mapping[str, Any]] = {
    "sequence": {"objective.clip.low": 3e-4, "objective.clip.high": 4e-4},  # arXiv 2507.18071
    "weight": {"objective.clip.high": 5.0},  # the bound of the ratio itself
    "geometric": {"objective.clip.low": 0.4, "objective.clip.high": 0.4},  # arXiv 2507.20673
}
