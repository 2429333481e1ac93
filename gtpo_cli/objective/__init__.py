"""The mathematics of GTPO and its baselines in pure torch: tensors in, tensors out. See docs/objective.md."""

from gtpo_cli.entropy_filter import LN_2, filter_is_on
from gtpo_cli.objective.advantages import group_advantages
from gtpo_cli.objective.batch import Rows, TokenBatch, Unit
from gtpo_cli.objective.coefficients import coefficients
from gtpo_cli.objective.conflict import ConflictSpans, conflict_mask, conflict_spans, conflict_weights
from gtpo_cli.objective.entropy import keep_mask, mean_entropy
from gtpo_cli.objective.equation import GroupTerms, RowTerms, group_terms, row_terms
from gtpo_cli.objective.gradient_audit import gradient_audit, token_places
from gtpo_cli.objective.importance import importance_weights
from gtpo_cli.objective.loss import LossResult, policy_loss, token_shares
from gtpo_cli.objective.released_code import clamped_entropy, released_divisor, released_shares, released_weights

__all__ = [
    "LN_2",
    "ConflictSpans",
    "GroupTerms",
    "LossResult",
    "RowTerms",
    "Rows",
    "TokenBatch",
    "Unit",
    "clamped_entropy",
    "coefficients",
    "conflict_mask",
    "conflict_spans",
    "conflict_weights",
    "filter_is_on",
    "gradient_audit",
    "group_advantages",
    "group_terms",
    "importance_weights",
    "keep_mask",
    "mean_entropy",
    "policy_loss",
    "released_divisor",
    "released_shares",
    "released_weights",
    "row_terms",
    "token_places",
    "token_shares",
]
