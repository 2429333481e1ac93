"""Classes of answers: what must be told apart, and what is the same although it looks alike."""

import pytest
from answer_classes import CLASSES

from gtpo_cli.rewards import EqualityWorkers, gold_is_usable


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_has_ten_members_on_either_side(name: str) -> None:
    same, different = CLASSES[name]
    assert len(set(same)) == len(same) >= 10
    assert len(set(different)) == len(different) >= 10


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_the_same_is_equal(workers: EqualityWorkers, name: str) -> None:
    same, _ = CLASSES[name]
    assert [pair for pair, grade in zip(same, workers.equal_many(same), strict=True) if not grade.equal] == []
    golds = [gold for gold, _ in same]
    assert [
        gold
        for gold, grade in zip(golds, workers.equal_many([(gold, gold) for gold in golds]), strict=True)
        if not grade.equal
    ] == []


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_different_is_not_equal(workers: EqualityWorkers, name: str) -> None:
    _, different = CLASSES[name]
    assert [pair for pair, grade in zip(different, workers.equal_many(different), strict=True) if grade.equal] == []


# Only the gold answer's side may be a name, a label or a plain product that the other side leaves out.
ONE_WAY = {(r"\mathbf{a}^2", r"\mathbf{a} \times \mathbf{a}")}


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_different_is_not_equal_the_other_way_round(workers: EqualityWorkers, name: str) -> None:
    pairs = [(predicted, gold) for gold, predicted in CLASSES[name][1]]
    wrong = {pair for pair, grade in zip(pairs, workers.equal_many(pairs), strict=True) if grade.equal}
    assert wrong <= ONE_WAY


@pytest.mark.parametrize(
    ("gold", "value"),
    [
        *(("2020-10-28", "1982"), ("555-0199", "356"), ("10-12", "-2"), ("50-50", "0"), ("3-4 cm", "-1 cm")),
        *(("B2-C3", "2B-3C"), ("Q4", "4Q"), ("H2O", "2HO"), ("3x3", "9x"), ("2020-W44", "2020-44W"), ("3/4/5", "3/20")),
    ],
)
def test_a_code_is_not_worth_what_it_would_compute_to(workers: EqualityWorkers, gold: str, value: str) -> None:
    assert not workers.equal_many([(gold, value)])[0].equal


def test_what_stands_for_nothing_is_no_gold_answer() -> None:
    assert not gold_is_usable(r"\frac{1}{0}")
    assert not gold_is_usable(r"\frac{0}{0} + 1")
    assert gold_is_usable(r"\infty")
