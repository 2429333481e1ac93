"""<H>_i of completions that were sampled, by one forward pass of the policy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gtpo_cli.models import Policy
from gtpo_cli.objective import mean_entropy
from gtpo_cli.rollout import collate
from gtpo_cli.types import Group

_TOKENS_AT_ONCE = 16_384  # prompt, completion and padding of one forward: bounds its memory


@torch.no_grad()
def mean_entropies(policy: Policy, groups: Sequence[Group]) -> list[tuple[float, ...]]:
    """<H>_i in nats at the policy's temperature, one tuple a group; 0 for an empty completion."""
    batch = collate(groups, device=policy.device)
    entropies_BG = torch.zeros(batch.shape, device=policy.device)
    for micro in batch.split(_TOKENS_AT_ONCE, unit="tokens", packed=policy.packs):
        _, entropy_BGT = policy.token_logprobs(micro.batch)
        micro.put(mean_entropy(entropy_BGT, micro.batch.completion_mask_BGT), into=entropies_BG)
    return [tuple(row) for row in entropies_BG.tolist()]
