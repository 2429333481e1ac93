"""Evaluation during training: what it measures, that it changes nothing, and how keep_best uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import sampler_of

from gtpo_cli.data import PromptEncoder
from gtpo_cli.errors import DataError, GenerationError, RecipeError
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.loading import read_model
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.rewards import accuracy_reward, is_strict_format
from gtpo_cli.runs.checkpoints import CheckpointStore
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.seeds import derive_seed
from gtpo_cli.tasks.making import arithmetic_problems
from gtpo_cli.tracking import read_metrics
from gtpo_cli.training.held_out import HeldOut
from gtpo_cli.training.loop import train

EVALUATED = [
    "training={max_steps: 5, eval_every: 2, save_every: 2, keep_last: 9, keep_best: eval/arithmetic/accuracy_rate}",
    "evaluation={limit: 24, temperature: 0.8, max_completion_tokens: 40}",
    "objective={initial_entropy: 0.4}",
    "optimizer.learning_rate=0.003",  # so that two checkpoints differ in accuracy
]


def trained(folder: Path, *overrides: str) -> tuple[Recipe, RunFolder]:
    recipe = load_recipe("tiny_arithmetic", [*EVALUATED, *overrides])
    run = RunFolder(folder)
    run.create(recipe)
    train(Parts(recipe).training_job(), run, quiet=True)
    return recipe, run


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, RunFolder]:
    return trained(tmp_path_factory.mktemp("runs") / "evaluated")


def naive(recipe: Recipe, model: Path) -> dict[str, float]:
    """The same completions sampled and judged one by one from a checkpoint's weights."""
    from gtpo_cli.policy.transformers_policy import load_transformers_policy

    policy = load_transformers_policy(
        recipe.model, files=read_model(recipe.model, str(model)), temperature=1.0, with_reference=False, seed=0
    )
    encoder = PromptEncoder(policy.tokenizer, None)
    problems = arithmetic_problems(24, split="test", seed=recipe.seed)
    params = SamplingParams(0.8, max_completion_tokens=40, seed=derive_seed(recipe.seed, "held out arithmetic"))
    rows = sampler_of(policy, recipe).sample([encoder.encode(problem.question) for problem in problems], 1, params)
    texts = [row[0].text for row in rows]
    judged = [accuracy_reward(text, problem.gold) for text, problem in zip(texts, problems, strict=True)]
    return {
        "eval/arithmetic/accuracy_rate": sum(judged) / 240,
        "eval/arithmetic/strict_format_rate": sum(map(is_strict_format, texts)) / 24,
        "eval/arithmetic/length_mean": sum(len(row[0].token_ids) for row in rows) / 24,
        "eval/arithmetic/truncated_share": sum(row[0].truncated for row in rows) / 24,
    }


def test_the_figures_are_those_of_the_weights_after_the_step(evaluated: tuple[Recipe, RunFolder]) -> None:
    recipe, run = evaluated
    rows = read_metrics(run.metrics_file)
    assert [row["step"] for row in rows if "eval/arithmetic/accuracy_rate" in row] == [2, 4, 5]  # the last step too
    for step in (2, 4, 5):
        row = rows[step - 1]
        for name, value in naive(recipe, run.checkpoints / f"step-{step:06d}" / "model").items():
            assert row[name] == pytest.approx(value, abs=1e-12), name
        assert row["eval/arithmetic/entropy_mean"] > 0
        assert row["eval/time"] > 0


def test_keep_best_takes_the_best_held_out_figure(evaluated: tuple[Recipe, RunFolder]) -> None:
    _, run = evaluated
    rates = {
        int(row["step"]): row["eval/arithmetic/accuracy_rate"]
        for row in read_metrics(run.metrics_file)
        if "eval/arithmetic/accuracy_rate" in row
    }
    state = CheckpointStore(run.checkpoints, keep_last=9).load_state(5)
    assert len(set(rates.values())) > 1
    assert state.best_value == max(rates.values())
    assert state.best_step == max(step for step, rate in rates.items() if rate == max(rates.values()))


def comparable(run: RunFolder) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/", "memory/", "eval/"))} for row in rows]


def test_evaluating_changes_nothing_in_training(evaluated: tuple[Recipe, RunFolder], tmp_path: Path) -> None:
    off = ["training.eval_every=null", "training.keep_best=train/accuracy_rate"]
    _, run = trained(tmp_path / "plain", *off)
    assert comparable(run) == comparable(evaluated[1])
    for step in (2, 5):
        weights = [
            (folder.checkpoints / f"step-{step:06d}" / "model" / "model.safetensors").read_bytes()
            for folder in (run, evaluated[1])
        ]
        assert weights[0] == weights[1]


def test_what_cannot_be_measured_is_said_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(json.dumps({"question": "1+1", "answer": "2"}) + "\n")
    data = f"data={{benchmark: local, path: {tmp_path / 'mine.jsonl'}}}"
    said = r"training\.eval_every: there is nothing to evaluate on: .*gtpo eval --data-path"
    with pytest.raises(DataError, match=said):
        trained(tmp_path / "run", data, "evaluation.benchmarks=[local]", "training.keep_best=eval/local/accuracy_rate")
    with pytest.raises(RecipeError, match=r"eval/gsm8k/accuracy_rate is not measured; .* has only arithmetic"):
        trained(tmp_path / "other", "training.keep_best=eval/gsm8k/accuracy_rate")


def test_a_step_is_kept_where_the_engine_finds_no_room_for_its_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update is made: the step is logged without `eval/`, saved, and the run goes on from it."""

    def no_room(*_: Any) -> None:
        raise GenerationError("the engine did not wake")

    with monkeypatch.context() as stub:
        stub.setattr(HeldOut, "evaluate", no_room)
        with pytest.raises(GenerationError, match="did not wake") as caught:
            trained(tmp_path / "run", "training.save_every=100")
    assert caught.value.__notes__ == [f"step 2 is saved: gtpo train --resume {tmp_path / 'run'}"]
    run = RunFolder(tmp_path / "run")
    rows = read_metrics(run.metrics_file)
    assert [row["step"] for row in rows] == [1, 2]
    assert not [name for name in rows[-1] if name.startswith("eval/")]
    assert CheckpointStore(run.checkpoints, keep_last=9).load_state(2).best_step is None
    assert train(Parts(run.recipe()).training_job(), run, resume=True, quiet=True).step == 5
    assert [row["step"] for row in read_metrics(run.metrics_file) if "eval/time" in row] == [4, 5]
