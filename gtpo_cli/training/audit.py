"""The gradient audit of a finished step (`objective.audit`), from the objective's own arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor

from gtpo_cli.objective import gradient_audit, importance_weights, policy_loss
from gtpo_cli.recipe import Recipe
from gtpo_cli.training.step import StepResult, token_weights


def audit_metrics(recipe: Recipe, result: StepResult, eos_token_ids: frozenset[int]) -> dict[str, float]:
    """`audit/...` metrics of the step's first iteration. The KL term is no part of it."""
    mask = result.batch.completion_mask_BGT
    eos = torch.tensor(sorted(eos_token_ids), device=mask.device)
    eos_BGT = torch.isin(result.batch.completion_ids_BGT, eos) & mask
    audit = gradient_audit(pull_on_tokens(recipe, result), result.spans, mask, eos_BGT)
    return {f"audit/{name}": value for name, value in audit.items()}


def pull_on_tokens(recipe: Recipe, result: StepResult) -> Tensor:
    """dJ / d ln pi(o_t), (B, G, T), of the policy-gradient term at the probabilities the step began with."""
    objective, mask = recipe.objective, result.batch.completion_mask_BGT
    weights_BGT, divisor_BG = token_weights(objective, result.spans, result.advantages_BG, mask)
    if recipe.rollout.importance_correction == "truncated":
        weights_BGT = weights_BGT * importance_weights(result.logprobs_BGT, result.batch.sampled_logprobs_BGT)
    logp = result.logprobs_BGT.clone().requires_grad_()
    loss, _ = policy_loss(
        logp,
        advantages_BG=result.advantages_BG,
        mean_entropy_BG=result.mean_entropy_BG,
        keep_BG=result.keep_BG,
        weights_BGT=weights_BGT,
        completion_mask_BGT=mask,
        entropy_coef=objective.entropy_coef,
        compat=objective.compat,
        divisor_BG=divisor_BG,
    )
    return -torch.autograd.grad(loss, logp)[0]
