"""The loop's small parts: seeds, micro-batch size, optimiser and schedule."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from small_steps import recorded_gradients

from gtpo_cli.errors import ModelError, RecipeError
from gtpo_cli.objective import Rows, Unit
from gtpo_cli.policy.loading import nf4_config
from gtpo_cli.policy.packing import Budget, training_budget
from gtpo_cli.policy.sampler import collate
from gtpo_cli.recipe.schema import OptimizerRecipe
from gtpo_cli.seeds import derive_seed
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.types import Completion, Group, Problem


def test_seeds_differ_by_purpose_and_number_and_never_change() -> None:
    seeds = {derive_seed(s, purpose, n) for s in range(20) for purpose in ("sample", "order") for n in range(20)}
    assert len(seeds) == 800
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(3407, "sample", 1) == 4562397317613020605  # changing this changes every recorded run


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("CUDA error: out of memory")])
def test_out_of_memory_halves_the_rows_until_the_work_fits(error: RuntimeError) -> None:
    tried: list[int] = []
    notes: list[str] = []

    def work(rows: int) -> None:
        tried.append(rows)
        if rows > 3:
            raise error

    size = Budget(12, words="here", failure=ModelError("none fits"), warn=notes.append)
    size.run(work, at_most=100)
    size.run(work, at_most=100)
    size.run(work, at_most=2)
    assert tried == [12, 6, 3, 3, 2]
    assert size.limit == 3
    assert notes == [f"out of memory: {rows} completions at a time from now on here" for rows in (6, 3)]


def test_a_single_completion_that_does_not_fit_is_an_error() -> None:
    def work(rows: int) -> None:
        raise torch.OutOfMemoryError("no room")

    for setting in (1, "auto"):
        size = training_budget(setting, longest_row=10, warn=print)
        with pytest.raises(ModelError, match=r"single completion.*max_completion_tokens"):
            size.run(work, at_most=1)


def two_groups() -> Rows:
    """Two prompts of three tokens, with completions of 4 and 2, and of 3 and 1 tokens."""
    groups = []
    for lengths in ((4, 2), (3, 1)):
        completions = tuple(Completion((9,) * n, (0.0,) * n, "stop", "") for n in lengths)
        groups.append(Group(Problem("p", "q", "1"), (1, 5, 6), completions))
    return collate(groups)


def test_auto_counts_tokens_and_a_number_completions() -> None:
    sizes: list[list[int]] = []

    def work(limit: int, unit: Unit) -> None:
        sizes.append([len(index) for index in two_groups().split(limit, unit=unit)])
        if len(sizes) in (1, 2):
            raise torch.OutOfMemoryError("no room")

    notes: list[str] = []
    # 16 tokens with each prompt once: all of them fit into the limit; then half of the 22 of padded rows; then 9, where
    # (3 + 4 + 2) fill the first and (3 + 3 + 1) the second
    size = training_budget("auto", longest_row=9, warn=notes.append)
    size.run(lambda limit: work(limit, "tokens"), at_most=two_groups().size("tokens"))
    assert sizes == [[4], [2, 2], [2, 2]]
    assert notes == [f"out of memory: {n} tokens at a time from now on in training (same gradient)" for n in (11, 9)]
    assert str(size) == "9 tokens"
    sizes.append([])
    training_budget(3, longest_row=9, warn=print).run(lambda limit: work(limit, "completions"), at_most=4)
    assert sizes[-1] == [3, 1]


def updater(total: int = 10, **changes: object) -> tuple[torch.nn.Parameter, torch.nn.Parameter, Updater]:
    torch.manual_seed(0)
    matrix, vector = torch.nn.Parameter(torch.ones(4, 64)), torch.nn.Parameter(torch.ones(4))
    recipe = OptimizerRecipe(**({"name": "adamw", "learning_rate": 0.1, "betas": (0.9, 0.95)} | changes))
    return matrix, vector, Updater([matrix, vector], recipe, total_steps=total)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_schedule_warms_up_and_follows_its_formula(schedule: str) -> None:
    *_, update = updater(10, schedule=schedule, warmup_ratio=0.2)
    rates = []
    for _ in range(10):
        rates.append(update.learning_rate)
        update.update()
        update.advance_schedule()
    warm = [0.0, 0.05]
    after = {
        "cosine": [0.05 * (1 + math.cos(math.pi * k / 8)) for k in range(8)],
        "linear": [0.1 * (8 - k) / 8 for k in range(8)],
        "constant": [0.1] * 8,
    }[schedule]
    assert rates == pytest.approx(warm + after)


def test_gradients_are_clipped_to_the_norm_of_all_together() -> None:
    matrix, vector, update = updater(max_grad_norm=0.5, weight_decay=0.0, warmup_ratio=0.0)
    matrix.grad, vector.grad = torch.full((4, 64), 3.0), torch.full((4,), 4.0)
    gradients = recorded_gradients(update)
    norm = update.update()
    assert norm == pytest.approx(math.sqrt(256 * 9 + 4 * 16))
    clipped = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients[0]))
    assert clipped == pytest.approx(0.5, rel=1e-5)


def test_weight_decay_spares_vectors() -> None:
    matrix, vector, update = updater(weight_decay=0.5, warmup_ratio=0.0)
    matrix.grad, vector.grad = torch.zeros(4, 64), torch.zeros(4)
    update.update()
    torch.testing.assert_close(matrix.detach(), torch.full((4, 64), 1 - 0.1 * 0.5))
    torch.testing.assert_close(vector.detach(), torch.ones(4))


@pytest.mark.parametrize("name", ["adamw_8bit", "paged_adamw_8bit"])
def test_without_bitsandbytes_the_error_says_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "bitsandbytes" else find_spec(n, *a))
    with pytest.raises(RecipeError, match=r"optimizer\.name: .*_8bit needs bitsandbytes.*--set optimizer\.name=adamw"):
        updater(name=name)
    with pytest.raises(ModelError, match=r"load_in_4bit: true needs bitsandbytes.*load_in_4bit=false"):
        nf4_config(torch.float32)
