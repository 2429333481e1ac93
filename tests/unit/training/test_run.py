"""What a run does on the guard's word and on steps that cannot be taken: real policy, optimiser and checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import comparable, contents, metrics
from small_models import random_model

from gtpo_cli.errors import GtpoError
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import CheckpointState, CheckpointStore
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.training import run as module
from gtpo_cli.training.generations import Generations
from gtpo_cli.training.loop import LoopParts, train
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.run import Stop, newest_state, open_run
from gtpo_cli.training.start import record_facts
from gtpo_cli.training.step import StepSamples

GOOD = {
    "entropy/mean": 0.3, "train/strict_format_rate": 0.9, "train/accuracy_rate": 0.4, "completions/length_mean": 50.0,
    "completions/truncated_share": 0.05, "groups/uninformative_share": 0.3, "optim/skipped": 0.0,
}  # fmt: skip
BAD = GOOD | {"completions/truncated_share": 0.9}
SKIPPED = {"optim/skipped": 1.0}


class FedRun:
    """A run of two-step windows with a checkpoint after every second step, fed with made-up metrics."""

    def __init__(self, stack: ExitStack, folder: Path, *, resume: bool = False, **guard: Any) -> None:
        model, tokenizer = random_model()
        self.policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=64)
        settings = ", ".join(f"{name}: {value}" for name, value in ({"window": 2} | guard).items())
        recipe = load_recipe("tiny_arithmetic", [
            "optimizer={name: adamw, learning_rate: 0.01, warmup_ratio: 0.0, schedule: cosine}",
            "tracking.wandb.mode=off", "training.keep_best=null", "training.keep_last=9", "training.save_every=2",
            f"training.guard={{{settings}}}",
        ])  # fmt: skip
        folder.mkdir(exist_ok=True)
        self.folder, store = folder, CheckpointStore(folder / "checkpoints", keep_last=9)
        self.updater = Updater(self.policy.trainable_parameters(), recipe.optimizer, total_steps=40)
        self.ahead = Generations(None, [], None, seed=0)  # type: ignore[arg-type]  # nothing is sampled here
        parts = LoopParts(self.policy, self.updater, None, store, None, self.ahead)  # type: ignore[arg-type]
        state = newest_state(recipe, RunFolder(folder), print) if resume else None
        if state is not None:
            parts.restore(state.step)
        self.number = 0 if state is None else state.step
        self.weights_at: dict[int, torch.Tensor] = {}
        of = RunFolder(folder)
        opened = open_run(recipe, of, parts, state=state, total_steps=40, initial_entropy=None, quiet=True)
        self.run = stack.enter_context(opened)

    def step(self, row: dict[str, float]) -> Stop | None:
        """One update with random gradients, then what the metrics call for."""
        self.number += 1
        torch.manual_seed(self.number)
        for parameter in self.policy.trainable_parameters():
            parameter.grad = torch.randn(parameter.shape)
        self.updater.update()
        self.updater.advance_schedule()
        stop = self.run.finish_step(self.number, dict(row))
        self.weights_at[self.number] = self.weights()
        return stop

    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.policy.trainable_parameters()])


Fed = Callable[..., FedRun]


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fed]:
    """Makes runs in folders below tmp_path, of the name given."""
    monkeypatch.setattr(module, "MAX_BAD_STEPS", 3)
    with ExitStack() as stack:
        yield lambda name="run", **settings: FedRun(stack, tmp_path / name, **settings)


def test_a_warning_lets_the_run_go_on(fed: Fed, capsys: pytest.CaptureFixture[str]) -> None:
    run = fed()
    assert [run.step(row) for row in [GOOD] * 3 + [BAD] * 4] == [None] * 7
    assert [row["guard/alarms"] for row in metrics(run.folder)] == [0, 0, 0, 1, 0, 1, 0]
    warning = "warning: step 4: policy collapse: over the last 2 steps 0.48 of the completions reach the"
    assert capsys.readouterr().out.startswith(warning)


NEVER = GOOD | {"train/accuracy_rate": 0.0, "groups/uninformative_share": 1.0}


def test_a_run_that_never_had_a_signal_is_told_so_once_also_over_a_resume(
    fed: Fed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fed(window=12)
    assert [run.step(NEVER) for _ in range(14)] == [None] * 14
    assert [row["guard/alarms"] for row in metrics(run.folder)] == [0] * 9 + [1] + [0] * 4
    said = capsys.readouterr().out
    assert said.count("no learning signal") == 1
    assert said.startswith("warning: step 10: no learning signal: in the first 10 steps all completions earned the")
    assert "policy collapse" not in said
    shutil.copytree(run.folder, tmp_path / "resumed")
    resumed = fed("resumed", resume=True, window=12)
    for one in (run, resumed):
        for _ in range(12):
            assert one.step(NEVER) is None
    assert capsys.readouterr().out == ""
    assert metrics(run.folder) == metrics(resumed.folder)


@pytest.mark.parametrize("action", ["stop", "rollback"])
def test_a_run_that_never_had_a_signal_is_stopped_in_the_second_window(fed: Fed, action: str) -> None:
    run = fed(window=12, action=action)
    stops = [run.step(NEVER) for _ in range(13)]
    assert stops[:12] == [None] * 12
    assert stops[12] is not None
    assert stops[12].for_good
    assert stops[12].reason.startswith("no learning signal: over the last 12 steps, as before, all completions earned")
    with pytest.raises(GtpoError, match=r"step 13 \(no learning signal: .*\); start a new run, or continue with these"):
        fed(resume=True, window=12, action=action)


def test_stop_ends_it_with_what_was_seen(fed: Fed) -> None:
    run = fed(action="stop")
    stops = [run.step(row) for row in [GOOD] * 3 + [BAD]]
    assert stops[:3] == [None] * 3
    assert stops[3] is not None
    assert stops[3].save
    assert stops[3].reason.startswith("policy collapse: over the last 2 steps 0.48 of the completions")
    assert run.run.stopped == run.run.state.stopped == stops[3].reason
    assert run.run.state.step == 4


@pytest.mark.parametrize("best", [2, None])
def test_rollback_takes_the_best_weights_and_half_the_rate(
    fed: Fed, capsys: pytest.CaptureFixture[str], best: int | None
) -> None:
    run = fed(action="rollback")
    for _ in range(5):
        run.step(GOOD)
    run.run.state = CheckpointState(4, 0, best, None)
    plain = fed("plain")
    for _ in range(6):
        plain.step(GOOD)
    run.ahead._steps[7] = StepSamples([])
    assert run.step(BAD) is None
    assert not run.ahead._steps  # what was sampled for it is dropped
    back = 2 if best == 2 else 4  # without a best one: the newest from before the window of the alarm
    assert torch.equal(run.weights(), run.weights_at[back])
    assert run.updater.learning_rate == pytest.approx(plain.updater.learning_rate / 2)
    warning = capsys.readouterr().out.splitlines()[-1]
    assert warning.startswith(f"warning: step 6: went back to the weights of step {back}; the learning rate is")
    assert warning.endswith("(rollback 1 of 2)")
    moments = run.updater.optimizer.state_dict()["state"][0]
    with run.run.store.training(back) as saved:
        assert torch.equal(moments["exp_avg"], saved["updater"]["optimizer"]["state"][0]["exp_avg"])
    run.step(GOOD)
    plain.step(GOOD)
    assert run.updater.learning_rate == pytest.approx(plain.updater.learning_rate / 2)  # the schedule went on


def test_without_a_checkpoint_from_before_the_run_stops(fed: Fed) -> None:
    run = fed(action="rollback")
    run.step(GOOD)
    run.step(GOOD)
    stop = run.step(BAD | {"completions/truncated_share": 1.0})
    assert stop is not None
    assert "there is no earlier checkpoint to go back to" in stop.reason


def test_too_many_bad_steps_in_a_row_stop_the_run_without_saving(fed: Fed) -> None:
    run = fed()
    assert [run.step(row) for row in [GOOD, SKIPPED, SKIPPED, GOOD, SKIPPED, SKIPPED]] == [None] * 6
    stop = run.step(SKIPPED)
    assert stop is not None
    assert not stop.save
    assert stop.reason.startswith("3 steps in a row made no update")
    assert run.run.store.steps() == [2, 4, 6]


def trained(folder: Path, *changes: str) -> RunFolder:
    run = RunFolder(folder)
    small = ["rollout.prompts_per_step=2", "rollout.group_size=4", "rollout.max_completion_tokens=16",
             "objective.initial_entropy=0.2", "training.max_steps=6", "training.save_every=4", "data.limit=64",
             "tracking.wandb.mode=off"]  # fmt: skip
    run.create(load_recipe("tiny_arithmetic", [*small, *changes]))
    train(Parts(run.recipe()).training_job(), run, quiet=True)
    return run


class EngineDeadError(Exception):
    """As of an engine in a process of its own, which has ended."""


@pytest.mark.parametrize(
    ("where", "K"),
    [("sampler", 3), ("score", 1), ("forward", 2)],
)
def test_the_steps_before_an_error_are_saved_and_a_resume_equals_an_undisturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, K: int
) -> None:
    more = f"rollout.steps_per_generation={K}"
    whole = trained(tmp_path / "whole", more)
    owner, name, count = {
        "sampler": (TransformersSampler, "sample", 1),  # the first generation
        "score": (Scorer, "score_groups", 2),
        "forward": (TransformersPolicy, "token_logprobs", 10_000),
    }[where]
    original, calls = getattr(owner, name), 0

    def fails(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        step = len(metrics(tmp_path / "cut")) if (tmp_path / "cut/metrics.jsonl").exists() else 0
        if calls > count or (where == "forward" and step == 2 and torch.is_grad_enabled()):
            raise EngineDeadError("gone")
        return original(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        with pytest.raises(EngineDeadError, match="gone") as caught:
            trained(tmp_path / "cut", more)
    run = RunFolder(tmp_path / "cut")
    made = 3 if where == "sampler" and K == 3 else 2
    assert caught.value.__notes__ == [f"step {made} is saved: gtpo train --resume {run.path}"]
    assert [row["step"] for row in metrics(run.path)] == list(range(1, made + 1))
    assert train(Parts(run.recipe()).training_job(), run, resume=True, quiet=True).step == 6
    assert comparable(run.path) == comparable(whole.path)
    assert contents(run.path) == contents(whole.path)


def test_weights_between_two_steps_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, updates = Updater.update, 0

    def half_done(self: Updater) -> float:
        nonlocal updates
        updates += 1
        norm = original(self)
        if updates == 3:
            raise EngineDeadError("after the weights moved")
        return norm

    monkeypatch.setattr(Updater, "update", half_done)
    with pytest.raises(EngineDeadError) as caught:
        trained(tmp_path / "run")
    assert not getattr(caught.value, "__notes__", [])
    assert list((tmp_path / "run/checkpoints").glob("step-*")) == []


def test_a_resume_on_a_machine_that_multiplies_otherwise_says_so(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "model.dtype=bfloat16")
    here = run.environment().products
    assert here in ("bfloat16", "float32")  # by the processor
    job = Parts(run.recipe()).training_job()
    for recorded in (here, "float64"):
        file = run.environment_file
        file.write_text(json.dumps(json.loads(file.read_text()) | {"products": recorded}))
        lines: list[str] = []
        train(job, run, resume=True, quiet=True, say=lines.append)
        told = [line for line in lines if line.startswith("this machine multiplies in")]
        assert told == (
            [f"this machine multiplies in {here}, and the one before in float64 (environment.json): steps differ by "
             "rounding from those that the run would have taken there"] if recorded != here else []
        )  # fmt: skip
        assert run.environment().products == here


def test_a_base_that_moved_on_the_hub_is_said(tmp_path: Path) -> None:
    """A change of the page moves the commit too, so it is no error."""
    run, said = RunFolder(tmp_path), list[str]()
    for commit in ("aaa", "aaa", "bbb", "bbb", "aaa"):
        record_facts(run, {"model": "o/n", "model_commit": commit, "products": "float32"}, said.append)
    assert (
        said
        == [
            "o/n is at commit bbb now, and was at aaa at the first start; if its weights changed, stop, and write "
            f"model.revision: aaa into {tmp_path}/recipe.yaml"
        ]
        * 2
    )
