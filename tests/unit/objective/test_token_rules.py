"""Rules for lambda, held to loops over tokens that follow the papers' formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from statistics import fmean, pstdev

import pytest
import torch
from torch import Tensor

from gtpo_cli.errors import RecipeError
from gtpo_cli.objective import Method, Tokens, group_advantages, needs
from gtpo_cli.objective.token_rules import RULES, controlled, needs_of


def step(seed: int, shape: tuple[int, int, int] = (3, 4, 7)) -> Tokens:
    """Random tokens of a step; NaN stands at padding, where nothing may be read."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.arange(shape[2]) < torch.randint(0, shape[2] + 1, shape[:2], generator=draw)[..., None]
    A = group_advantages(torch.randint(0, 3, shape[:2], generator=draw).double())
    entropy = torch.rand(shape, generator=draw) * 2
    logprobs = -3 * torch.rand(shape, generator=draw)
    spans = torch.rand((2, *shape), generator=draw) < 0.3
    return Tokens(
        torch.randint(5, shape, generator=draw), mask, A, spans[0] & mask, spans[1] & mask,
        torch.rand(shape, generator=draw), logprobs.masked_fill(~mask, math.nan), entropy.masked_fill(~mask, math.nan),
    )  # fmt: skip


def places(tokens: Tokens) -> list[tuple[int, int, int]]:
    """Of the real tokens."""
    return [tuple(place) for place in tokens.mask.nonzero().tolist()]


def weights(name: str, tokens: Tokens, **config: float) -> Tensor:
    return Method(token_rule=partial(RULES[name], **config)).weigh(tokens)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 1.0])
def test_top_entropy_keeps_what_reaches_the_quantile(seed: int, share: float) -> None:
    tokens = step(seed)
    assert tokens.entropy is not None
    ordered = sorted(float(tokens.entropy[place]) for place in places(tokens))
    at = (1 - share) * (len(ordered) - 1)  # between two values: the quantile lies in between
    low, part = ordered[int(at)], at - int(at)
    tau = low + part * (ordered[min(int(at) + 1, len(ordered) - 1)] - low)
    found = weights("top_entropy", tokens, share=share)
    for place in places(tokens):
        assert found[place] == float(tokens.entropy[place] >= tau - 1e-7)
    assert found[~tokens.mask].eq(0).all()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("share", [2e-4, 0.05, 1.0])
def test_clip_cov_drops_tokens_of_large_covariance(seed: int, share: float) -> None:
    tokens = step(seed)
    assert tokens.logprobs is not None
    real = places(tokens)
    logp = {place: float(tokens.logprobs[place]) for place in real}
    A = {place: float(tokens.advantages[place[:2]]) for place in real}
    mean_logp, mean_A = sum(logp.values()) / len(real), sum(A.values()) / len(real)
    cov = {place: (logp[place] - mean_logp) * (A[place] - mean_A) for place in real}
    within = [place for place in real if 0.1 < cov[place] < 0.9]
    number = min(max(1, int(share * len(real))), len(within))
    found = weights("clip_cov", tokens, share=share, low=0.1, high=0.9)
    dropped = [place for place in real if found[place] == 0]
    assert set(dropped) <= set(within)
    assert len(dropped) == number
    assert all(found[place] == 1 for place in real if place not in dropped)
    other = weights("clip_cov", replace(tokens, noise=1 - tokens.noise), share=share, low=0.1, high=0.9)
    if 0 < 2 * number <= len(within):
        assert not torch.equal(found, other)  # which ones is drawn


@pytest.mark.parametrize("seed", range(20))
def test_entropy_advantage_adds_its_bonus(seed: int) -> None:
    tokens = step(seed)
    assert tokens.entropy is not None
    found = weights("entropy_advantage", tokens, alpha=0.4, kappa=2.0)
    for place in places(tokens):
        A = float(tokens.advantages[place[:2]])
        shaped = A + min(0.4 * float(tokens.entropy[place]), abs(A) / 2.0)
        assert found[place] * A == pytest.approx(shaped, rel=1e-6)
        assert A == 0 or float(found[place]) > 0


@pytest.mark.parametrize("seed", range(20))
def test_entropy_credit_moves_credit_between_the_tokens_of_a_side(seed: int) -> None:
    tokens = step(seed)
    assert tokens.entropy is not None
    found = weights("entropy_credit", tokens, outcome=1.0, share=0.1)
    for b in range(3):
        for sign in (1, -1):
            side = [
                place for place in places(tokens) if place[0] == b and sign * float(tokens.advantages[place[:2]]) > 0
            ]
            credit = {}
            for _, g, t in side:
                signal = {h: float(tokens.entropy[b, h, u]) ** sign for _, h, u in side if u == t}
                credit[b, g, t] = sign * (1 + 0.1 * len(signal) * signal[g] / sum(signal.values()))
            if not credit:
                continue
            mean, deviation = fmean(credit.values()), pstdev(credit.values())
            for place, one in credit.items():
                A = float(tokens.advantages[place[:2]])
                assert float(found[place]) * A == pytest.approx((one - mean) / (deviation + 1e-8), rel=1e-5, abs=1e-5)
            assert sum(float(found[place]) * float(tokens.advantages[place[:2]]) for place in side) == pytest.approx(
                0.0, abs=1e-4
            )
    for place in places(tokens):
        assert float(tokens.advantages[place[:2]]) != 0 or found[place] == 1


def test_entropy_credit_by_hand() -> None:
    """Right completions with entropies 3, 1 and 1, 3; wrong ones with 4, 1 and 1, 4 (the paper's Eq. 3 and 5)."""
    mask = torch.ones(1, 4, 2, dtype=torch.bool)
    entropy = torch.tensor([[[3.0, 1.0], [1.0, 3.0], [4.0, 1.0], [1.0, 4.0]]])
    A = torch.tensor([[1.0, 1.0, -1.0, -1.0]], dtype=torch.float64)
    nothing = torch.zeros(1, 4, 2)
    found = weights("entropy_credit", Tokens(mask.long(), mask, A, mask, mask, nothing, nothing, entropy))
    # r = 1.15, 1.05, 1.05, 1.15 and -1.04, -1.16, -1.16, -1.04: centred and divided, 1 and -1
    signs = [[1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]]
    torch.testing.assert_close(found * A[..., None], torch.tensor([signs], dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_sequence_entropy_credit_standardises_what_completions_get(seed: int) -> None:
    tokens = step(seed)
    assert tokens.entropy is not None
    found = weights("sequence_entropy_credit", tokens, outcome=1.0, share=0.1)
    for b, group in enumerate(tokens.mask):
        A = {g: float(tokens.advantages[b, g]) for g in range(len(group)) if group[g].any()}
        H = {g: fmean(tokens.entropy[b, g][group[g]].tolist()) for g in A}
        credit = {}
        for sign in (1, -1):
            signal = {g: H[g] ** sign for g in A if sign * A[g] > 0}
            credit |= {g: sign * (1 + 0.1 * len(signal) * signal[g] / sum(signal.values())) for g in signal}
        mean, deviation = (fmean(credit.values()), pstdev(credit.values())) if credit else (0.0, 0.0)
        for g in A:
            expected = (credit[g] - mean) / (deviation + 1e-8) if g in credit else A[g]
            for value in found[b, g][group[g]].tolist():
                assert value * A[g] == pytest.approx(expected, rel=1e-5, abs=1e-5)
                assert g in credit or value == 1


def test_sequence_entropy_credit_by_hand() -> None:
    """Right completions with mean entropies 3 and 1, wrong ones with 4 and 1 (the paper's Eq. 9)."""
    mask = torch.tensor([[[True, True], [True, False], [True, True], [True, True]]])
    entropy = torch.tensor([[[2.0, 4.0], [1.0, 9.0], [4.0, 4.0], [0.5, 1.5]]])
    A = torch.tensor([[2.0, 2.0, -0.5, -0.5]], dtype=torch.float64)
    nothing = torch.zeros(1, 4, 2)
    found = weights("sequence_entropy_credit", Tokens(mask.long(), mask, A, mask, mask, nothing, nothing, entropy))
    r = torch.tensor([1.15, 1.05, -1.04, -1.16], dtype=torch.float64)
    shaped = (r - r.mean()) / r.std(correction=0)
    torch.testing.assert_close(found[..., 0].double() * A, shaped[None], rtol=0, atol=1e-6)
    assert found[0, 1, 1] == 0
    assert torch.equal(found[0, 0], found[0, 0, :1].expand(2))


def test_a_rule_of_a_row_needs_no_other_row() -> None:
    tokens = step(3)
    whole = weights("entropy_advantage", tokens)
    rows = [getattr(tokens, name).flatten(0, 1) for name in Tokens.__dataclass_fields__]
    for row in range(len(rows[0])):
        alone = weights("entropy_advantage", Tokens(*(values[row : row + 1] for values in rows)))
        assert torch.equal(alone[0], whole.flatten(0, 1)[row])


def test_conflict_weights_by_hand() -> None:
    tokens = step(1)
    found = weights("conflict", tokens, positive=1.5, negative=0.25)
    for place in places(tokens):
        A, shared = float(tokens.advantages[place[:2]]), bool(tokens.forward[place] or tokens.backward[place])
        assert found[place] == (1 if not shared or A == 0 else 1.5 if A > 0 else 0.25)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("control", ["even", "random"])
def test_a_control_keeps_the_weight_of_each_completion(name: str, control: str) -> None:
    tokens = step(5)
    own = weights(name, tokens)
    changed = Method(token_rule=RULES[name], control=control).weigh(tokens)  # type: ignore[arg-type]
    torch.testing.assert_close(changed.sum(dim=-1), own.sum(dim=-1))
    for b, g in zip(*torch.nonzero(tokens.mask.any(dim=-1), as_tuple=True), strict=True):
        real = tokens.mask[b, g]
        if control == "even":
            assert changed[b, g][real].unique().numel() == 1
        else:
            assert torch.equal(changed[b, g][real].sort().values, own[b, g][real].sort().values)
    assert changed[~tokens.mask].eq(0).all()


def test_random_weights_lie_elsewhere() -> None:
    mask = torch.ones(1, 1, 200, dtype=torch.bool)
    own = (torch.arange(200) < 100).float()[None, None]
    noise = torch.rand(1, 1, 200, generator=torch.Generator().manual_seed(1))
    tokens = Tokens(mask.long(), mask, torch.ones(1, 1), mask, mask, noise)
    assert 30 < float((controlled(own, tokens, "random") * own).sum()) < 70


@pytest.mark.parametrize("chosen", ["the lowest", "the lower half"])
def test_random_weights_do_not_follow_the_draw_of_the_rule(chosen: str) -> None:
    mask = torch.ones(100, 8, 40, dtype=torch.bool)
    noise = torch.rand(mask.shape, generator=torch.Generator().manual_seed(2))
    tokens = Tokens(mask.long(), mask, torch.ones(100, 8), mask, mask, noise)
    own = noise == noise.amin(dim=-1, keepdim=True) if chosen == "the lowest" else noise < 0.5
    weights = controlled(own.float(), tokens, "random")
    place = torch.arange(40).expand_as(weights)
    # 800 lowest tokens or 16,000 of the lower half: four standard errors of a mean place are 1.7 or 0.4
    assert abs(float(place[weights > 0].float().mean()) - 19.5) < (1.7 if chosen == "the lowest" else 0.4)


def test_what_a_rule_needs() -> None:
    assert {name: needs_of(rule) for name, rule in RULES.items()} == {
        "conflict": "group", "top_entropy": "step", "clip_cov": "step", "entropy_advantage": "row",
        "entropy_credit": "step", "sequence_entropy_credit": "step",
    }  # fmt: skip
    assert Method(token_rule=partial(RULES["conflict"], positive=1.0)).needs == "group"
    assert Method(token_rule=None).needs == "group"
    assert Method(token_rule=lambda tokens: tokens.mask).needs == "step"
    assert Method(token_rule=needs("row")(lambda tokens: tokens.mask)).needs == "row"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            lambda tokens: tokens.mask[..., :1],
            r"gave the shape \(3, 4, 1\); expected one number for each token, .* \(3, 4, 7\)",
        ),
        (lambda tokens: [1.0], "gave list; expected one number for each token"),
        (lambda tokens: tokens.mask / 0.0, "gave an infinite weight, or one that is not a number"),
    ],
)
def test_what_is_no_weight_is_an_error(rule: object, said: str) -> None:
    with pytest.raises(RecipeError, match=rf"objective\.token_weights\.rule: {said}"):
        Method(token_rule=rule).weigh(step(1))  # type: ignore[arg-type]
