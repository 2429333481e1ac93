"""A policy beside the transformers policy on the same weights and adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from policy_contract import ragged_rows, recipe_for
from small_models import random_model

from gtpo_cli.policy import Policy
from gtpo_cli.policy.loading import read_model
from gtpo_cli.policy.transformers_policy import load_transformers_policy


def save_in_half(folder: Path, architecture: str = "llama", **changes: Any) -> Path:
    """In 16 bits, as models are published: libraries that round before they quantise and others then agree."""
    model, tokenizer = random_model(architecture, **changes)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def twin(policy: Policy, folder: Path, adapter: Path, *, temperature: float = 1.0, **model: Any) -> Policy:
    """A transformers policy with the same adapter."""
    policy.save(adapter)
    recipe = recipe_for(folder, **model).model
    plain = load_transformers_policy(
        recipe, files=read_model(recipe, str(folder)), temperature=temperature, with_reference=False, seed=1
    )
    plain.load(adapter)
    return plain


def measured(policy: Policy, batch: Any = None) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Log-probabilities, entropies and gradients of a weighted sum."""
    logp, entropy = policy.token_logprobs(ragged_rows() if batch is None else batch)
    (logp * torch.linspace(-1, 1, logp.numel()).view(logp.shape)).sum().backward()
    gradients = [parameter.grad for parameter in policy.trainable_parameters()]
    for parameter in policy.trainable_parameters():
        parameter.grad = None
    return logp.detach(), entropy, gradients


def distance(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Of all gradients together, relative to the second's norm."""
    difference, norm = (
        torch.cat([tensor.float().flatten() for tensor in tensors]).norm()
        for tensors in ([a - b for a, b in zip(ours, theirs, strict=True)], theirs)
    )
    return float(difference / norm)
