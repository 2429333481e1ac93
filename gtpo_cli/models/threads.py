"""How many CPU threads torch uses."""

from __future__ import annotations

import torch

from gtpo_cli.models.policy import Policy
from gtpo_cli.recipe.schema import Recipe

SMALL_MODEL = 20_000_000  # parameters; below it a second thread costs more than it gives on a busy machine


def set_threads(recipe: Recipe, policy: Policy) -> None:
    """`training.threads`, or by the model's size: one for a small model."""
    threads = recipe.training.threads
    if threads == "auto":
        threads = 1 if policy.num_parameters < SMALL_MODEL else torch.get_num_threads()
    torch.set_num_threads(threads)
