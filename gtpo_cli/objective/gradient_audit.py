"""Where the policy gradient falls: on what right and wrong completions share, on the end token, or in between.

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded). A diagnostic of the paper's Section
4.1 (shared tokens are pushed down when the wrong completions of a group weigh more); it changes nothing.
"""

from __future__ import annotations

from torch import Tensor

from gtpo_cli.objective.conflict import ConflictSpans

PLACES = ("prefix", "suffix", "eos", "middle")
_ROUNDING = 1e-5  # of float32 advantages and their sums, relative


def token_places(spans: ConflictSpans, completion_mask_BGT: Tensor, eos_BGT: Tensor) -> dict[str, Tensor]:
    """A partition of the real tokens, bool (B, G, T) for each of PLACES.

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
    """Shares of the policy gradient by place and sign, and how often a group pushes its shared tokens down.

    Args:
        coefficient_BGT: c = dJ / d ln pi(o_t), (B, G, T): what the objective pulls each token's log-probability with.
        spans: the conflict spans, whether or not the objective uses them.
        eos_BGT: bool, True at end-of-sequence tokens.
    Returns:
        "<place>_positive_share" and "<place>_negative_share" for each of PLACES: sum of |c| there with that sign over
        the sum of |c| of all tokens (the eight add up to 1; all 0 where no token is pulled);
        "prefix_negative_groups" and "eos_negative_groups": of the groups whose pull on shared tokens of that place does
        not cancel, the share in which it sums to less than 0 (left out where there is no such group). Shared: in a
        conflict span. It cancels where completions of one length share a token, since advantages sum to 0; what is left
        then is rounding, below 1e-5 of the absolute sum, and has no direction.
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
