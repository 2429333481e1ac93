"""pass@k, first-k pass and maj@k against hand-worked cases, exhaustive enumeration and independent implementations."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_cli.estimators import first_k_pass, majority_at_k, majority_of_votes, pass_at_k, vote_classes
from gtpo_cli.rewards import answers_equal

# -- pass@k -----------------------------------------------------------------------------------------------------------


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 1, 2) == 0.5  # 3 of the 6 pairs hold the right one
    assert pass_at_k(5, 2, 3) == 0.9  # only one of the ten triples misses both
    assert pass_at_k(10, 3, 1) == 0.3
    assert pass_at_k(64, 1, 64) == 1.0


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_all_subsets_that_hold_a_right_completion(n: int) -> None:
    for correct in range(n + 1):
        row = [True] * correct + [False] * (n - correct)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(row, k))
            assert pass_at_k(n, correct, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))


def test_pass_at_k_equals_the_product_form_on_random_tables() -> None:
    """Chen et al. 2021 compute it as 1 - prod_{i = n-c+1}^{n} (1 - k / i): written here on its own."""
    rng = np.random.default_rng(0)
    for _ in range(2000):
        n = int(rng.integers(1, 300))
        c, k = int(rng.integers(0, n + 1)), int(rng.integers(1, n + 1))
        product = 1.0 if n - c < k else 1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))
        assert pass_at_k(n, c, k) == pytest.approx(product, abs=1e-12)


@given(st.integers(1, 60), st.data())
def test_pass_at_k_grows_with_k_and_with_right_completions(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    values = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert values == sorted(values)
    assert values[0] == c / n
    assert values[-1] == float(c > 0)
    if c < n:
        assert all(pass_at_k(n, c + 1, k) >= value for k, value in enumerate(values, start=1))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((3, 1, 4), "k = 4 needs at least 4 completions"), ((3, 1, 0), "k must be 1"), ((3, 4, 1), "4 right .* of 3"),
     ((3, -1, 1), "-1 right"), ((0, 0, 1), "there are 0")],
)  # fmt: skip
def test_pass_at_k_refuses_what_has_no_answer(arguments: tuple[int, int, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pass_at_k(*arguments)


# -- first k ----------------------------------------------------------------------------------------------------------


def test_first_k_pass_looks_at_the_first_k_only() -> None:
    row = [False, False, True, False]
    assert [first_k_pass(row, k) for k in (1, 2, 3, 4)] == [False, False, True, True]
    with pytest.raises(ValueError, match="k = 5 needs at least 5"):
        first_k_pass(row, 5)
    with pytest.raises(ValueError, match="k must be 1"):
        first_k_pass(row, 0)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_mean_of_first_k_pass_over_all_orders(row: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(row)))
    orders = [first_k_pass(order, k) for order in itertools.permutations(row)]
    assert pass_at_k(len(row), sum(row), k) == pytest.approx(sum(orders) / len(orders), abs=1e-12)


# -- maj@k ------------------------------------------------------------------------------------------------------------


def naive_majority(answers: list[str | None], gold: str, k: int) -> float:
    """Every k-subset, every vote counted by hand; answers are equal when their text is."""
    scores = []
    for subset in itertools.combinations(answers, k):
        given_answers = [answer for answer in subset if answer is not None]
        counts = {answer: given_answers.count(answer) for answer in given_answers}
        winners = [answer for answer, count in counts.items() if count == max(counts.values())]
        scores.append(Fraction(winners.count(gold), len(winners)) if winners else Fraction(0))
    return float(sum(scores) / len(scores))


def same_text(left: str, right: str) -> bool:
    return left == right


@settings(max_examples=300)
@given(st.lists(st.sampled_from(["5", "6", "7", "8", None]), min_size=1, max_size=9), st.data())
def test_majority_equals_brute_force(answers: list[str | None], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    expected = naive_majority(answers, "5", k)
    assert majority_at_k(answers, "5", k, equal=same_text) == pytest.approx(expected, abs=1e-12)


def test_equal_answers_vote_together_by_the_reward_s_equality() -> None:
    # two votes for one half in two spellings beat... only because 0.5 and \frac12 are one answer
    assert majority_at_k(["0.5", r"\frac12", "7", "8"], r"\dfrac{1}{2}", 4) == 1.0
    assert majority_at_k(["0.5", r"\frac12", "7", "8"], r"\dfrac{1}{2}", 4, equal=same_text) == 0.0
    # wrong answers join forces too: 7 and 7.0 are two votes against one
    assert majority_at_k(["7", "7.0", "5"], "5", 3) == 0.0


def test_ties_score_the_share_of_tied_classes_that_are_right() -> None:
    assert majority_at_k(["5", "6"], "5", 2, equal=same_text) == 0.5
    assert majority_at_k(["5", "6", "7"], "5", 3, equal=same_text) == pytest.approx(1 / 3)
    assert majority_at_k(["6", "7"], "5", 2, equal=same_text) == 0.0


def test_no_answer_votes_for_nobody_and_cannot_win() -> None:
    assert majority_at_k([None, None, None, "5"], "5", 4, equal=same_text) == 1.0
    assert majority_at_k([None, "", " ", "5"], "5", 4, equal=same_text) == 1.0  # an empty answer is none
    assert majority_at_k([None, None, None], "5", 2, equal=same_text) == 0.0
    assert majority_at_k([None, None, "5"], "5", 1, equal=same_text) == pytest.approx(1 / 3)  # it still counts in k


def test_all_right_all_wrong() -> None:
    for k in (1, 3, 6):
        assert majority_at_k(["5"] * 6, "5", k, equal=same_text) == 1.0
        assert majority_at_k(["6"] * 6, "5", k, equal=same_text) == 0.0


def test_majority_is_exact_beyond_what_can_be_enumerated() -> None:
    votes = [0] * 5 + [1] * 4 + [2] * 3 + [None] * 4
    answers = [None if vote is None else str(vote) for vote in votes]
    assert majority_of_votes(votes, 6) == pytest.approx(naive_majority(answers, "0", 6), abs=1e-12)  # of 8,008
    # C(64, 32) = 1.8e18 subsets; 32 right against 32 of one wrong answer is even by symmetry
    assert majority_of_votes([0] * 32 + [1] * 32, 32) == 0.5
    # one right answer and 63 different wrong ones: it is drawn with probability 1/2, and ties with 31 others
    assert majority_of_votes([0, *range(1, 64)], 32) == pytest.approx(0.5 / 32)
    # 40 right, 2 and 22 wrong: of 63 drawn votes right has at least 39
    assert majority_of_votes([0] * 40 + [1] * 2 + [2] * 22, 63) == 1.0


def test_majority_is_near_that_of_random_subsets_of_many_completions() -> None:
    """Subsets drawn and counted one by one, on their own: four standard errors of 20,000."""
    rng = np.random.default_rng(0)
    votes = [0] * 20 + [1] * 18 + [2] * 9 + [3] * 5 + list(range(4, 8)) + [None] * 8
    numbers = np.array([-1 if vote is None else vote for vote in votes])
    for k in (4, 16, 40):
        scores = []
        for _ in range(20_000):
            counts = np.bincount(drawn[drawn >= 0]) if (drawn := rng.permutation(numbers)[:k]).max() >= 0 else [0]
            top = max(counts)
            scores.append((counts[0] == top > 0) / max(1, sum(count == top for count in counts)))
        assert majority_of_votes(votes, k) == pytest.approx(np.mean(scores), abs=2 / 20_000**0.5)


def test_a_wrong_answer_joins_its_class_whichever_way_round_they_are_equal() -> None:
    """Equality trusts its left side: it may hold a label that the right side leaves out, not the other way round."""

    def equal_many(pairs: list[tuple[str, str]]) -> list[bool]:
        return [left.removesuffix(" dogs") == right for left, right in pairs]

    answers = ["3 dogs", "3", "4", None, "4 dogs", "5"]
    correct = [False, False, False, False, False, True]
    assert vote_classes(answers, correct, equal_many) == [1, 1, 2, None, 2, 0]  # type: ignore[arg-type]


PERCENTAGES = ["50%", "50", "0.5", "0.5", "7", "7", "7"]  # 50% equals 50 and 0.5, which are not equal


def test_classes_do_not_depend_on_the_order_where_equality_is_not_transitive() -> None:
    """A chain of equal answers is one class: the four percentages outvote 7, whichever of them comes first."""
    orders = random.Random(0).sample(sorted(set(itertools.permutations(PERCENTAGES))), 100)
    assert {majority_at_k(order, "7", 7) for order in orders} == {0.0}
    assert {majority_at_k(order, "50", 7) for order in orders} == {0.0}  # 50 and 50% are right, 0.5 is not; 7 wins
    assert {majority_at_k(order, "0.5", 7) for order in orders} == {0.5}  # 50%, 0.5, 0.5 against 7, 7, 7
    assert {majority_at_k(order, "50%", 7) for order in orders} == {1.0}


def chained_majority(answers: list[str | None], gold: str, k: int, equal: Callable[[str, str], bool]) -> float:
    """maj@k over all k-subsets, with classes from the closure of the table of who equals whom (Warshall 1962)."""
    given_answers = [answer for answer in answers if answer]
    right = {answer for answer in given_answers if equal(gold, answer)}
    wrong = sorted(set(given_answers) - right)
    linked = {(a, b): a == b or equal(a, b) or equal(b, a) for a in wrong for b in wrong}
    for middle, one, other in itertools.product(wrong, repeat=3):
        linked[one, other] |= linked[one, middle] and linked[middle, other]
    names = {answer: min(b for b in wrong if linked[answer, b]) for answer in wrong} | dict.fromkeys(right, "right")
    return naive_majority([names[answer] if answer else None for answer in answers], "right", k)


@functools.cache
def really_equal(left: str, right: str) -> bool:
    return answers_equal(left, right)


ANSWERS = ["50%", "50", "0.5", r"\frac12", "0.5%", "3 dogs", "3", "3 cats", "1, 2", "1 and 2", "1 or 2", "7", "", None]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=8), st.sampled_from(["50", "3", "1 or 2", "7"]), st.data()
)
def test_majority_is_a_function_of_the_multiset_of_answers(
    answers: list[str | None], gold: str, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(answers)))
    order = data.draw(st.permutations(answers))
    exact = majority_at_k(answers, gold, k, equal=really_equal)
    assert exact == pytest.approx(chained_majority(answers, gold, k, really_equal), abs=1e-12)
    assert majority_at_k(order, gold, k, equal=really_equal) == exact


@given(st.lists(st.sampled_from([0, 1, 2, 3, None]), min_size=12, max_size=20), st.integers(2, 9), st.data())
def test_majority_does_not_depend_on_the_order_or_on_the_numbers_of_the_classes(
    votes: list[int | None], k: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(votes))
    other_numbers = [{1: 3, 2: 1, 3: 2}.get(vote, vote) if vote else vote for vote in order]
    value = majority_of_votes(votes, k)
    assert majority_of_votes(order, k) == value
    assert majority_of_votes(other_numbers, k) == value


@pytest.mark.parametrize(("k", "words"), [(3, "k = 3 needs"), (0, "k must")])
def test_majority_refuses_what_has_no_answer(k: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        majority_at_k(["5", "6"], "5", k, equal=same_text)
