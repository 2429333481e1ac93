"""The specification of the objective once more, as slow plain Python: one loop for each sentence, no tensors.

A completion is a list of token ids, a group a list of completions; nothing here knows of padding. Written from the
text of the specification alone, so that an error in the library is not repeated here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Tokens = Sequence[int]
Row = Sequence[float]


def advantages(rewards: Row, *, scale: str = "std", eps: float = 1e-4) -> list[float]:
    """Eq. 12: (R_i - mean) / (sample standard deviation + eps)."""
    mean = statistics.fmean(rewards)
    deviation = statistics.stdev(rewards) + eps if scale == "std" and len(rewards) > 1 else 1.0
    return [(reward - mean) / deviation for reward in rewards]


def forward_masks(
    group: Sequence[Tokens], signs: Row, *, alignment: str = "position", span: str = "ends"
) -> list[list[bool]]:
    """Section 5.1: the first contiguous run, from position 0, of tokens found in G+ and in G- at the same position."""
    right = [tokens for tokens, sign in zip(group, signs, strict=True) if sign > 0]
    wrong = [tokens for tokens, sign in zip(group, signs, strict=True) if sign < 0]

    def found_in(others: list[Tokens], tokens: Tokens, p: int) -> bool:
        start = 0 if alignment == "prefix" else p
        return any(len(other) > p and list(other[start : p + 1]) == list(tokens[start : p + 1]) for other in others)

    masks = []
    for tokens in group:
        mask, running = [], True
        for p in range(len(tokens)):
            found = found_in(right, tokens, p) and found_in(wrong, tokens, p)
            running = running and found
            mask.append(found if span == "all" else running)
        masks.append(mask)
    return masks


def backward_masks(
    group: Sequence[Tokens], signs: Row, *, alignment: str = "position", span: str = "ends"
) -> list[list[bool]]:
    """The same from the end: every completion is read backwards from its own last token."""
    reversed_group = [list(tokens)[::-1] for tokens in group]
    return [mask[::-1] for mask in forward_masks(reversed_group, signs, alignment=alignment, span=span)]


def weight(in_conflict: bool, sign: float, *, positive: float = 2.0, negative: float = 0.0) -> float:
    """lambda, Eq. 9."""
    if not in_conflict or sign == 0:
        return 1.0
    return positive if sign > 0 else negative


def mean(values: Row) -> float:
    """Mean over tokens; 0 for an empty completion."""
    return math.fsum(values) / len(values) if values else 0.0


def kept(
    mean_entropy: float,
    advantage: float,
    *,
    initial: float,
    threshold: float,
    enabled: str = "auto",
    only_negative: bool = False,
) -> bool:
    """delta_i, Eq. 10. A completion goes only if strict inequality holds at both places."""
    if enabled == "never":
        return True
    if enabled == "auto" and not initial < math.log(2.0):
        return True
    if only_negative and not advantage < 0:
        return True
    return not mean_entropy > threshold


def softmax(logits: Row, temperature: float = 1.0) -> list[float]:
    scaled = [logit / temperature for logit in logits]
    top = max(scaled)
    exponentials = [math.exp(logit - top) for logit in scaled]
    total = math.fsum(exponentials)
    return [value / total for value in exponentials]


def entropy(p: Row) -> float:
    """-sum p ln p in nats."""
    return -math.fsum(value * math.log(value) for value in p if value > 0)


def objective_of_completion(
    logps: Row,
    olds: Row,
    refs: Row | None,
    weights: Row,
    *,
    coefficient: float,
    kl_coef: float,
    clip_epsilon: float,
) -> float:
    """1/|o| sum_t [ lambda min(r c, clip(r) c) - beta kl_t ]; 0 for an empty completion."""
    if not logps:
        return 0.0
    terms = []
    for t, logp in enumerate(logps):
        ratio = math.exp(logp - olds[t])
        clipped = min(max(ratio, 1 - clip_epsilon), 1 + clip_epsilon)
        term = weights[t] * min(ratio * coefficient, clipped * coefficient)
        if refs is not None:
            difference = refs[t] - logp
            term -= kl_coef * (math.exp(difference) - difference - 1)
        terms.append(term)
    return math.fsum(terms) / len(terms)


def step_loss(groups: Sequence[Sequence[float]]) -> float:
    """-J from the objective of each completion of each group: mean over groups of the mean of a group."""
    per_group = [math.fsum(group) / len(group) for group in groups]
    return -math.fsum(per_group) / len(per_group)
