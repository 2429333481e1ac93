"""GTPO's advantages on verl's own batches and in verl's own loss, against gtpo's own loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_steps import INITIAL_ENTROPY
from verl_batches import batch_of, by_row, shuffled_rows

from gtpo_cli.errors import GenerationError, RecipeError
from gtpo_cli.integrations.verl_advantages import set_token_advantages
from gtpo_cli.objective import policy_loss
from gtpo_cli.training.step_metrics import step_metrics
from gtpo_cli.training.stopwatch import Stopwatch

NEVER = "objective.filter.enabled=never"
CASES = {
    "gtpo": ("objective.filter.threshold=2.2",),
    "prefix alignment": (NEVER, "objective.conflict.alignment=prefix"),
    "all positions": (NEVER, "objective.conflict.span=all"),
    "other weights": (NEVER, "objective.conflict={positive_weight: 1.5, negative_weight: 0.5}"),
    "filter only negative": ("objective.filter={threshold: 2.2, only_negative: true, enabled: always}",),
    "large gamma": (NEVER, "objective.entropy_coef=1.0"),
    "no std": (NEVER, "objective.advantage_scale=none"),
    "skip uninformative": (NEVER, "objective.skip_uninformative_groups=true"),
    "grpo": ("objective.name=grpo",),
}


@pytest.mark.parametrize("case", CASES)
def test_advantages_are_the_coefficients_of_our_own_loop(steps: Any, case: str) -> None:
    recipe, result = steps(*CASES[case])
    rows = shuffled_rows(result)
    data = batch_of(result, rows)
    metrics = set_token_advantages(data, recipe.objective, initial_entropy=INITIAL_ENTROPY)

    torch.testing.assert_close(data.batch["advantages"], by_row(result.coefficients_BGT, rows), atol=1e-6, rtol=1e-6)
    assert torch.equal(data.batch["returns"], data.batch["advantages"])
    assert data.batch["advantages"].abs().max() > 0.5
    own = step_metrics(result, Stopwatch())
    assert metrics == pytest.approx({name: own[name] for name in metrics}, abs=1e-6)


def test_the_step_has_all_that_the_objective_looks_at(steps: Any) -> None:
    _, result = steps(*CASES["gtpo"])
    assert 0 < int(result.keep_BG.sum()) < result.keep_BG.numel()
    assert {0.0, 1.0, 2.0} <= set(result.weights_BGT[result.batch.completion_mask_BGT].tolist())
    assert len(set(result.batch.lengths_BG.flatten().tolist())) > 3


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("case", ["gtpo", "large gamma", "grpo"])
def test_verl_s_loss_has_the_gradient_of_ours(steps: Any, configuration: Any, case: str, parts: int) -> None:
    """With probabilities that have moved beyond the clip, and in micro-batches as verl adds them up."""
    recipe, result = steps(*CASES[case])
    rows = shuffled_rows(result)
    data = batch_of(result, rows)
    set_token_advantages(data, recipe.objective, initial_entropy=INITIAL_ENTROPY)
    torch.manual_seed(0)
    old, mask = result.logprobs_BGT, result.batch.completion_mask_BGT
    moved = old + 0.3 * torch.randn(old.shape)

    ours = moved.clone().requires_grad_()
    loss, metrics = policy_loss(
        ours,
        result.coefficients_BGT,
        mask,
        old_logprobs_BGT=old,
        clip=(recipe.objective.clip.low, recipe.objective.clip.high),
    )
    assert metrics["clipped_share"] > 0.1
    loss.backward()

    theirs = by_row(moved, rows).clone().requires_grad_()
    total = _verl_loss(configuration(), data, by_row(old, rows), theirs, parts)
    total.backward()
    torch.testing.assert_close(total, loss, atol=1e-6, rtol=1e-6)
    assert ours.grad is not None
    assert ours.grad.abs().max() > 1e-3
    torch.testing.assert_close(theirs.grad, by_row(ours.grad, rows), atol=1e-6, rtol=1e-6)


def _verl_loss(config: Any, data: Any, old_NT: torch.Tensor, logprobs_NT: torch.Tensor, parts: int) -> torch.Tensor:
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.utils.config import omega_conf_to_dataclass

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.global_batch_info.update(
        dp_size=1, batch_num_tokens=None, global_batch_size=len(data), loss_scale_factor=None
    )
    total = torch.zeros(())
    for rows in torch.arange(len(data)).chunk(parts):
        loss, _ = compute_policy_loss_vanilla(
            old_log_prob=old_NT[rows],
            log_prob=logprobs_NT[rows],
            advantages=data.batch["advantages"][rows],
            response_mask=data.batch["response_mask"][rows].bool(),
            loss_agg_mode=actor.loss_agg_mode,
            config=actor,
        )
        total = total + loss
    return total


def test_verl_s_kl_has_the_gradient_of_ours(steps: Any, configuration: Any) -> None:
    from verl.trainer.ppo.core_algos import agg_loss, kl_penalty

    _, result = steps(*CASES["gtpo"])
    actor = configuration("objective.kl_coef=0.04").actor_rollout_ref.actor
    assert actor.use_kl_loss
    mask = result.batch.completion_mask_BGT
    torch.manual_seed(1)
    reference = result.logprobs_BGT + 0.3 * torch.randn(mask.shape)
    ours = result.logprobs_BGT.clone().requires_grad_()
    policy_loss(ours, torch.zeros_like(ours), mask, ref_logprobs_BGT=reference, kl_coef=0.04).loss.backward()
    theirs = result.logprobs_BGT.clone().flatten(0, 1).requires_grad_()
    kl = kl_penalty(logprob=theirs, ref_logprob=reference.flatten(0, 1), kl_penalty=actor.kl_loss_type)
    (agg_loss(kl, mask.flatten(0, 1), actor.loss_agg_mode) * actor.kl_loss_coef).backward()
    assert ours.grad is not None
    torch.testing.assert_close(theirs.grad, ours.grad.flatten(0, 1), atol=1e-6, rtol=1e-6)


def test_verl_s_importance_weights_are_ours(steps: Any, configuration: Any) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    from gtpo_cli.objective import importance_weights

    _, result = steps(*CASES["gtpo"])
    chosen = configuration("rollout.importance_correction=truncated").algorithm.rollout_correction
    mask = result.batch.completion_mask_BGT
    torch.manual_seed(2)
    sampled = result.logprobs_BGT + 0.8 * torch.randn(mask.shape)
    ours = importance_weights(result.logprobs_BGT, sampled)
    theirs, _ = compute_rollout_correction_weights(
        (result.logprobs_BGT - sampled).flatten(0, 1),
        mask.flatten(0, 1).float(),
        rollout_is=chosen.rollout_is,
        rollout_is_threshold=chosen.rollout_is_threshold,
    )
    assert (ours[mask] == 2.0).any()
    torch.testing.assert_close(theirs.reshape(mask.shape)[mask], ours[mask], atol=1e-6, rtol=1e-6)


def test_rows_that_verl_adds_to_fill_a_batch_have_no_advantage(steps: Any) -> None:
    from verl import DataProto

    recipe, result = steps(*CASES["gtpo"])
    rows = shuffled_rows(result)
    alone, filled = batch_of(result, rows), batch_of(result, rows)
    padding = batch_of(result, rows)[:2]
    padding.batch["response_mask"] = torch.zeros_like(padding.batch["response_mask"])
    padding.non_tensor_batch["uid"][:] = "pad"
    filled = DataProto.concat([padding, filled])
    set_token_advantages(alone, recipe.objective, initial_entropy=INITIAL_ENTROPY)
    set_token_advantages(filled, recipe.objective, initial_entropy=INITIAL_ENTROPY)
    assert torch.equal(filled.batch["advantages"][2:], alone.batch["advantages"])
    assert not filled.batch["advantages"][:2].any()


def test_a_batch_without_entropies_is_an_error(steps: Any) -> None:
    recipe, result = steps(*CASES["gtpo"])
    data = batch_of(result, shuffled_rows(result))
    data.batch.pop("entropy")
    with pytest.raises(RecipeError, match=r"holds no entropy.*bypass_mode"):
        set_token_advantages(data, recipe.objective, initial_entropy=INITIAL_ENTROPY)


def test_groups_of_different_sizes_are_an_error(steps: Any) -> None:
    recipe, result = steps(*CASES["gtpo"])
    rows = shuffled_rows(result)
    with pytest.raises(GenerationError, match=r"1 of 3 groups.*prompt . has 5"):
        set_token_advantages(batch_of(result, rows[1:]), recipe.objective, initial_entropy=INITIAL_ENTROPY)
    one_each = [next(row for row in rows if row[0] == b) for b in range(3)]
    with pytest.raises(GenerationError, match=r"group of 1.*rollout\.n"):
        set_token_advantages(batch_of(result, one_each), recipe.objective, initial_entropy=INITIAL_ENTROPY)


@pytest.mark.parametrize("place", [0, 1])
def test_responses_with_foreign_tokens_inside_are_an_error(steps: Any, place: int) -> None:
    recipe, result = steps(*CASES["gtpo"])
    data = batch_of(result, shuffled_rows(result))
    row = int(data.batch["response_mask"].sum(dim=1).argmax())
    data.batch["response_mask"][row, place] = 0
    with pytest.raises(RecipeError, match=r"1 of 18 responses.*multi_turn"):
        set_token_advantages(data, recipe.objective, initial_entropy=INITIAL_ENTROPY)
