"""The gradient audit of a finished step (`objective.audit`)."""

from __future__ import annotations

import torch

from gtpo_cli.objective import gradient_audit
from gtpo_cli.training.step import StepResult


def audit_metrics(result: StepResult, eos_token_ids: frozenset[int]) -> dict[str, float]:
    """`audit/...` metrics of the step's first iteration. The KL term is no part of it."""
    mask = result.batch.completion_mask_BGT
    eos = torch.tensor(sorted(eos_token_ids), device=mask.device)
    eos_BGT = torch.isin(result.batch.completion_ids_BGT, eos) & mask
    pull_BGT = result.coefficients_BGT * result.shares_BG[..., None]  # dJ / d ln pi(o_t): every ratio is still 1
    audit = gradient_audit(pull_BGT, result.spans, mask, eos_BGT)
    return {f"audit/{name}": value for name, value in audit.items()}
