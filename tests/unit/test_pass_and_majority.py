"""pass@k, first-k pass and maj@k against hand-worked cases, exhaustive enumeration and independent implementations."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_cli.estimators import best_of_k, first_k_pass, majority_at_k, majority_of_votes, pass_at_k, vote_classes

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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((3, 1, 4), "k = 4 needs at least 4 completions"), ((3, 1, 0), "k must be 1"), ((3, 4, 1), "4 right .* of 3"),
     ((3, -1, 1), "-1 right"), ((0, 0, 1), "there are 0")],
)  # fmt: skip
def test_pass_at_k_refuses_what_has_no_answer(arguments: tuple[int, int, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pass_at_k(*arguments)


# -- best of k --------------------------------------------------------------------------------------------------------


def test_best_of_k_by_hand() -> None:
    assert best_of_k([0.0, 1.0, 0.5], 2) == pytest.approx(2.5 / 3)  # pairs: 1, 0.5, 1
    assert best_of_k([0.25, 0.75], 1) == 0.5
    assert best_of_k([0.5] * 2048, 1024) == pytest.approx(0.5)  # C(2048, 1024) is beyond any float
    assert best_of_k([0.25, 0.75], 2) == 0.75
    with pytest.raises(ValueError, match="k = 3 needs at least 3"):
        best_of_k([0.25, 0.75], 3)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7), st.data())
def test_best_of_k_is_the_mean_of_the_best_over_all_subsets(scores: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    subsets = list(itertools.combinations(scores, k))
    assert best_of_k(scores, k) == pytest.approx(sum(map(max, subsets)) / len(subsets), abs=1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_best_of_k_of_right_and_wrong_is_pass_at_k(row: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(row)))
    assert best_of_k(row, k) == pytest.approx(pass_at_k(len(row), sum(row), k), abs=1e-12)


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


def test_a_wrong_answer_joins_its_class_whichever_way_round_they_are_equal() -> None:
    """Equality trusts its left side: it may hold a label that the right side leaves out, not the other way round."""

    def equal_many(pairs: list[tuple[str, str]]) -> list[bool]:
        return [left.removesuffix(" dogs") == right for left, right in pairs]

    answers = ["3 dogs", "3", "4", None, "4 dogs", "5"]
    correct = [False, False, False, False, False, True]
    assert vote_classes(answers, correct, equal_many) == [1, 1, 2, None, 2, 0]  # type: ignore[arg-type]


@pytest.mark.parametrize(("k", "words"), [(3, "k = 3 needs"), (0, "k must")])
def test_majority_refuses_what_has_no_answer(k: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        majority_at_k(["5", "6"], "5", k, equal=same_text)
