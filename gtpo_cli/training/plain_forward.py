"""A check that the model in training is the model that gets saved.

The policy computes log-probabilities without logits and shares prompts between rows. After the first update they are
compared with a plain forward pass of the model that a checkpoint would hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gtpo_cli.data import Prompt
from gtpo_cli.errors import ModelError
from gtpo_cli.models import Policy
from gtpo_cli.models.loading import ROUNDING, dtype_name
from gtpo_cli.rollout import collate
from gtpo_cli.types import Completion, Group

# Rounding grows with the logits and with 1 / temperature. A missing part of the model changes results by whole nats.
_MARGIN = 5.0
_TOKENS = 64  # of a prompt and of its continuation; their logits take little memory with any vocabulary


def check_plain_forward(policy: Policy, prompts: Sequence[Prompt], *, as_in_training: bool) -> None:
    """Raise ModelError if `Policy.token_logprobs` differs from the plain forward of the model that gets saved.

    The input is the start of the longest prompt, repeated as its own completion. The mean |difference| in nats must
    stay within rounding (`ROUNDING`, with a margin, at the policy's temperature). `as_in_training`: use the forward
    with a gradient, in which random draws show too; otherwise the one without. Weights, gradients and random states
    stay as they were.
    """
    problem, ids = max(prompts, key=lambda prompt: len(prompt[1]))
    ids = ids[: max(1, min(_TOKENS, policy.max_seq_length // 2))]
    rows = [ids, ids[: len(ids) // 2 + 1]]  # two completions of one prompt, as in a group
    group = Group(problem, ids, tuple(Completion(row, (0.0,) * len(row), "length", "") for row in rows))
    devices = [policy.device] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        packed = collate([group], device=policy.device).rows()
        with torch.set_grad_enabled(as_in_training):
            logp_NT, _ = policy.token_logprobs(packed)
        plain_M = torch.cat([policy.plain_logprobs(ids, row) for row in rows])
    logp_M = logp_NT.detach()[packed.mask_NT]
    same_M = (logp_M == plain_M) | (logp_M.isnan() & plain_M.isnan())  # a probability of 0 gives minus infinity
    gap = float((logp_M - plain_M).abs().masked_fill(same_M, 0.0).mean())
    bound = _MARGIN * ROUNDING[dtype_name(policy.dtype)] / min(1.0, policy.temperature)
    if not gap <= bound:
        raise ModelError(
            f"the log-probabilities in training differ by {gap:.2g} nats on average from those of the model that would "
            f"be saved (its plain forward), more than rounding explains ({bound:g}): training skips a part of the "
            "model or its adapter, or draws at random; nothing was saved; choose another model or adapter, and report "
            "this"
        )
