"""What is evaluated: which checkpoint, and that its weights are those that were saved. Real models and files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import policy_of, subject_of
from torch import Tensor

from gtpo_cli.cli.evaluate import _find_subjects
from gtpo_cli.errors import CheckpointError
from gtpo_cli.evaluation import loading
from gtpo_cli.evaluation.loading import PolicyLoader, load_frozen
from gtpo_cli.job import Job
from gtpo_cli.policy import Policy, load_policy
from gtpo_cli.policy.sampler import collate
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.runs.checkpoints import Checkpoint, CheckpointState, CheckpointStore, choose_checkpoint, write_manifest
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.types import Completion, Group, Problem

LORA = {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"]}


def recipe_of(name: str = "builtin:tiny", *, lora: dict[str, Any] | None = None, kl_coef: float = 0.0) -> Recipe:
    model = {"name": name, "lora": lora, "load_in_4bit": False, "max_seq_length": 128}
    data = {"benchmark": "arithmetic", "max_prompt_tokens": 64}
    return build_recipe({"model": model, "data": data, "objective": {"kl_coef": kl_coef}}, where="test")


def trained_run(folder: Path, recipe: Recipe) -> tuple[RunFolder, Policy]:
    """A run with one checkpoint, of the recipe's policy after its weights were moved; and that policy."""
    run = RunFolder(folder)
    run.create(recipe)
    policy = policy_of(recipe)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    store = CheckpointStore(run.checkpoints, keep_last=1)
    store.save(CheckpointState(step=3, metrics_bytes=0), policy.save, policy.trainable_parameters(), {})
    return run, policy


@torch.no_grad()
def measured(policy: Policy) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of two fixed completions."""
    completions = tuple(Completion(ids, (0.0,) * len(ids), "length", "") for ids in ((9, 30, 31, 2), (40, 9)))
    logp, entropy = policy.token_logprobs(collate([Group(Problem("p", "q", "1"), (1, 4, 20, 21, 5), completions)]))
    return logp, entropy


def same(first: Iterable[Tensor], second: Iterable[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapter"])
def test_what_is_loaded_is_what_was_saved_bit_for_bit_and_not_the_base(
    tmp_path: Path, lora: dict[str, Any] | None
) -> None:
    recipe = recipe_of(lora=lora)
    run, saved = trained_run(tmp_path / "run", recipe)
    checkpoint = choose_checkpoint(run, "last")
    assert checkpoint.has_full_weights is (lora is None)
    trained, base = load_frozen(subject_of(run.recipe(), checkpoint)), load_frozen(subject_of(recipe))
    assert same(measured(trained), measured(saved))
    assert same(measured(base), measured(policy_of(recipe_of())))  # a fresh adapter is the base itself
    difference = (measured(trained)[0] - measured(base)[0]).abs()
    assert difference[0].min() > 1e-3
    assert difference[1, :2].min() > 1e-3


@pytest.mark.parametrize(("lora", "loads"), [(LORA, 1), (None, 2)], ids=["adapter", "all weights"])
def test_an_evaluation_loads_the_base_once_and_puts_the_adapter_on_it(
    tmp_path: Path, lora: dict[str, Any] | None, loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines that share their policy's weights cannot be in one process, and loading takes minutes."""
    recipe = recipe_of(lora=lora)
    run, saved = trained_run(tmp_path, recipe)
    loaded: list[str] = []

    def counted(job: Job, **options: Any) -> Policy:
        loaded.append(job.recipe.model.name)
        return load_policy(job, **options)

    monkeypatch.setattr(loading, "load_policy", counted)
    monkeypatch.setattr(loading, "about_compiling", lambda rollout, engines: "compiling takes minutes")
    said: list[str] = []
    loader = PolicyLoader(said.append)
    untrained, after = _find_subjects(recipe, run, choose_checkpoint(run), ["base", "step-3"], adapter=None, keep=())
    base = loader.load(untrained)
    assert loader.load(untrained) is base
    assert same(measured(base.policy), measured(policy_of(recipe_of())))
    trained = loader.load(after)
    assert same(measured(trained.policy), measured(saved))
    assert loader.load(after) is trained
    assert len(loaded) == loads
    assert said == ["loading builtin:tiny (transformers)", "compiling takes minutes"] * loads
    alone = PolicyLoader().load(after)
    assert same(measured(alone.policy), measured(saved))


# -- which checkpoint -------------------------------------------------------------------------------------------------


def run_with_steps(folder: Path, steps: list[int], best: int | None) -> RunFolder:
    run = RunFolder(folder)
    for step in steps:
        path = run.checkpoints / f"step-{step:06d}"
        path.mkdir(parents=True)
        # Older checkpoints knew an older best: the newest says which it is.
        state = {"step": step, "metrics_bytes": 0, "best_step": best if step == steps[-1] else steps[0]}
        (path / "state.json").write_text(json.dumps(state))
        write_manifest(path)
    return run


@pytest.mark.parametrize(
    ("which", "best", "step"),
    [
        ("best", 400, 400),  # as the newest records it
        ("best", None, 600),  # nothing was compared: the newest
        ("best", 300, 600),  # the best is not there any more: the newest
        ("last", 400, 600),
        (200, 400, 200),
        (600, 400, 600),
    ],
)
def test_choice(tmp_path: Path, which: str | int, best: int | None, step: int) -> None:
    run = run_with_steps(tmp_path, [200, 400, 600], best)
    assert choose_checkpoint(run, which) == Checkpoint(step, tmp_path / "checkpoints" / f"step-{step:06d}")


def test_best_needs_the_newest_checkpoint_which_knows_it(tmp_path: Path) -> None:
    """The one before may have known another best, so it does not take its place in silence."""
    run = run_with_steps(tmp_path, [200, 400, 600], 400)
    (run.checkpoints / "step-000600" / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"step-000600/state.json: damaged checkpoint: .*RUN:STEP \(200, 400\)"):
        choose_checkpoint(run)
    assert choose_checkpoint(run, 400).step == 400


@pytest.mark.parametrize("which", [500, 0, -1, "bets", "200"])
def test_a_step_that_is_not_there_lists_those_that_are(tmp_path: Path, which: str | int) -> None:
    run = run_with_steps(tmp_path, [200, 400], None)
    with pytest.raises(CheckpointError, match=f"no checkpoint {which}; choose best, last or one of the steps 200, 400"):
        choose_checkpoint(run, which)
