"""Where the policy gradient acts: on tokens that right and wrong completions share, on the end token, or in between.

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded). This diagnoses the effect of the
paper's Section 4.1 (shared tokens are pushed down if a group's wrong completions weigh more); training is unaffected.
"""

from __future__ import annotations

from torch import Tensor

from gtpo_cli.objective.conflict import ConflictSpans

PLACES = ("prefix", "suffix", "eos", "middle")
_ROUNDING = 1e-5  # of float32 advantages and their sums, relative


def token_places(spans: ConflictSpans, completion_mask_BGT: Tensor, eos_BGT: Tensor) -> dict[str, Tensor]:
    """Partition the real tokens: a mask, bool (B, G, T), for each of PLACES.

    eos: end-of-sequence tokens; prefix: other tokens of the forward span; suffix: other tokens of the backward span;
    middle: the rest.
    """
    mask = completion_mask_BGT.bool()
    eos = eos_BGT & mask
    prefix = spans.forward_BGT & mask & ~eos
    suffix = spans.backward_BGT & mask & ~eos & ~prefix
    return {"prefix": prefix, "suffix": suffix, "eos": eos, "middle": mask & ~(eos | prefix | suffix)}


def gradient_audit(
    coefficient_BGT: Tensor, spans: ConflictSpans, completion_mask_BGT: Tensor, eos_BGT: Tensor
) -> dict[str, float]:
    """Measure the policy gradient by place and sign, and how often a group pushes its shared tokens down.

    Args:
        coefficient_BGT: c = dJ / d ln pi(o_t), (B, G, T): the objective's pull on each token's log-probability.
        spans: the conflict spans, whether or not the objective uses them.
        eos_BGT: bool, True at end-of-sequence tokens.
    Returns:
        "<place>_positive_share" and "<place>_negative_share" for each of PLACES: sum of |c| there with that sign over
        the sum of |c| of all tokens (the eight add up to 1, or are all 0 if no token is pulled);
        "prefix_negative_groups" and "eos_negative_groups": the share of groups whose pull on the shared tokens of that
        place sums to less than 0. Shared means in a conflict span. Groups whose pull cancels are not counted, and if no
        group is left the metric is absent. The pull cancels if completions of one length share a token, since
        advantages sum to 0; the remainder, below 1e-5 of the absolute sum, is rounding.
    """
    places = token_places(spans, completion_mask_BGT, eos_BGT)
    c_BGT = coefficient_BGT.double().masked_fill(~completion_mask_BGT.bool(), 0.0)
    total = float(c_BGT.abs().sum())
    audit = {}
    for place, there in places.items():
        for sign, part in (("positive", c_BGT.clamp(min=0)), ("negative", -c_BGT.clamp(max=0))):
            audit[f"{place}_{sign}_share"] = float((part * there).sum()) / total if total else 0.0
    shared_BGT = spans.forward_BGT | spans.backward_BGT
    for place in ("prefix", "eos"):
        pull_BC = (c_BGT * (places[place] & shared_BGT)).flatten(1)
        sums_B, sizes_B = pull_BC.sum(dim=1), pull_BC.abs().sum(dim=1)
        directed_B = sums_B.abs() > _ROUNDING * sizes_B
        if bool(directed_B.any()):
            audit[f"{place}_negative_groups"] = float((sums_B[directed_B] < 0).double().mean())
    return audit
