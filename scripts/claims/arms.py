"""The arms of the third round: what each changes in a recipe."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from gtpo_cli.objective import Tokens, needs


class Arm(NamedTuple):
    """`words`: what the page calls it."""

    words: str
    recipe: dict[str, Any]


@needs("group")
def positives_only(tokens: Tokens) -> Tensor:
    """Nothing for completions below their group's mean."""
    return (tokens.advantages > 0)[..., None] & tokens.mask


_POSITIVES = {"objective.name": "grpo", "objective.token_weights.rule": "arms:positives_only"}
_CORRECTED = {"objective.name": "grpo", "objective.token_weights.rule": "conflict"}
ARMS = {
    "grpo": Arm("GRPO", {"objective.name": "grpo"}),
    "positives": Arm(
        "only right completions", {"objective.name": "grpo", "objective.token_weights.rule": "arms:positives_only"}
    ),
    "correction": Arm("conflict correction", _CORRECTED),
    "uniform": Arm("same weight, spread evenly", _CORRECTED | {"objective.token_weights.control": "even"}),
    "shuffled": Arm("same weights, random tokens", _CORRECTED | {"objective.token_weights.control": "random"}),
    "gtpo": Arm("GTPO", {"objective.name": "gtpo"}),
    "dapo": Arm("DAPO", {"objective.name": "dapo"}),
    # the paper's other comparisons
    "grpo_kl": Arm("GRPO with beta 0.04", {"objective.name": "grpo", "objective.kl_coef": 0.04}),
    "sft": Arm("SFT", {"objective.name": "sft", "rollout.prompts_per_step": 64}),  # as many completions a step,
}
