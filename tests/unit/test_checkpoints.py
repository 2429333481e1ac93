"""Checkpoints: exact random states, whole or absent, retention, and clear words for broken ones."""

from __future__ import annotations

import copy
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import random_model

from gtpo_cli.errors import CheckpointError
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe.schema import OptimizerRecipe
from gtpo_cli.runs.checkpoints import (
    CheckpointState,
    CheckpointStore,
    random_states,
    restore_random_states,
    write_manifest,
)
from gtpo_cli.training.optimizers import Updater


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    model, tokenizer = random_model()
    return TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=64)


def save(store: CheckpointStore, state: CheckpointState, policy: TransformersPolicy, training: dict[str, Any]) -> Path:
    return store.save(state, policy.save, policy.trainable_parameters(), training)


def training_of(store: CheckpointStore, step: int) -> dict[str, Any]:
    with store.training(step) as loaded:
        return loaded


def draws() -> list[float]:
    return [
        *torch.rand(3).tolist(), random.random(), random.gauss(0, 1), *np.random.rand(2), float(np.random.randn()),
    ]  # fmt: skip


def test_random_states_survive_a_file_exactly(tmp_path: Path) -> None:
    draws()  # leaves half a gaussian pair behind in numpy's and Python's generators
    torch.save({"random": random_states()}, tmp_path / "r.pt")
    expected = draws()
    draws()
    restore_random_states(torch.load(tmp_path / "r.pt", weights_only=True)["random"])
    assert draws() == expected


def see_gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> tuple[torch.Generator, ...]:
    """torch.cuda with this many devices, whose generators are a CPU's; everything above the generators is torch's."""
    generators = tuple(torch.Generator().manual_seed(100 + index) for index in range(number))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    for module in (torch.cuda, torch.cuda.random):
        monkeypatch.setattr(module, "device_count", lambda: number)
    monkeypatch.setattr(torch.cuda, "_initialized", number > 0)
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    return generators


@pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for GPUs where there are none")
@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (0, 0, None),
        (1, 1, None),
        (2, 2, None),
        (2, 1, "of 2 visible GPUs, but 1 is visible here: 1 restored;"),
        (2, 0, "of 2 visible GPUs, but 0 are visible here: none restored;"),
        (1, 3, "of 1 visible GPU, but 3 are visible here: 1 restored;"),
        (0, 1, "of 0 visible GPUs, but 1 is visible here: none restored;"),
    ],
)
def test_random_states_on_a_machine_with_another_number_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: int, now: int, words: str | None
) -> None:
    gpus = see_gpus(monkeypatch, then)
    for generator in gpus:
        torch.rand(3, generator=generator)
    torch.save({"random": random_states()}, tmp_path / "r.pt")
    expected = draws(), [torch.rand(3, generator=generator).tolist() for generator in gpus]
    draws()
    there = see_gpus(monkeypatch, now)
    untouched = [generator.get_state() for generator in there]
    said = restore_random_states(torch.load(tmp_path / "r.pt", weights_only=True)["random"])
    assert draws() == expected[0]
    both = min(then, now)
    assert [generator.get_state().tolist() for generator in there[both:]] == [
        state.tolist() for state in untouched[both:]
    ]
    assert [torch.rand(3, generator=generator).tolist() for generator in there[:both]] == expected[1][:both]
    assert said is None if words is None else said is not None and words in said


def test_save_and_load(tmp_path: Path, policy: TransformersPolicy) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep_last=2)
    state = CheckpointState(step=7, metrics_bytes=1234, best_step=5, best_value=0.5)
    folder = save(store, state, policy, {"updater": {"x": torch.arange(3)}})
    assert folder.name == "step-000007"
    assert store.steps() == [7]
    assert store.load_state(7) == state
    assert training_of(store, 7)["updater"]["x"].tolist() == [0, 1, 2]
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "model", "state.json", "training.pt"]
    store.check(7)


def test_retention_keeps_last_and_best(tmp_path: Path, policy: TransformersPolicy) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    for step in range(1, 6):
        save(store, CheckpointState(step, 0, best_step=2, best_value=1.0), policy, {})
    assert store.steps() == [2, 4, 5]


def test_a_write_that_fails_leaves_the_earlier_one_and_says_so(
    tmp_path: Path, policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, CheckpointState(1, 0), policy, {})

    def disk_full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", disk_full)
    with pytest.raises(CheckpointError, match=r"disk full: No space left on device.*earlier ones are untouched"):
        save(store, CheckpointState(2, 0), policy, {})
    assert store.steps() == [1]
    assert store.load_state(1).step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_compressed_state_is_refused_before_it_is_unpacked(tmp_path: Path, policy: TransformersPolicy) -> None:
    """torch compresses nothing; two gigabytes of zeros deflate to two megabytes."""
    store = saved(tmp_path / "c", policy, 1)
    file = store.path(1) / "training.pt"
    with zipfile.ZipFile(file) as archive:
        parts = [(part, archive.read(part)) for part in archive.infolist()]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, content in parts:
            archive.writestr(part.filename, bytes(2**20) if "/data/" in part.filename else content)
    with pytest.raises(CheckpointError, match=r"training\.pt: cannot be read \(ValueError: it is compressed"):
        training_of(store, 1)


class Danger:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("danger"),))


def test_no_pickle_runs(tmp_path: Path, policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = CheckpointStore(tmp_path / "c", keep_last=2)
    save(store, CheckpointState(1, 0), policy, {})
    file = store.path(1) / "training.pt"
    torch.save({"updater": Danger()}, file)
    with pytest.raises(CheckpointError):
        training_of(store, 1)
    file.write_bytes(pickle.dumps(Danger()))
    with pytest.raises(CheckpointError):
        training_of(store, 1)
    assert not (tmp_path / "danger").exists()


def saved(folder: Path, policy: TransformersPolicy, *steps: int) -> CheckpointStore:
    store = CheckpointStore(folder, keep_last=9)
    for step in steps:
        save(store, CheckpointState(step, 0), policy, {"updater": {"x": torch.arange(3)}})
    return store


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("name", "harm", "words"),
    [
        ("model/model.safetensors", truncate, r"has [\d,]+ bytes of [\d,]+"),
        ("model/model.safetensors", flip, "changed since it was written"),
        ("model/tokenizer.json", Path.unlink, "No such file or directory"),
        ("training.pt", flip, "changed since it was written"),
        ("state.json", Path.unlink, "No such file or directory"),
        ("manifest.json", truncate, "cannot be read"),
        ("manifest.json", Path.unlink, "cannot be read"),
    ],
)
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_found(
    tmp_path: Path, policy: TransformersPolicy, name: str, harm: Any, words: str
) -> None:
    store = saved(tmp_path, policy, 3, 6, 9)
    assert store.newest_intact() == (9, [])
    harm(store.path(9) / name)
    with pytest.raises(CheckpointError, match=rf"step-000009/{name}: damaged checkpoint: the file {words}"):
        store.check(9)
    step, (problem,) = store.newest_intact()
    assert step == 6
    assert f"step-000009/{name}" in problem


def test_damaged_checkpoints_are_set_aside_not_deleted(tmp_path: Path, policy: TransformersPolicy) -> None:
    store = saved(tmp_path, policy, 3, 6)
    truncate(store.path(6) / "training.pt")
    for number in (1, 2):
        (aside,) = store.set_aside(after=3)
        assert aside.name == f"damaged-step-000006-{number}"
        assert (aside / "training.pt").exists()
        assert store.steps() == [3]
        saved(tmp_path, policy, 6)
    assert store.newest_intact() == (6, [])


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    model, tokenizer = random_model()
    broken = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=64)
    store = saved(tmp_path, broken, 1)
    with torch.no_grad():
        next(broken.trainable_parameters())[0, 0] = torch.nan
    with pytest.raises(CheckpointError, match="step-000002: not saved, because the weights are not finite"):
        saved(tmp_path, broken, 2)
    assert store.newest_intact() == (1, [])


def test_a_manifest_cannot_lead_out_of_its_checkpoint(tmp_path: Path, policy: TransformersPolicy) -> None:
    store = saved(tmp_path, policy, 3)
    (tmp_path / "outside").write_bytes(b"x")
    manifest = store.path(3) / "manifest.json"
    entries = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(entries | {"../outside": {"bytes": 1, "sha256": "0"}}))
    with pytest.raises(CheckpointError, match="names a file outside of the checkpoint"):
        store.check(3)


# -- with a manifest that fits: whoever changes a file can change that too --------------------------------------------


def sign(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    write_manifest(folder)


def test_only_folders_that_a_run_made_are_checkpoints(tmp_path: Path, policy: TransformersPolicy) -> None:
    store = saved(tmp_path, policy, 3)
    for name in (
        "step-²",
        "step-00000²",
        "step-\u0660\u0660\u0660\u0660\u0660\u0665",
        "step-9",
        "step-" + "9" * 200,
        "step-x",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "step-000008").write_text("a file")
    assert store.steps() == [3]


Harm = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda state: state["optimizer"]["state"].pop(0), "it has moments for 5 parameters, but the run has 6"),
        (lambda state: state["optimizer"]["state"][0].update(exp_avg=torch.zeros(3)), "has another shape"),
        (lambda state: state["optimizer"]["state"][0]["exp_avg"].fill_(torch.nan), "that is not finite"),
        (lambda state: state["optimizer"]["state"][0]["exp_avg_sq"].fill_(-1), "a square, exp_avg_sq, below 0"),
        (lambda state: state["optimizer"]["state"][0].update(step=torch.inf), "parameter 0 has no valid number"),
        (lambda state: state["optimizer"]["state"][0].update(step=torch.zeros(0)), "parameter 0 has no valid number"),
        (lambda state: state["optimizer"]["state"][0].pop("exp_avg"), "parameter 0 lacks a moment"),
        (lambda state: state["optimizer"]["param_groups"].pop(), "it has other parameters"),
        (lambda state: state["optimizer"]["param_groups"][0].update(lr="1"), "learning rates are not numbers"),
        (lambda state: state["scheduler"].update(base_lrs=[torch.nan] * 2), "have one learning rate for each group"),
        (lambda state: state["scheduler"].update(last_epoch="x"), "its schedule has no valid number of steps"),
        (lambda state: state.pop("scheduler"), "KeyError: 'scheduler'"),
        (lambda state: state.update(optimizer=None), "TypeError"),
        (lambda state: state["optimizer"]["state"].update({0: 1}), "AttributeError"),
    ],
)  # fmt: skip
def test_an_optimiser_of_another_run_is_named(tmp_path: Path, harm: Harm, words: str) -> None:
    parameters = [torch.nn.Parameter(torch.ones(2, 3)) for _ in range(4)] + [
        torch.nn.Parameter(torch.ones(3)) for _ in range(2)
    ]
    updater = Updater(parameters, OptimizerRecipe(name="adamw"), total_steps=9)
    updater.update()
    updater.advance_schedule()
    state = copy.deepcopy(updater.state_dict())
    updater.load_state_dict(copy.deepcopy(state))
    harm(state)
    (tmp_path / "step-000003").mkdir()
    torch.save({"updater": state, "random": {}}, tmp_path / "step-000003" / "training.pt")
    store = CheckpointStore(tmp_path, keep_last=1)
    with (
        pytest.raises(CheckpointError, match=r"training\.pt: cannot be read \(it does not fit this run: ") as caught,
        store.training(3) as loaded,
    ):
        updater.load_state_dict(loaded["updater"])
    assert words in str(caught.value)
