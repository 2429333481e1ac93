"""Each file of a run, a checkpoint and a model, changed in many ways: an error of ours in a line, or it holds.

Whatever a stranger's file holds, no reader lets another exception pass, none hangs, and nothing is written elsewhere.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mutations import mutate, restore
from typer.testing import CliRunner

from gtpo_cli.cli.app import app
from gtpo_cli.data import Prompt, PromptEncoder, PromptOrder
from gtpo_cli.errors import GtpoError
from gtpo_cli.evaluation.loading import Subject, load_frozen
from gtpo_cli.evaluation.store import find_evaluations
from gtpo_cli.machine.resolve import Parts, measuring_job
from gtpo_cli.pages.run_record import read_run
from gtpo_cli.policy import Policy
from gtpo_cli.policy.loading import read_model
from gtpo_cli.policy.packing import training_budget
from gtpo_cli.policy.transformers_policy import load_transformers_policy
from gtpo_cli.recipe import load_recipe
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.runs.checkpoints import CheckpointStore, choose_checkpoint, write_manifest
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.terminal.console import Console
from gtpo_cli.tools.report.comparison import compare, find_side
from gtpo_cli.tools.report.inspection import read_step
from gtpo_cli.tools.report.inspection_views import print_step, print_tokens
from gtpo_cli.tools.report.inspection_views import render as render_inspection
from gtpo_cli.tools.report.page import render as render_report
from gtpo_cli.tools.report.tables import benchmark_table, csv_text, markdown
from gtpo_cli.training.generations import Generations
from gtpo_cli.training.loop import LoopParts
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.setup import set_up

SEED = int(os.environ.get("GTPO_MUTATION_SEED", "16"))  # another one gives other mutations
SECONDS = 30.0  # of one case, on a machine that has other things to do
FEW, MANY = 60, pytest.param(560, marks=pytest.mark.long)  # cases of each kind of folder
EVERY_COMMAND = 120  # a case in so many goes through the commands as they are typed, charts and export included

Reader = Callable[[Path], object]


def look(run: Path, changed: Path | None = None) -> Iterator[Reader]:
    """Everything that reads a run folder, or this file of it, and loads no model."""
    part = None if changed is None else changed.parts[0]
    folder = RunFolder(run)

    def report(_: Path) -> None:
        records = [read_run(folder)]
        render_report(records, [])
        table = benchmark_table(records)
        markdown(table), csv_text(records)

    def inspect(_: Path) -> None:
        step = read_step(folder)
        render_inspection(step)
        console = Console(file=io.StringIO(), width=80)
        print_step(console, step, step.choose(None))
        print_tokens(console, step.groups[0], step.groups[0].completions[0], step.objective)

    yield report
    if part != "evaluation":
        yield inspect
        yield lambda _: (folder.recipe_to_run(), folder.initial_entropy())
    if part != "samples":
        yield lambda _: compare(find_side(f"{run}@base"), find_side(str(run)))
        yield lambda _: [stored.problems() for stored in find_evaluations(folder)]


def load_run(run: Path) -> Iterator[Reader]:
    """What loads a checkpoint: to evaluate it, and to go on from it."""
    folder = RunFolder(run)

    def load(_: Path) -> None:
        recipe, checkpoint = folder.recipe_to_run(), choose_checkpoint(folder)
        load_frozen(Subject("trained", measuring_job(recipe, checkpoint, temperature=1.0), checkpoint))

    def resume(_: Path) -> None:
        store = CheckpointStore(folder.checkpoints, keep_last=1)
        step, _problems = store.newest_intact()
        if step is None:
            return
        recipe, state = folder.recipe_to_run(), store.load_state(step)
        policy, prompts = unharmed(run)
        updater = Updater(policy.trainable_parameters(), recipe.optimizer, total_steps=10)
        parts: Any = SimpleNamespace(rollout=recipe.rollout, policy=policy)
        ahead = Generations(parts, prompts, PromptOrder(recipe, prompts), seed=recipe.seed)
        budget = training_budget(1, longest_row=1, warn=print)
        LoopParts(policy, updater, budget, store, None, ahead).restore(state.step)
        for parameter in policy.trainable_parameters():
            parameter.grad = torch.ones_like(parameter)
        updater.update()

    yield load
    yield resume


@functools.cache
def _loaded(recipe: Path) -> tuple[Policy, list[Prompt]]:
    job = Parts(load_recipe(recipe)).training_job()
    return set_up(job, say=lambda text: None).policy, job.data.prompts


def unharmed(run: Path) -> tuple[Policy, list[Prompt]]:
    """Policy and prompts of a run that nobody changed, loaded once: only what the checkpoint gives it is looked at."""
    return _loaded(run.parent.parent / "recipes" / f"{run.name}.yaml")


def load_model(model: Path) -> Iterator[Reader]:
    recipe = ModelRecipe(
        name=str(model), load_in_4bit=False, lora=None, max_seq_length=64, gradient_checkpointing=False
    )

    def load(_: Path) -> None:
        policy = load_transformers_policy(
            recipe, files=read_model(recipe, str(model)), temperature=1.0, with_reference=False, seed=1
        )
        PromptEncoder(policy.tokenizer, "Be brief.").encode("1 + 1?", at_most=64)

    yield load


def typed(run: Path) -> Iterator[Reader]:
    """The commands themselves, in this process."""
    out = run.parent / "out"
    for arguments in (
        ["report", str(run), "--out", str(out)], ["inspect", str(run)], ["inspect", str(run), "--html"],
        ["compare", f"{run}@base", str(run)], ["eval", str(run), "--pass-k", "2", "--limit", "2"],
        ["export", str(run), "--out", str(out / "export")], ["generate", str(run), "1+1?", "--max-tokens", "4"],
    ):  # fmt: skip

        def call(_: Path, arguments: list[str] = arguments) -> None:
            result = CliRunner().invoke(app, arguments)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception

        yield call


def troubles(folder: Path, readers: Iterator[Reader], what: str) -> Iterator[str]:
    """Of each reader that does not end in time with what it reads, or with an error of ours that is fit to be shown."""
    for reader in readers:
        faulthandler.dump_traceback_later(2 * SECONDS, exit=True, file=sys.__stderr__)
        started = time.perf_counter()
        said = None
        try:
            with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                reader(folder)
        except GtpoError as error:
            said = str(error)
        except BaseException as error:  # noqa: BLE001 - tokenizers panics with one
            frame = traceback.extract_tb(error.__traceback__)[-1]
            yield f"{what}: {type(error).__name__} {str(error)[:200]} at {frame.filename}:{frame.lineno}"
        finally:
            faulthandler.cancel_dump_traceback_later()
        if said is not None and not 10 < len(said) < 5000:
            yield f"{what}: {said[:300]}"
        if time.perf_counter() - started > SECONDS:
            yield f"{what}: took {time.perf_counter() - started:.0f} s"


def check_sound(folder: Path, readers: Iterator[Reader]) -> None:
    """What no one has touched is read without a word: else the readers would not come as far as the changed file."""
    for reader in readers:
        reader(folder)


def files_of(folder: Path, *patterns: str) -> list[Path]:
    found = {path.relative_to(folder) for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(path for path in found if path.name != ".lock")


def outside(folder: Path, inside: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if not path.is_relative_to(inside))


@pytest.mark.parametrize("cases", [FEW, MANY])
def test_run_folders(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: int) -> None:
    original, run = real / "runs" / "one", tmp_path / "runs" / "one"
    files = files_of(original, "*", "samples/*", "evaluation/*/*/*")
    assert len(files) >= 12
    restore(run, original)
    check_sound(run, look(run))
    check_sound(run, typed(run))
    found: list[str] = []
    for case in range(cases):
        rng = random.Random(f"{SEED} run {case}")
        restore(run, original)
        file = files[case % len(files)]
        what = f"case {case}, {file}, {mutate(run / file, rng)}"
        readers = typed(run) if case % EVERY_COMMAND == 1 else look(run, file)
        found += troubles(run, readers, what)
    written = outside(tmp_path, run)
    assert all(path.startswith((str(tmp_path / "runs" / "out"), str(tmp_path / "runs"))) for path in written)
    assert not found, f"{len(found)}:\n" + "\n".join(found)
    with capsys.disabled():
        print(f"\n{cases} mutated files of run folders held")


@pytest.mark.parametrize("name", ["one", "ad"])
@pytest.mark.parametrize("cases", [FEW, MANY])
def test_checkpoints(real: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], cases: int) -> None:
    """With a manifest that fits what the file holds now: whoever changes one can change the other."""
    original, run = real / "runs" / name, tmp_path / "runs" / name
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / f"{name}.yaml").write_bytes((original / "recipe.yaml").read_bytes())
    files = files_of(original, "checkpoints/*/*", "checkpoints/*/model/*")
    assert len(files) >= 7
    restore(run, original)
    check_sound(run, load_run(run))
    found: list[str] = []
    for case in range(cases):
        rng = random.Random(f"{SEED} {name} {case}")
        restore(run, original)
        file = run / files[case % len(files)]
        what = f"case {case}, {files[case % len(files)]}, {mutate(file, rng)}"
        if file.name != "manifest.json" and rng.random() < 0.9:
            step = next(parent for parent in file.parents if parent.name.startswith("step-"))
            (step / "manifest.json").unlink()
            write_manifest(step)
        found += troubles(run, load_run(run), what)
    assert not found, f"{len(found)}:\n" + "\n".join(found)
    with capsys.disabled():
        print(f"\n{cases} mutated files of checkpoints ({name}) held")


@pytest.mark.parametrize("cases", [FEW, MANY])
def test_model_folders(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: int) -> None:
    original, model = real / "model", tmp_path / "model"
    files = files_of(original, "*")
    assert len(files) >= 5
    restore(model, original)
    check_sound(model, load_model(model))
    found: list[str] = []
    for case in range(cases):
        rng = random.Random(f"{SEED} model {case}")
        restore(model, original)
        file = files[case % len(files)]
        what = f"case {case}, {file}, {mutate(model / file, rng)}"
        found += troubles(model, load_model(model), what)
    assert not found, f"{len(found)}:\n" + "\n".join(found)
    with capsys.disabled():
        print(f"\n{cases} mutated files of model folders held")
