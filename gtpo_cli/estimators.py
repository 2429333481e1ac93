"""Estimators with their intervals in pure numpy, without torch.

pass@k and maj@k measure a model with k tries. They are defined here for one problem and averaged over problems.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gtpo_cli.rewards import answers_equal

EqualMany = Callable[[Sequence[tuple[str, str]]], Sequence[bool]]
RIGHT = 0  # the class of right answers among votes
_RESAMPLES_AT_ONCE = 500  # bounds the memory of the bootstrap


class Interval(NamedTuple):
    """A percentile bootstrap interval [low, high] around the estimate."""

    estimate: float
    low: float
    high: float


# -- k tries at one problem -------------------------------------------------------------------------------------------


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Estimate without bias, from n >= k completions, the chance that at least one of k is right.

    pass@k = 1 - C(n - c, k) / C(n, k), with n = `num_samples`, c = `num_correct` (Chen et al. 2021, Eq. 1): the share
    of all k-subsets of the n completions that hold a right one.

    Range: 0 to 1. Raises ValueError for k < 1, n < k, or c outside 0..n.
    """
    _check_k(k, num_samples)
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"pass@k: {num_correct} right completions of {num_samples}")
    subsets = math.comb(num_samples, k)
    return (subsets - math.comb(num_samples - num_correct, k)) / subsets


def first_k_pass(correct_in_order: Sequence[bool], k: int) -> bool:
    """Return whether one of the first k completions is right: one draw of the average in `pass_at_k`.

    The GTPO paper's table must have used this, since its values are multiples of 1/30 (AIME) and 1/40 (AMC).
    Raises ValueError for k < 1 or fewer than k completions.
    """
    _check_k(k, len(correct_in_order))
    return any(correct_in_order[:k])


def majority_at_k(
    answers: Sequence[str | None],
    gold: str,
    k: int,
    *,
    equal: Callable[[str, str], bool] = answers_equal,
    num_subsets: int = 1000,
    seed: int = 0,
) -> float:
    r"""Estimate maj@k: the chance that the most frequent answer among k of n completions of one problem is right.

    `answers` are those of the n completions; None for a completion without an answer. Answers that equal the gold
    answer (`equal(gold, answer)`) vote together. So do wrong answers that equal each other: 0.5 and \frac12 are one
    answer. See `vote_classes` and `majority_of_votes`. The order of the answers does not matter.

    Range: 0 to 1. Raises ValueError for k < 1, n < k or num_subsets < 1, and whatever `equal` raises.
    """
    correct = [answer is not None and equal(gold, answer) for answer in answers]
    votes = vote_classes(answers, correct, lambda pairs: [equal(*pair) for pair in pairs])
    return majority_of_votes(votes, k, num_subsets=num_subsets, seed=seed)


def vote_classes(answers: Sequence[str | None], correct: Sequence[bool], equal_many: EqualMany) -> list[int | None]:
    """Return the class of equal answers that each completion votes for; None for a completion without an answer.

    Class RIGHT holds exactly the right answers. Two wrong answers are in one class if a chain of equal answers connects
    them: 50 and 0.5 are not equal, but both equal 50%. So the classes do not depend on the order of the answers. Two
    answers count as equal if they are with either of them as the gold answer, since equality trusts the gold answer
    and here neither is one. `equal_many` compares several pairs `(left, right)` at once.
    """
    classes = {answer: RIGHT for answer, right in zip(answers, correct, strict=True) if answer is not None and right}
    waiting = [answer for answer in dict.fromkeys(answers) if answer and answer.strip() and answer not in classes]
    number = RIGHT
    while waiting:
        number += 1
        reached, waiting = {waiting[0]}, waiting[1:]
        while reached:  # compare the newest members with all answers that have no class yet
            classes |= dict.fromkeys(reached, number)
            reached = _equal_to_any(reached, waiting, equal_many)
            waiting = [answer for answer in waiting if answer not in reached]
    return [None if answer is None else classes.get(answer) for answer in answers]


def _equal_to_any(answers: set[str], others: Sequence[str], equal_many: EqualMany) -> set[str]:
    """Return those of the others that equal one of the answers, with either as the gold answer."""
    pairs = [(answer, other) for answer in answers for other in others]
    equal = {other for (_, other), same in zip(pairs, equal_many(pairs), strict=True) if same}
    turned = [(other, answer) for answer, other in pairs if other not in equal]
    return equal | {other for (other, _), same in zip(turned, equal_many(turned), strict=True) if same}


def majority_of_votes(votes: Sequence[int | None], k: int, *, num_subsets: int = 1000, seed: int = 0) -> float:
    """Return how often class RIGHT wins, averaged over k-subsets of the votes.

    The class with most votes wins; if RIGHT is one of t tied classes, it scores 1/t. None votes for no class, so a
    subset without any answer scores 0. If there are at most `num_subsets` subsets, all are used and the result is
    exact. Otherwise `num_subsets` random ones are used, each drawn without replacement. The order of the votes does not
    matter.
    """
    n = len(votes)
    _check_k(k, n)
    if num_subsets < 1:
        raise ValueError(f"maj@k: num_subsets must be 1 or more, got {num_subsets}")
    sizes = Counter(vote for vote in votes if vote is not None)
    sizes_C = [sizes.pop(RIGHT, 0), *sorted(sizes.values(), reverse=True)]
    votes_NC = np.zeros((n, len(sizes_C)), dtype=np.float32)  # first column: votes for RIGHT; last: no vote
    votes_NC[: sum(sizes_C)] = np.repeat(np.eye(len(sizes_C), dtype=np.float32), sizes_C, axis=0)
    counts_SC = _subsets(n, k, num_subsets, seed) @ votes_NC
    top_S = counts_SC.max(axis=1)
    winners_SC = (counts_SC == top_S[:, None]) & (top_S[:, None] > 0)
    return float(np.mean(winners_SC[:, 0] / np.maximum(1, winners_SC.sum(axis=1))))


def _subsets(n: int, k: int, num_subsets: int, seed: int) -> NDArray[np.float32]:
    """Return S subsets as (S, n) zeros and ones: the k members of each."""
    if math.comb(n, k) <= num_subsets:
        chosen = np.array(list(combinations(range(n), k)))
        members = np.zeros((len(chosen), n), dtype=np.float32)
        np.put_along_axis(members, chosen, 1.0, axis=1)
        return members
    first_k = (np.arange(n) < k).astype(np.float32)
    return np.random.default_rng(seed).permuted(np.tile(first_k, (num_subsets, 1)), axis=1)


def _check_k(k: int, n: int) -> None:
    if k < 1:
        raise ValueError(f"k must be 1 or more, got {k}")
    if n < k:
        raise ValueError(f"k = {k} needs at least {k} completions of each problem; there are {n}")


# -- means over problems ----------------------------------------------------------------------------------------------


def bootstrap_mean(
    values: Sequence[Sequence[float]], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Compute the mean over all values with a percentile bootstrap interval over *clusters* (the inner lists).

    Completions of one prompt are not independent, so prompts are drawn with replacement together with all their values
    (Efron & Tibshirani 1993, chapter 13; cluster bootstrap). With one cluster the interval is a point. Raises
    ValueError for no cluster, an empty one, or a confidence outside (0, 1).
    """
    if not values or any(len(cluster) == 0 for cluster in values):
        raise ValueError("bootstrap_mean needs at least one cluster, each with at least one value")
    sums_and_counts = np.array([(float(np.sum(cluster)), len(cluster)) for cluster in values])
    drawn_R2 = _resampled_sums(sums_and_counts, resamples, seed)
    sums, counts = sums_and_counts.sum(axis=0)
    return _percentiles(sums / counts, drawn_R2[:, 0] / drawn_R2[:, 1], confidence)


def bootstrap_means(
    values_PM: ArrayLike, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> list[Interval]:
    """Compute the mean over problems of each of M metrics, with percentile bootstrap intervals over the P problems.

    `values_PM` has one row for each problem. All metrics use the same resamples, so they can be compared. If every
    problem has the same value, the percentile interval is that point. Raises ValueError for an empty table or a
    confidence outside (0, 1).
    """
    table = np.asarray(values_PM, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"bootstrap_means needs a table of problems by metrics, got the shape {table.shape}")
    means_RM = _resampled_sums(table, resamples, seed) / len(table)
    return [
        _percentiles(float(estimate), means, confidence)
        for estimate, means in zip(table.mean(axis=0), means_RM.T, strict=True)
    ]


# -- two models on the same problems ----------------------------------------------------------------------------------


def paired_bootstrap_means(
    before_PM: ArrayLike, after_PM: ArrayLike, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> list[Interval]:
    """Compute the mean over problems of after - before for each of M metrics, with percentile bootstrap intervals.

    Each resampled problem brings both its values (Efron & Tibshirani 1993, chapter 8), so the difficulty of a problem
    cancels. Raises ValueError for tables of different shape, and as `bootstrap_means`.
    """
    before, after = np.asarray(before_PM, dtype=np.float64), np.asarray(after_PM, dtype=np.float64)
    if before.shape != after.shape:
        raise ValueError(f"paired tables must have the same shape, got {before.shape} and {after.shape}")
    return bootstrap_means(after - before, confidence=confidence, resamples=resamples, seed=seed)


class McNemar(NamedTuple):
    """The counts of problems that only one of two models solves, and the p-value of both being equally likely."""

    only_before: int
    only_after: int
    p_value: float


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> McNemar:
    """Compute McNemar's test (1947) for two models on the same problems, exact and two-sided.

    Only the b + c problems that exactly one model solves matter. Under the hypothesis either model solves each of them
    with probability 1/2: p = min(1, 2 P(X <= min(b, c))), X ~ Binomial(b + c, 1/2). Without such problems p = 1. Raises
    ValueError for lists of different length.
    """
    only_before = sum(b and not a for b, a in zip(before, after, strict=True))
    only_after = sum(a and not b for b, a in zip(before, after, strict=True))
    discordant = only_before + only_after
    tail = sum(math.comb(discordant, x) for x in range(min(only_before, only_after) + 1))
    return McNemar(only_before, only_after, min(1.0, 2 * tail / 2**discordant))


def sign_flip_test(differences: Sequence[float], *, exact_up_to: int = 16) -> float:
    """Compute the two-sided p-value of the hypothesis that paired differences are as likely positive as negative.

    This is Fisher's randomisation test for pairs: under the hypothesis each difference could have had the other sign.
    p is the share of sign patterns whose mean is at least as far from 0 as the observed one. Up to `exact_up_to`
    differences all 2^n patterns are used, else 100,000 random ones and the observed one. With n seeds p is at least
    2 / 2^n, which is 0.0625 for five seeds. For paired yes/no outcomes this is McNemar's exact test. Raises ValueError
    without differences.
    """
    seen = np.asarray(differences, dtype=np.float64)
    if seen.ndim != 1 or not len(seen):
        raise ValueError("sign_flip_test needs at least one difference")
    count = len(seen)
    if count <= exact_up_to:
        patterns = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        drawn = np.random.default_rng(0).integers(0, 2, size=(100_000, count))
        patterns = np.concatenate([np.ones((1, count)), 1 - 2 * drawn])
    sums = np.abs(patterns @ seen)
    return float(np.mean(sums >= abs(seen.sum()) - 1e-12 * np.abs(seen).sum()))


def _resampled_sums(table_PM: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Resample the rows R times with replacement and return the column sums, (R, M)."""
    rng = np.random.default_rng(seed)
    problems = len(table_PM)
    sums = np.empty((resamples, table_PM.shape[1]))
    for start in range(0, resamples, _RESAMPLES_AT_ONCE):
        size = min(_RESAMPLES_AT_ONCE, resamples - start)
        drawn = rng.integers(0, problems, size=(size, problems)) + problems * np.arange(size)[:, None]
        times_drawn = np.bincount(drawn.ravel(), minlength=size * problems).reshape(size, problems)
        sums[start : start + size] = times_drawn @ table_PM
    return sums


def _percentiles(estimate: float, resampled: NDArray[np.float64], confidence: float) -> Interval:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    return Interval(float(estimate), float(low), float(high))
