"""GTPO as another engine takes it: one advantage for each token, for a trainer that knows how to do GRPO.

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded).

Eq. 11 differs from GRPO's Eq. 1 in what multiplies the ratio of a token: `delta_i (A_i - gamma <H>_i) lambda_{i,t}` in
place of `A_i`. An engine that averages over the tokens of a completion and then over completions (`loss_type="grpo"`
in TRL, `seq-mean-token-mean` in verl), and takes advantages of shape (rows, T), computes GTPO when it is given these.
Clipping commutes with lambda, which is not negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gtpo_cli.errors import RecipeError
from gtpo_cli.objective import ConflictSpans, conflict_spans, group_advantages, mean_entropy
from gtpo_cli.recipe.schema import ObjectiveRecipe
from gtpo_cli.training.owed import kept_by_entropy
from gtpo_cli.training.step import token_weights


@dataclass(frozen=True, slots=True)
class TokenCoefficients:
    """The parts of Eq. 11 for a step, detached, and their product."""

    advantages_BG: Tensor  # A
    spans: ConflictSpans  # M, forward and backward
    weights_BGT: Tensor  # lambda
    mean_entropy_BG: Tensor  # <H>, nats
    filtered_BG: Tensor  # delta = 0 by Eq. 10
    keep_BG: Tensor  # delta; also 0 for what the recipe leaves out
    coefficients_BGT: Tensor  # delta (A - gamma <H>) lambda; 0 at padding


def token_coefficients(
    objective: ObjectiveRecipe,
    *,
    completion_ids_BGT: Tensor,
    completion_mask_BGT: Tensor,
    rewards_BG: Tensor,
    entropy_BGT: Tensor,
    initial_entropy: float,
    truncated_BG: Tensor | None = None,
    mask_truncated: bool = False,
) -> TokenCoefficients:
    """c_{i,t} = delta_i (A_i - gamma <H>_i) lambda_{i,t}          arXiv 2508.03772, Eq. 9 to 12

    Args:
        objective: the recipe's section; name, compat and the keys of iteration, clipping and KL are the engine's.
        completion_ids_BGT, completion_mask_BGT: token ids and which are real, contiguous from place 0. Whole groups.
        rewards_BG: weighted sums of the rewards.
        entropy_BGT: H of each token in nats, of the distribution it was sampled from; not read at padding.
        initial_entropy: <H>_ini, nats; read where `objective.filter.enabled` is auto.
        truncated_BG: completions without an end-of-sequence token; read with `mask_truncated`, which leaves them out.
    Returns:
        float32 tensors; detached.
    Raises:
        RecipeError: `objective.compat` is released_code, whose entropy and sums no engine has; or `mask_truncated`
        without `truncated_BG`.
    """
    if objective.compat != "paper":
        raise RecipeError("objective.compat: released_code is there in gtpo's own loop only; use compat: paper")
    conflict = objective.conflict
    A_BG = group_advantages(rewards_BG, scale=objective.advantage_scale)  # Eq. 12
    mask = completion_mask_BGT.bool()
    spans = conflict_spans(completion_ids_BGT, mask, A_BG, alignment=conflict.alignment, span=conflict.span)
    w_BGT, _ = token_weights(objective, spans, A_BG, mask)  # lambda, Eq. 9
    H_BG = mean_entropy(entropy_BGT, mask)
    keep_BG = kept_by_entropy(objective, H_BG, A_BG, initial_entropy=initial_entropy)  # delta, Eq. 10
    filtered_BG = ~keep_BG
    if mask_truncated:
        if truncated_BG is None:
            raise RecipeError("rollout.mask_truncated needs to know which completions were truncated")
        keep_BG = keep_BG & ~truncated_BG
    if objective.skip_uninformative_groups:
        keep_BG = keep_BG & (A_BG != 0).any(dim=1, keepdim=True)
    entropy_term = objective.entropy_coef * H_BG if objective.entropy_coef else 0.0
    c_BG = torch.where(keep_BG, A_BG - entropy_term, 0.0)
    c_BGT = (c_BG[..., None] * w_BGT).masked_fill(~mask, 0.0)
    return TokenCoefficients(A_BG, spans, w_BGT, H_BG, filtered_BG, keep_BG, c_BGT)
