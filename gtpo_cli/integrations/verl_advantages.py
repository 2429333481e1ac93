"""GTPO's coefficients as verl's advantages: a function of verl's batch, without verl.

Axes: N rows of verl's batch in any order, T response tokens (right-padded); B prompts, G completions of one prompt.

verl's `seq-mean-token-mean` with advantages of shape (N, T) is Eq. 11 (see coefficients.py). verl reorders rows to
balance its workers, so a group is the rows with the same `uid`, wherever they stand. Rows that verl adds to fill a
batch have no real token; they are in no group and their advantages are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.errors import GenerationError, RecipeError
from gtpo_cli.objective.terms import token_coefficients
from gtpo_cli.recipe.schema import ObjectiveRecipe
from gtpo_cli.training.step_metrics import objective_metrics

_NEEDED = ("responses", "response_mask", "token_level_rewards", "entropy")  # verl 0.9's names, each (N, T)


def set_token_advantages(data: Any, objective: ObjectiveRecipe, *, initial_entropy: float) -> dict[str, float]:
    """Set `advantages` and `returns` of a batch to c_{i,t} = delta_i (A_i - gamma <H>_i) lambda_{i,t}  (Eq. 9 to 12).

    Args:
        data: a verl `DataProto`. Read of its `batch`, all (N, T): `responses` (token ids), `response_mask` (1 at
            sampled tokens), `token_level_rewards` (their sum is the completion's reward), `entropy` (nats, of the
            sampling distribution); of `non_tensor_batch`: `uid` (N), the same for the completions of one prompt.
        objective: the recipe's section; see `token_coefficients`.
        initial_entropy: <H>_ini, nats; read where `objective.filter.enabled` is auto.
    Returns:
        What gtpo's own loop logs of these parts, under the same names (docs/metrics.md). `data.batch` gets
        `advantages` and `returns`, float32 (N, T), 0 at padding; both are the same, as verl's own GRPO has it.
    Raises:
        RecipeError: something in the batch is missing, or its responses are not one stretch of sampled tokens.
        GenerationError: the groups are not of one size, or of one completion, or there are none.
    """
    missing = [name for name in _NEEDED if name not in data.batch]
    if missing:
        raise RecipeError(
            f"verl's batch holds no {', '.join(missing)}; GTPO needs the entropies of verl's own forward: "
            "leave algorithm.rollout_correction.bypass_mode false, and train through trainer.v1.trainer_mode=gtpo"
        )
    ids_NT, entropy_NT = data.batch["responses"], data.batch["entropy"]
    mask_NT = data.batch["response_mask"].bool()
    _check_contiguous(mask_NT)
    real_N = mask_NT.any(dim=1)
    index_BG = _group_rows(data.non_tensor_batch["uid"], real_N).to(ids_NT.device)
    parts = token_coefficients(
        objective,
        completion_ids_BGT=ids_NT[index_BG],
        completion_mask_BGT=mask_NT[index_BG],
        rewards_BG=data.batch["token_level_rewards"].float().sum(dim=-1)[index_BG],
        entropy_BGT=entropy_NT[index_BG],
        initial_entropy=initial_entropy,
    )
    advantages_NT = torch.zeros(ids_NT.shape, dtype=torch.float32, device=ids_NT.device)
    advantages_NT[index_BG] = parts.coefficients_BGT
    data.batch["advantages"] = advantages_NT
    data.batch["returns"] = advantages_NT
    return objective_metrics(parts, mask_NT[index_BG])


def _group_rows(uids: Sequence[Any], real_N: Tensor) -> Tensor:
    """Row numbers by group, int64 (B, G): groups in order of first appearance, rows of a group in their order.

    Rows of a uid none of whose rows has a real token (`real_N` false) are left out.
    Raises GenerationError where groups differ in size, have one row, or there are none.
    """
    rows: dict[Any, list[int]] = {}
    for row, uid in enumerate(uids):
        rows.setdefault(uid, []).append(row)
    real = real_N.tolist()
    groups = {uid: members for uid, members in rows.items() if any(real[row] for row in members)}
    if not groups:
        raise GenerationError("verl's batch holds no completion with a token; look at the sampler's log")
    sizes = {uid: len(members) for uid, members in groups.items()}
    size = max(sizes.values())
    short = [f"{uid} has {count}" for uid, count in sizes.items() if count != size]
    if short:
        raise GenerationError(
            f"{len(short)} of {len(groups)} groups have fewer completions than the others' {size} "
            f"({'; '.join(short[:3])}): sampling failed for some; look at the log of verl's agent loop, and set "
            "trainer.v1.sampler.sync_refill_failed_groups=true to have failed groups sampled again"
        )
    if size < 2:
        raise GenerationError("a group of 1 has no advantage; set actor_rollout_ref.rollout.n to 2 or more")
    return torch.tensor(list(groups.values()))


def _check_contiguous(mask_NT: Tensor) -> None:
    """Raise RecipeError for a row whose sampled tokens do not begin at place 0 or have gaps between them."""
    lengths_N = mask_NT.sum(dim=1)
    places = torch.arange(mask_NT.shape[1], device=mask_NT.device)
    broken = (mask_NT != (places < lengths_N[:, None])).any(dim=1)
    if bool(broken.any()):
        raise RecipeError(
            f"{int(broken.sum())} of {len(mask_NT)} responses are not one stretch of sampled tokens (tool calls, or "
            "several turns), and conflict tokens are counted from its ends: use verl's single_turn_agent "
            "(actor_rollout_ref.rollout.multi_turn.enable=false)"
        )
