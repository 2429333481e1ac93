"""Three trials: the longest possible step, the sampler against the policy, and the policy against a plain forward pass.

The first comes before step 1, so that a run that needs too much memory fails at once and not after 700 steps. The
second comes before each update: samples of another model would teach the wrong thing, and a sampler that does not take
the new weights differs only when they have moved. The third comes after the first update and checks that the model in
training is the model that gets saved: the policy computes log-probabilities without logits and shares prompts between
rows, so they are compared with a plain forward pass of the model that a checkpoint would hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gtpo_cli.data import Prompt
from gtpo_cli.errors import ModelError
from gtpo_cli.job import TrainingJob
from gtpo_cli.objective import Rows
from gtpo_cli.policy import Policy
from gtpo_cli.policy.loading import ROUNDING, SAMPLER_GAP, dtype_name
from gtpo_cli.policy.packing import Budget
from gtpo_cli.policy.policy import STATE_BYTES
from gtpo_cli.policy.sampler import Sampler, SamplingParams, collate
from gtpo_cli.training.step import StepParts, StepRows
from gtpo_cli.training.step_metrics import sampler_metrics
from gtpo_cli.types import Completion, Group

# Rounding grows with the logits and with 1 / temperature. A missing part of the model changes results by whole nats.
_MARGIN = 5.0
STRESSED = ("cuda",)  # types of devices on which a run begins with the longest possible step
_TOKENS = 64  # of a prompt and of its continuation; their logits take little memory with any vocabulary


def stress_step(job: TrainingJob, policy: Policy, sampler: Sampler | None, budget: Budget) -> int:
    """Sample and train on the longest prompt with completions of the greatest length, and return the tokens of a row.

    `sampler`: None if the run does not sample. Weights, gradients and random states stay as they were; only the size
    of micro-batches may change. Raises ModelError or GenerationError if not even one row fits.
    """
    recipe, rollout, prompts_per_step = job.recipe, job.recipe.rollout, job.data.order.prompts_per_step
    problem, ids = max(job.data.prompts, key=lambda prompt: len(prompt[1]))
    length = min(rollout.max_completion_tokens, policy.max_seq_length - len(ids))
    devices = [policy.device] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # dropout draws
        if sampler is not None:
            sampler.sync(policy)
            params = SamplingParams(rollout.temperature, max_completion_tokens=length)
            completions = rollout.group_size * prompts_per_step * rollout.steps_per_generation
            sampler.rehearse(len(ids), completions, params)
        reserve = _optimizer_state(recipe.optimizer.name, policy)
        completion = Completion((ids[-1],) * length, (0.0,) * length, "length", "")
        group = Group(problem, ids, (completion,) * recipe.completions_per_prompt)
        rows = collate([group] * prompts_per_step, device=policy.device)

        def work(limit: int) -> None:
            first = next(rows.split(limit, unit=budget.unit, packed=policy.packs))
            _forward_backward(policy, rows[first])

        budget.run(work, at_most=rows.size(budget.unit))
        del reserve
    return len(ids) + length


def _optimizer_state(name: str, policy: Policy) -> torch.Tensor:
    """Reserve the memory that the optimiser will take in its first step."""
    trained = sum(parameter.numel() for parameter in policy.trainable_parameters())
    size = int(STATE_BYTES[name] * trained)
    return torch.empty(size, dtype=torch.uint8, device=policy.device)


def _forward_backward(policy: Policy, rows: Rows) -> None:
    """Process one micro-batch twice. Later micro-batches need the same memory plus the accumulated gradients."""
    parameters = list(policy.trainable_parameters())
    try:
        for _ in range(2):  # the second pass runs beside the gradients of the first
            logp, _ = policy.token_logprobs(rows)
            logp.sum().backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
    finally:
        for parameter in parameters:
            parameter.grad = None


def check_sampler(parts: StepParts, rows: StepRows) -> None:
    """Raise ModelError if the sampler's log-probabilities differ from the policy's by more than rounding.

    Compares the mean |difference| over the completions of a step, with ln pi of the weights that sampled them. A recipe
    that weighs tokens by the difference (`rollout.importance_correction`) may go on.
    """
    if parts.rollout.importance_correction != "none" or rows.old_NT is None:
        return
    policy = parts.policy
    gap = sampler_metrics(rows.old_NT, rows)["sampler/gap_mean"]
    bound = SAMPLER_GAP[dtype_name(policy.dtype)] / min(1.0, policy.temperature)
    if not gap <= bound:
        raise ModelError(
            f"the sampler's log-probabilities differ from the policy's by {gap:.2g} nats on average, more than "
            f"rounding explains ({bound:g}), so training would learn from another model's samples; use rollout.engine: "
            "transformers or another model, or let rollout.importance_correction: truncated weigh the difference"
        )


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
        packed = collate([group], device=policy.device)
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
