"""Rules beside verl's own functions: the same loss, gradient and advantages on random batches (make test-verl)."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("verl") is None:
    pytest.skip("verl is not here: make test-verl installs it", allow_module_level=True)
import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig, PolicyLossConfig

from gtpo_cli.objective import Rewards, Tokens, covariance_ranks, loss, policy_loss
from gtpo_cli.objective.advantages import group
from gtpo_cli.objective.token_rules import clip_cov

N, T = 8, 30
# our rule, its range, the mean over the step; verl's name and settings
RULES: dict[str, tuple[Any, tuple[float, float], str, str, dict[str, Any]]] = {
    "token": (loss.token, (0.2, 0.28), "token", "vanilla", {"clip_ratio_c": 1e9}),  # without its dual clip
    "sequence": (loss.sequence, (0.02, 0.03), "completion", "gspo", {}),
    "weight": (loss.weight, (1.0, 1.5), "token", "cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": 0.5}),
    "geometric": (loss.geometric, (0.4, 0.3), "completion", "geo_mean", {}),
    "soft": (loss.soft, (0.2, 0.2), "completion", "sapo", {}),
    "kl_cov": (partial(loss.kl_cov, share=0.1, coef=0.7), (0.2, 0.2), "token", "kl_cov", {}),
}


def batch(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ln pi, ln pi_old, A of each completion, mask."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.arange(T) < torch.randint(1, T + 1, (N, 1), generator=draw)
    old = -3 * torch.rand(N, T, generator=draw, dtype=torch.float64)
    moved = 0.4 * torch.randn(N, T, generator=draw, dtype=torch.float64)
    A = torch.randn(N, generator=draw, dtype=torch.float64)
    return old + moved, old, A, mask


def theirs(name: str, logps: Tensor, old: Tensor, A: Tensor, mask: Tensor, average: str, **settings: Any) -> Tensor:
    policy_losses = PolicyLossConfig(kl_cov_ratio=0.1, ppo_kl_coef=0.7, **settings.pop("policy_loss", {}))
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy_losses, **settings
    )
    mode = {"token": "token-mean", "completion": "seq-mean-token-mean"}[average]
    found: Tensor = core_algos.get_policy_loss_fn(name)(
        old, logps, A[:, None].expand(N, T).clone(), mask.double(), mode, config
    )[0]
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", RULES)
def test_loss_and_gradient_are_those_of_verl(name: str, seed: int) -> None:
    rule, clip, average, other, settings = RULES[name]
    logps, old, A, mask = batch(seed)
    logps.requires_grad_()
    settings = {"clip_ratio_low": clip[0], "clip_ratio_high": clip[1]} | settings
    expected = theirs(other, logps, old, A, mask, average, **settings)
    (gradient,) = torch.autograd.grad(expected, logps)
    ranks = covariance_ranks(logps, A, mask)  # verl ranks by the present ln pi
    ours = policy_loss(
        logps, A[:, None].expand(N, T), mask, old_logprobs_BGT=old, rule=rule, clip=clip, average=average,  # type: ignore[arg-type]
        ranks_BGT=ranks,
    ).loss  # fmt: skip
    assert ours.item() == pytest.approx(expected.item(), rel=1e-7)  # verl adds 1e-8 to some lengths
    torch.testing.assert_close(torch.autograd.grad(ours, logps)[0], gradient, rtol=1e-6, atol=1e-9)
    assert float(gradient.abs().max()) > 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_clip_cov_leaves_out_the_tokens_of_verl(seed: int) -> None:
    """With a share that takes all candidates, since the draw among them is another."""
    _, old, A, mask = batch(seed)
    logps = old.clone().requires_grad_()
    covs = {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.3, "clip_cov_ub": 2.0}
    (expected,) = torch.autograd.grad(theirs("clip_cov", logps, old, A, mask, "token", policy_loss=covs), logps)
    nothing, none = torch.zeros(N, T), torch.zeros(N, T, dtype=torch.bool)
    tokens = Tokens(mask.long(), mask, A, none, none, nothing, old, nothing)
    weights = clip_cov(tokens, share=1.0, low=0.3, high=2.0)
    left_out = int((weights[mask] == 0).sum())
    assert 0 < left_out < int(mask.sum())
    (found,) = torch.autograd.grad(policy_loss(logps, A[:, None] * weights, mask, average="token").loss, logps)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("config", "name", "epsilon"),
    [
        ({}, "grpo", {"epsilon": 1e-4}),
        ({"scale": "none"}, "grpo", {"norm_adv_by_std_in_grpo": False}),
        ({"scale": "none", "baseline": "leave_one_out"}, "rloo", {}),
    ],
)
def test_advantages_are_those_of_verl(config: dict[str, Any], name: str, epsilon: dict[str, Any]) -> None:
    rewards_BG = torch.randint(0, 12, (2, 4), generator=torch.Generator().manual_seed(5)).double()
    mask = torch.ones(N, T, dtype=torch.float64)
    of_tokens = torch.zeros(N, T, dtype=torch.float64)
    of_tokens[:, -1] = rewards_BG.flatten()
    index = np.repeat([0, 1], 4)
    expected, _ = core_algos.get_adv_estimator_fn(name)(of_tokens, mask, index, **epsilon)
    found = group(Rewards.of_total(rewards_BG), **config)
    torch.testing.assert_close(found.flatten(), expected[:, 0].double(), rtol=1e-6, atol=1e-9)
