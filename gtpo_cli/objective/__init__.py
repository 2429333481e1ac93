"""The mathematics of GTPO and its baselines in pure torch: tensors in, tensors out. See docs/objective.md."""

from gtpo_cli.entropy_filter import LN_2, filter_is_on
from gtpo_cli.objective.advantages import Rewards, group_advantages
from gtpo_cli.objective.batch import Rows, SampledRows, Unit
from gtpo_cli.objective.conflict import ConflictSpans, conflict_mask, conflict_spans, conflict_weights
from gtpo_cli.objective.entropy import keep_mask, mean_entropy
from gtpo_cli.objective.equation import GroupTerms, Method, RowTerms, coefficients, group_terms, row_terms
from gtpo_cli.objective.loss import (
    LossResult,
    Ratio,
    covariance_ranks,
    importance_weights,
    policy_loss,
    token_shares,
)
from gtpo_cli.objective.token_rules import Tokens, needs

__all__ = [
    "LN_2",
    "ConflictSpans",
    "GroupTerms",
    "LossResult",
    "Method",
    "Ratio",
    "Rewards",
    "RowTerms",
    "Rows",
    "SampledRows",
    "Tokens",
    "Unit",
    "coefficients",
    "conflict_mask",
    "conflict_spans",
    "conflict_weights",
    "covariance_ranks",
    "filter_is_on",
    "group_advantages",
    "group_terms",
    "importance_weights",
    "keep_mask",
    "mean_entropy",
    "needs",
    "policy_loss",
    "row_terms",
    "token_shares",
]
