"""Rules for the loss of a token, held to loops that follow the papers' formulas."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from gtpo_cli.objective import covariance_ranks, loss, policy_loss

CLIP = (0.4, 0.4)


def batch(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ln pi with gradient, ln pi_old, one coefficient for each completion, mask."""
    draw = torch.Generator().manual_seed(seed)
    shape = (2, 3, 5)
    mask = torch.arange(5) < torch.randint(1, 6, (2, 3, 1), generator=draw)
    logps = (-2 * torch.rand(shape, generator=draw, dtype=torch.float64)).requires_grad_()
    old = logps.detach() + torch.randn(shape, generator=draw, dtype=torch.float64) * 0.5
    c = torch.randn(2, 3, 1, generator=draw, dtype=torch.float64).expand(shape)
    return logps, old, c, mask


def gmpo(logps: list[Tensor], old: list[float], c: float) -> Tensor:
    """|prod_t min(r^s, clip(r)^s)|^(1/|o|) A with s = sgn(A), clip from e^-0.4 to e^0.4 (2507.20673)."""
    sign = 1.0 if c > 0 else -1.0
    total = torch.zeros((), dtype=torch.float64)
    for logp, before in zip(logps, old, strict=True):
        log_r = sign * (logp - before)
        total = total + sign * torch.minimum(log_r, log_r.clamp(-0.4, 0.4))
    return torch.exp(total / len(logps)) * c


def sapo(logps: list[Tensor], old: list[float], c: float) -> Tensor:
    """mean_t f(r_t) A, f(r) = 4 / tau sigmoid(tau (r - 1)), tau 1 where A > 0, else 1.05 (2511.20347)."""
    tau = 1.0 if c > 0 else 1.05
    terms = [
        4 / tau / (1 + torch.exp(-tau * (torch.exp(logp - before) - 1))) * c
        for logp, before in zip(logps, old, strict=True)
    ]
    return torch.stack(terms).mean()


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize(("name", "naive"), [("geometric", gmpo), ("soft", sapo)])
def test_value_and_gradient_are_the_papers(seed: int, name: str, naive: object) -> None:
    logps, old, c, mask = batch(seed)
    result = policy_loss(logps, c, mask, old_logprobs_BGT=old, rule=loss.RULES[name], clip=CLIP)
    (found,) = torch.autograd.grad(result.loss, logps)
    rows = [(b, g) for b in range(2) for g in range(3)]
    terms = []
    for row in rows:
        length = int(mask[row].sum())
        terms.append(naive([logps[row][t] for t in range(length)], old[row][:length].tolist(), float(c[row][0])))  # type: ignore[operator]
    expected = -torch.stack(terms).mean()
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(found, torch.autograd.grad(expected, logps)[0], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("share", [1e-9, 0.2, 0.5, 1.0])
def test_kl_cov_holds_the_tokens_with_the_largest_covariance(share: float) -> None:
    """2505.22617, one token at a time: r A, less |ln r| for the tokens whose (ln pi - mean) (A - mean) is largest."""
    logps, old, c, mask = batch(3)
    tokens = [(b, g, t) for b in range(2) for g in range(3) for t in range(5) if mask[b, g, t]]
    mean_logp, mean_A = (sum(float(of[at]) for at in tokens) / len(tokens) for of in (old, c))
    order = sorted(tokens, key=lambda at: -(float(old[at]) - mean_logp) * (float(c[at]) - mean_A))
    held = order[: max(1, int(share * len(tokens)))]
    expected = torch.zeros((), dtype=torch.float64)
    for b, g, t in tokens:
        part = torch.exp(logps[b, g, t] - old[b, g, t]) * c[b, g, t]
        if (b, g, t) in held:
            part = part - 0.7 * (logps[b, g, t] - old[b, g, t]).abs()
        expected = expected - part / mask[b, g].sum() / 6
    ranks = covariance_ranks(old, c[..., 0], mask)
    rule = partial(loss.kl_cov, share=share, coef=0.7)
    result = policy_loss(logps, c, mask, old_logprobs_BGT=old, rule=rule, ranks_BGT=ranks)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    found, theirs = (torch.autograd.grad(value, logps, retain_graph=True)[0] for value in (result.loss, expected))
    torch.testing.assert_close(found, theirs, rtol=1e-10, atol=1e-14)


def test_ranks_of_no_token_and_of_tokens_without_any_covariance() -> None:
    nothing = covariance_ranks(torch.zeros(1, 3), torch.ones(1), torch.zeros(1, 3, dtype=torch.bool))
    assert nothing.tolist() == [[2.0, 2.0, 2.0]]
    alike = covariance_ranks(torch.zeros(1, 4), torch.ones(1), torch.tensor([[True, True, False, True]]))
    assert alike.tolist() == [[0.0, pytest.approx(2 / 3), 2.0, 1.0]]


def test_clipped_tokens_are_counted_by_their_rule() -> None:
    logps, old, c, mask = batch(1)
    shares = {
        name: policy_loss(logps, c, mask, old_logprobs_BGT=old, rule=rule, clip=CLIP).metrics["clipped_share"]
        for name, rule in loss.RULES.items()
    }
    log_r, real = (logps - old).detach(), mask & (c != 0)
    cut = torch.where(c > 0, log_r > 0.4, log_r < -0.4)
    assert shares["geometric"] == pytest.approx(float(cut[real].float().mean()))
    assert shares["soft"] == 0.0
    assert shares["token"] == pytest.approx(float(((log_r.exp() - 1).abs() > 0.4)[real].float().mean()))


def test_a_rule_of_ones_own_may_return_the_objective_alone() -> None:
    """Plain policy gradient: c ln pi."""
    logps, old, c, mask = batch(2)
    result = policy_loss(logps, c, mask, old_logprobs_BGT=old, rule=lambda ratio: ratio.coefficients * ratio.logprobs)
    expected = -(c * logps * mask).sum(dim=-1) / mask.sum(dim=-1)
    assert result.loss.item() == pytest.approx(expected.mean().item(), rel=1e-12)
    r = (logps - old).detach().exp()[mask & (c != 0)]
    assert result.metrics["ratio_mean"] == pytest.approx(float(r.mean()))
    assert result.metrics["clipped_share"] == 0.0
    assert math.isfinite(result.metrics["ratio_max"])
