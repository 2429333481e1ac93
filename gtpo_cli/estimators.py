"""Estimators with their intervals in pure numpy, without torch.

pass@k and maj@k measure a model with k tries. They are defined here for one problem and averaged over problems.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gtpo_cli.rewards import answers_equal

EqualMany = Callable[[Sequence[tuple[str, str]]], Sequence[bool]]
RIGHT = 0  # the class of right answers among votes


class Interval(NamedTuple):
    """An estimate with its 95 % interval. `low` and `high` are infinite where the values do not bound it."""

    estimate: float
    low: float
    high: float

    @property
    def is_bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


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


def best_of_k(scores: Sequence[float], k: int) -> float:
    """Estimate without bias, from n >= k completions, the expected best score of k: its mean over all k-subsets.

    best@k = sum_i s_(i) C(i - 1, k - 1) / C(n, k), with the scores in ascending order s_(1) <= ... <= s_(n): s_(i) is
    the best of the subsets that hold it and k - 1 of the i - 1 before it. For scores of 0 and 1 it is `pass_at_k`.

    Range: that of the scores. Raises ValueError for k < 1 or n < k.
    """
    _check_k(k, len(scores))
    subsets = math.comb(len(scores), k)
    return math.fsum(score * (math.comb(place, k - 1) / subsets) for place, score in enumerate(sorted(scores)))


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
) -> float:
    r"""Compute maj@k: the chance that the most frequent answer among k of n completions of one problem is right.

    `answers` are those of the n completions; None for a completion without an answer. Answers that equal the gold
    answer (`equal(gold, answer)`) vote together. So do wrong answers that equal each other: 0.5 and \frac12 are one
    answer. See `vote_classes` and `majority_of_votes`. The order of the answers does not matter. The value is exact.

    Range: 0 to 1. Raises ValueError for k < 1 or n < k, and whatever `equal` raises.
    """
    correct = [answer is not None and equal(gold, answer) for answer in answers]
    votes = vote_classes(answers, correct, lambda pairs: [equal(*pair) for pair in pairs])
    return majority_of_votes(votes, k)


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


def majority_of_votes(votes: Sequence[int | None], k: int) -> float:
    """Return how often class RIGHT wins, averaged over all k-subsets of the n votes: exact.

    The class with most votes wins; if RIGHT is one of t tied classes, it scores 1/t. None votes for no class, so a
    subset without any answer scores 0. With r votes for RIGHT and at most r for each other class, the subsets are
    counted by `_ways`. The order of the votes does not matter.
    """
    n = len(votes)
    _check_k(k, n)
    sizes = Counter(vote for vote in votes if vote is not None)
    right = sizes.pop(RIGHT, 0)
    score = Fraction(0)
    for r in range(1, min(right, k) + 1):
        by_ties = _ways(list(sizes.values()), n - right, k - r, r)
        score += math.comb(right, r) * sum(Fraction(ways, 1 + ties) for ties, ways in enumerate(by_ties))
    return float(score / math.comb(n, k))


def _ways(sizes: Sequence[int], others: int, drawn: int, top: int) -> list[int]:
    """Count the subsets of `drawn` of the `others` that have at most `top` of each class, by classes with just `top`.

    `sizes`: members of each class; the rest of the others are in no class. Classes are multiplied into a generating
    function one by one: ways_TD[t, d] counts subsets of size d in which t classes have `top` members.
    """
    large = [size for size in sizes if size >= top]
    free = others - sum(large)  # no more of these than `top` from one class in any case
    ways_TD = np.zeros((min(len(large), drawn // top) + 1, drawn + 1), dtype=object)  # Python's integers: exact
    ways_TD[0] = [math.comb(free, d) for d in range(drawn + 1)]
    for size in large:
        before = ways_TD
        ways_TD = before.copy()
        for members in range(1, min(top - 1, drawn) + 1):
            ways_TD[:, members:] += math.comb(size, members) * before[:, : drawn + 1 - members]
        if top <= drawn:
            ways_TD[1:, top:] += math.comb(size, top) * before[:-1, : drawn + 1 - top]
    return list(ways_TD[:, drawn])


def _check_k(k: int, n: int) -> None:
    if k < 1:
        raise ValueError(f"k must be 1 or more, got {k}")
    if n < k:
        raise ValueError(f"k = {k} needs at least {k} completions of each problem; there are {n}")


# -- means over problems ----------------------------------------------------------------------------------------------


def mean_interval(values: ArrayLike, *, share: bool = False) -> Interval:
    """Compute the mean over problems (or prompts, or seeds) with its 95 % interval. `values`: one for each, (P,).

    Student's t, mean +- t(P - 1) s / sqrt(P), covers too little where most problems are right or most are wrong, and
    has no width where all are. So for a `share`, whose values lie in 0..1, it is computed as if two more problems were
    wholly right and two wholly wrong (Agresti & Coull 1998), and cut to 0..1. tests/unit/test_intervals.py measures it.
    Other values leave the interval open if there is one, or if all are equal. Raises ValueError without values.
    """
    if not share:
        return _student(values, added=0.0)
    return _student(values, added=4.0, centre=0.5, reach=0.5, bound=0.5)


def difference_interval(before: ArrayLike, after: ArrayLike, *, share: bool = False) -> Interval:
    """Compute the mean over problems of after - before with its 95 % interval; each (P,), in the same order.

    Differences are paired, so the difficulty of a problem cancels. Student's t again. For a `share` it is computed as
    if there were one more problem, half of which gained and half lost as much as any seen, or 1 if none differs. For
    right or wrong these are halves of Agresti & Min (2005). The problems' own differences are seldom near -1 and 1, so
    whole problems there, as in `mean_interval`, would hide what many completions show. Raises ValueError without
    values, or for values of different shape.
    """
    one, other = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if one.shape != other.shape:
        raise ValueError(f"paired values must have the same shape, got {one.shape} and {other.shape}")
    differences = other - one
    if not share:
        return _student(differences, added=0.0)
    return _student(differences, added=1.0, reach=float(np.abs(differences).max(initial=0.0)) or 1.0, bound=1.0)


def _student(
    values: ArrayLike, *, added: float, centre: float = 0.0, reach: float = 0.0, bound: float = math.inf
) -> Interval:
    """Return Student's interval of n values and `added` more, half at centre - reach and half at centre + reach.

    With all N = n + added of them, their mean m and their squared deviations from it Q, it is
    m +- t(n - 1) sqrt(Q / (N (N - 1))), cut to centre +- bound. The estimate is the mean of the n alone.
    """
    seen = np.asarray(values, dtype=np.float64)
    if seen.ndim != 1 or not len(seen):
        raise ValueError(f"an interval needs a list of values, got the shape {seen.shape}")
    estimate = float(seen.mean())
    if not added and not 0.0 < np.ptp(seen) < math.inf:  # a sweep may average runs that diverged
        return Interval(estimate, -math.inf, math.inf)
    total = len(seen) + added
    middle = float(seen.sum() + added * centre) / total
    squares = float(np.square(seen - middle).sum()) + added * (reach**2 + (centre - middle) ** 2)
    half = student_t(len(seen) - 1) * math.sqrt(squares / (total * (total - 1)))
    return Interval(estimate, max(centre - bound, middle - half), min(centre + bound, middle + half))


@cache
def student_t(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t; infinity for 0 degrees of freedom.

    With theta = arctan(t / sqrt(nu)) its density is proportional to cos(theta)^(nu - 1) (Abramowitz & Stegun 26.7),
    which is summed up to pi / 2. Error below 1e-4 up to a million degrees.
    """
    if not degrees:
        return math.inf
    theta = np.linspace(0.0, math.pi / 2, 2**17)
    density = np.cos(theta) ** (degrees - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(degrees) * math.tan(float(np.interp(0.95, below / below[-1], theta)))


def macro_average(parts: Sequence[Interval]) -> Interval:
    """Compute the mean of the estimates of m parts, each of which counts the same, with its 95 % interval.

    The parts are independent: low = mean - sqrt(sum_p (estimate_p - low_p)^2) / m, and high likewise (Zou & Donner
    2008, Eq. 2, for a mean). Infinite where a part's interval is open. Raises ValueError without parts.
    """
    if not parts:
        raise ValueError("a macro-average needs at least one part")
    mean = math.fsum(part.estimate for part in parts) / len(parts)
    below, above = (math.hypot(*(part.estimate - part[side] for part in parts)) / len(parts) for side in (1, 2))
    return Interval(mean, mean - below, mean + above)


# -- two models on the same problems ----------------------------------------------------------------------------------


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
    without differences, or for one that is not finite.
    """
    seen = np.asarray(differences, dtype=np.float64)
    if seen.ndim != 1 or not len(seen):
        raise ValueError("sign_flip_test needs at least one difference")
    if not np.isfinite(seen).all():
        raise ValueError("sign_flip_test needs finite differences")
    count = len(seen)
    if count <= exact_up_to:
        patterns = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        drawn = np.random.default_rng(0).integers(0, 2, size=(100_000, count))
        patterns = np.concatenate([np.ones((1, count)), 1 - 2 * drawn])
    sums = np.abs(patterns @ seen)
    return float(np.mean(sums >= abs(seen.sum()) - 1e-12 * np.abs(seen).sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm 1979), in their order: at most 5 % of such families hold a false finding.

    The r-th smallest of m is multiplied by m - r + 1, is at least the one before it, and at most 1.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted
