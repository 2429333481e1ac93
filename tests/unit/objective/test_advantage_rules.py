"""Rules for A, held to loops that follow the papers' formulas."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean, stdev

import pytest
import torch

from gtpo_cli.errors import RecipeError
from gtpo_cli.objective import Method, Rewards, group_advantages
from gtpo_cli.objective.advantages import RULES


def rewards(seed: int, *, levels: int = 3, shape: tuple[int, int] = (4, 6)) -> Rewards:
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, (3, *shape), generator=draw).double()
    weights = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    total = (weights[:, None, None] * scores).sum(dim=0)
    return Rewards(total, scores[0] == levels - 1, scores, weights, ("accuracy", "format", "length"))


def binary(right: list[list[int]]) -> Rewards:
    """One reward of 1 for a right answer."""
    return Rewards.of_total(torch.tensor(right, dtype=torch.float64))


def advantages(name: str, of: Rewards, **config: object) -> list[list[float]]:
    found: list[list[float]] = Method(advantages=partial(RULES[name], **config)).advantages_of(of).tolist()
    return found


@pytest.mark.parametrize("seed", range(10))
def test_group_is_group_advantages_of_the_total(seed: int) -> None:
    of = rewards(seed)
    for scale in ("std", "none"):
        for baseline in ("mean", "leave_one_out"):
            expected = group_advantages(of.total_BG, scale=scale, baseline=baseline)  # type: ignore[arg-type]
            assert advantages("group", of, scale=scale, baseline=baseline) == expected.tolist()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("k", [0.1, 0.4, 0.5, 0.8, 1.0])
def test_quantile_subtracts_the_smallest_reward_that_enough_do_not_exceed(seed: int, k: float) -> None:
    of = rewards(seed)
    for row, found in zip(of.total_BG.tolist(), advantages("quantile", of, k=k), strict=True):
        baseline = min(r for r in row if sum(other <= r for other in row) / len(row) >= k - 1e-12)
        assert found == pytest.approx([(r - baseline) / (stdev(row) + 1e-4) for r in row], abs=1e-12)


def test_quantile_has_two_regimes() -> None:
    """p <= 1 - K rewards what is right and leaves the rest alone; p > 1 - K punishes what is wrong."""
    hard, easy = advantages("quantile", binary([[1, 0, 0, 0, 0], [1, 1, 1, 1, 0]]), k=0.4)
    assert hard[0] > 0
    assert hard[1:] == [0.0] * 4
    assert easy[:4] == [0.0] * 4
    assert easy[4] < 0


@pytest.mark.parametrize("seed", range(10))
def test_maximum_likelihood_divides_by_the_mean(seed: int) -> None:
    of = rewards(seed, levels=2)
    of.total_BG[0] = 0.0
    of.total_BG[1] = 0.7  # all alike
    for row, found in zip(of.total_BG.tolist(), advantages("maximum_likelihood", of), strict=True):
        mean = fmean(row)
        expected = [0.0] * len(row) if mean == 0 else [(r - mean) / mean for r in row]
        assert found == pytest.approx(expected, abs=1e-12)
    assert advantages("maximum_likelihood", of)[1] == [0.0] * 6  # exactly


def test_maximum_likelihood_is_the_gradient_of_the_logarithm() -> None:
    """The average over right answers alone, 1/K sum_i r_i s_i, minus the average of all scores (arXiv 2602.02710)."""
    right = [1, 0, 0, 1, 0]
    (found,) = advantages("maximum_likelihood", binary([right]))
    assert [a / 5 for a in found] == pytest.approx([r / 2 - 1 / 5 for r in right])


def test_reinforce_knows_right_and_wrong_alone() -> None:
    of = binary([[1, 0, 1], [0, 0, 0]])
    assert advantages("reinforce", of) == [[0.1, -1.0, 0.1], [-1.0] * 3]
    assert advantages("reinforce", of, positive=0.0) == [[0.0, -1.0, 0.0], [-1.0] * 3]


@pytest.mark.parametrize("seed", range(10))
def test_each_reward_is_normalised_before_they_are_added(seed: int) -> None:
    of = rewards(seed)
    of.scores_RBG[1, 2] = 5.0  # a reward that all of a group have
    groups = of.scores_RBG.tolist()
    sums = []
    for b in range(4):
        for g in range(6):
            parts = []
            for weight, scores in zip(of.weights_R.tolist(), groups, strict=True):
                row = scores[b]
                parts.append(weight * (row[g] - fmean(row)) / (stdev(row) + 1e-4))
            sums.append(sum(parts))
    expected = [(one - fmean(sums)) / (stdev(sums) + 1e-4) for one in sums]
    found = [a for row in advantages("each_reward", of) for a in row]
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("G", range(2, 17))
def test_each_reward_gives_a_group_with_equal_rewards_exactly_0(G: int) -> None:
    """Beside groups with a difference; a rounding error would have a sign."""
    draw = torch.Generator().manual_seed(G)
    scores_RBG = torch.rand((2, 8, G), generator=draw, dtype=torch.float64)
    scores_RBG[:, ::2] = scores_RBG[:, ::2, :1]
    weights_R = torch.tensor([1.0, 0.3], dtype=torch.float64)
    of = Rewards(scores_RBG.sum(dim=0), scores_RBG[0] > 0.5, scores_RBG, weights_R, ("a", "b"))
    found = advantages("each_reward", of)
    assert found[::2] == [[0.0] * G] * 4
    assert all(map(any, found[1::2]))


@pytest.mark.parametrize("name", RULES)
def test_equal_rewards_teach_nothing(name: str) -> None:
    of = Rewards.of_total(torch.full((3, 4), 0.1, dtype=torch.float64))
    if name != "reinforce":
        assert advantages(name, of) == [[0.0] * 4] * 3


def test_what_is_no_advantage_is_an_error() -> None:
    of = binary([[1, 0]])
    for rule, said in (
        (lambda r: r.total_BG[0], r"gave the shape \(2,\); expected one number for each completion, a tensor of the"),
        (lambda r: r.total_BG * math.nan, "gave an infinite advantage, or one that is not a number"),
        (lambda r: 1.0, "gave float; expected one number for each completion"),
    ):
        with pytest.raises(RecipeError, match=rf"objective\.advantages\.rule: {said}"):
            Method(advantages=rule).advantages_of(of)
