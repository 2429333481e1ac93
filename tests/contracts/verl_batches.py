"""verl's batches and configurations, made as verl makes them. verl itself is imported when one is asked for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gtpo_cli.training.step import StepResult

EXAMPLE = Path(__file__).parents[2] / "examples" / "verl"


def shuffled_rows(result: StepResult) -> list[tuple[int, int]]:
    """(group, completion) of each row of a batch: groups interleaved, in no order of theirs."""
    B, G = result.batch.shape
    rows = [(b, g) for b in range(B) for g in range(G)]
    random.Random(5).shuffle(rows)
    return rows


def by_row(values: torch.Tensor, rows: list[tuple[int, int]]) -> torch.Tensor:
    b, g = zip(*rows, strict=True)
    return values[list(b), list(g)]


def batch_of(result: StepResult, rows: list[tuple[int, int]]) -> Any:
    """The step's completions as verl's DataProto, in the order of `rows`."""
    from verl import DataProto

    mask = by_row(result.batch.completion_mask_BGT, rows)
    last = mask.sum(dim=1) - 1
    rewards = torch.zeros(mask.shape)
    rewards[range(len(rows)), last] = by_row(result.batch.rewards_BG, rows)
    tensors = {
        "responses": by_row(result.batch.completion_ids_BGT, rows),
        "response_mask": mask.long(),
        "token_level_rewards": rewards,
        "entropy": by_row(result.entropy_BGT, rows),
    }
    return DataProto.from_dict(tensors, non_tensors={"uid": np.array([f"prompt {b}" for b, _ in rows], dtype=object)})


def composed(recipe: Path, *overrides: str) -> Any:
    """verl's configuration from examples/verl with another recipe, as verl's own main makes it."""
    from hydra import compose, initialize_config_dir

    more = ["hydra.searchpath=[pkg://verl.trainer.config]", f"gtpo.recipe={recipe}", *overrides]
    with initialize_config_dir(config_dir=str(EXAMPLE), version_base=None):
        return compose(config_name="trainer", overrides=more)
