"""What a recipe leaves open, on machines that are described here: a CPU, cards of several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from policy_contract import save_model

from gtpo_cli.cli.plan import _print_verdict
from gtpo_cli.job import Engines, TrainingJob
from gtpo_cli.machine.fit import make_plan
from gtpo_cli.machine.installed import GIB, find_gpu
from gtpo_cli.machine.memory import best_memory, memory_of
from gtpo_cli.machine.open_keys import (
    QUANTISES,
    Machine,
    close,
    for_measuring,
    machine_with,
)
from gtpo_cli.machine.shapes import PUBLISHED, ModelShape
from gtpo_cli.policy.engines import LIBRARIES
from gtpo_cli.recipe import Recipe, build_recipe, load_recipe
from gtpo_cli.recipe.schema import OPEN
from gtpo_cli.recipe.section import recipe_differences

SMOLLM = ModelShape(30, 576, 1536, 9, 3, 64, 49152, tied=True, positions=8192)  # 135 million weights
LLAMA = PUBLISHED["meta-llama/Llama-3.1-8B-Instruct"]
CPU = Machine(24 * GIB, None, frozenset({QUANTISES}))
TWO_LINES = {"model": {"name": "no/such-model"}, "data": {"benchmark": "gsm8k"}}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def recipe(*overrides: str) -> Recipe:
    return build_recipe(TWO_LINES, overrides, where="test")


def card(name: str) -> Machine:
    return machine_with(find_gpu(name))


def values(machine: Machine, shape: ModelShape | None, *overrides: str) -> tuple[Any, ...]:
    """4 bits, dtype, gradient checkpointing, optimiser, the engine's share."""
    found = close(recipe(*overrides), machine, shape).values
    assert tuple(found) in (OPEN, OPEN[:-2])  # the last two are vLLM's
    return tuple(found.values())[:5]


@pytest.mark.parametrize(
    ("machine", "shape", "expected"),
    [
        (CPU, SMOLLM, (False, "float32", True, "adamw", 0.4)),
        (CPU, LLAMA, (False, "float32", True, "adamw", 0.4)),
        (card("24GiB"), SMOLLM, (False, "bfloat16", True, "adamw", 0.4)),
        (card("80GiB"), SMOLLM, (False, "bfloat16", False, "adamw", 0.4)),
        (card("16GiB"), LLAMA, (True, "bfloat16", True, "paged_adamw_8bit", 0.75)),
        (card("24GiB"), LLAMA, (True, "bfloat16", True, "paged_adamw_8bit", 0.55)),
        (card("80GiB"), LLAMA, (True, "bfloat16", True, "paged_adamw_8bit", 0.4)),
        (card("t4"), LLAMA, (True, "float32", True, "paged_adamw_8bit", 0.4)),
        (card("80GiB")._replace(libraries=frozenset(LIBRARIES)), LLAMA, (False, "bfloat16", True, "adamw", 0.4)),
        (card("80GiB"), None, (True, "bfloat16", True, "paged_adamw_8bit", 0.4)),  # of unknown size: as a large one
    ],
)
def test_what_a_two_line_recipe_comes_to(machine: Machine, shape: ModelShape | None, expected: tuple[Any, ...]) -> None:
    assert values(machine, shape) == expected


@pytest.mark.parametrize(
    ("machine", "overrides", "expected"),
    [
        (card("80GiB"), (), (100, "never")),  # the probe's prompts
        (card("80GiB"), ("objective.initial_entropy=0.5",), (8, "never")),
        (card("80GiB"), ("rollout.prompts_per_step=1000", "rollout.gpu_memory_utilization=0.4"), (512, "never")),
        # beside the weights, the adapter and 1 GiB of work the cache has 6.25e9 bytes: 159 rows of 300 tokens
        (card("24GiB"), ("rollout.prompts_per_step=100", "rollout.gpu_memory_utilization=0.55"), (159, "always")),
        (card("24GiB"), (), (100, "always")),
        (card("t4"), (), None),  # on transformers
        (card("80GiB"), ("objective.name=sft", "objective.entropy_coef=0"), None),
        (CPU, (), None),
    ],
)
def test_how_many_at_once_and_whether_the_engine_sleeps(
    machine: Machine, overrides: tuple[str, ...], expected: tuple[int, str] | None
) -> None:
    found = close(recipe(*overrides), machine, LLAMA)
    keys = ("rollout.max_num_seqs", "rollout.standby")
    assert tuple(found.values[key] for key in keys if key in found.values) == (expected or ())
    assert not any(key in (found.words or "") for key in keys)


def test_what_a_recipe_says_stays_and_a_closed_recipe_is_closed_everywhere() -> None:
    said = [
        "model.load_in_4bit=false", "optimizer.name=adamw_8bit", "rollout.gpu_memory_utilization=0.7",
        "rollout.max_num_seqs=9", "rollout.standby=never",
    ]  # fmt: skip
    assert close(recipe(*said), card("24GiB"), LLAMA).values == {
        "model.dtype": "bfloat16", "model.gradient_checkpointing": True,
    }  # fmt: skip
    on_a_cpu = close(recipe(), CPU, SMOLLM).recipe
    on_a_card = close(on_a_cpu, card("80GiB"), LLAMA).recipe
    changed = {key for key, _ in recipe_differences([on_a_cpu, on_a_card])}
    assert changed <= {"rollout.max_num_seqs", "rollout.standby"}  # there was no vLLM
    assert close(on_a_cpu, CPU, SMOLLM).values == {}


def test_another_machine_decides_anew_what_changes_no_step() -> None:
    """A run of an 80 GB card goes on with 24 GB: its cache sleeps, and it computes in the same numbers."""
    asked = recipe("model.gradient_checkpointing=true", "rollout.max_num_seqs=50")
    nothing: Any = None
    large = close(asked, card("80GiB"), LLAMA)
    assert isinstance(large.engines, Engines)
    kept = TrainingJob(large.recipe, large.engines, nothing, nothing, nothing, (), large.values).kept
    small = close(kept, card("24GiB"), LLAMA).values
    share, standby = "rollout.gpu_memory_utilization", "rollout.standby"
    assert (large.values[share], large.values[standby]) == (0.4, "never")
    assert small == {share: 0.55, standby: "always"}
    assert (kept.model.dtype, kept.model.load_in_4bit, kept.optimizer.name) == ("bfloat16", True, "paged_adamw_8bit")
    assert (kept.model.gradient_checkpointing, kept.rollout.max_num_seqs) == (True, 50)  # as written
    assert kept.model.backend == kept.rollout.engine == "auto"


def test_an_evaluation_gives_a_shared_engine_what_training_needed() -> None:
    """Beside a policy of its own, or on a CPU, an engine's share stays: the weights it does not share need room."""
    own = recipe("rollout.gpu_memory_utilization=0.4")
    plain = recipe("rollout.gpu_memory_utilization=0.4", "model.backend=transformers", "rollout.engine=vllm")

    def measured(asked: Recipe, machine: Machine, shape: ModelShape | None = None, keep: Sequence[str] = ()) -> Recipe:
        engines = close(asked, machine, shape).engines
        assert isinstance(engines, Engines)
        return for_measuring(asked, machine, shape, engines, keep)

    on_a_card = measured(own, card("24GiB")).rollout
    assert (on_a_card.gpu_memory_utilization, on_a_card.max_num_seqs) == (0.85, "auto")  # a model of unknown size
    llama = ["model.name=meta-llama/Llama-3.1-8B-Instruct", "rollout.max_num_seqs=8"]  # 8 are for training
    # 0.85 of 23.2 GiB without 5.3 of weights and 1.6 of work hold 349 rows of 300 tokens of 128 KiB
    for size, sequences in (("24GiB", 349), ("80GiB", 512)):
        asked = close(recipe(*llama), card(size), LLAMA).recipe
        assert measured(asked, card(size), LLAMA).rollout.max_num_seqs == sequences
        sft = close(recipe(*llama, "objective.name=sft", "objective.entropy_coef=0"), card(size), LLAMA).recipe
        assert measured(sft, card(size), LLAMA).rollout.max_num_seqs == sequences  # its training samples nothing
    keep = ["rollout.gpu_memory_utilization", "rollout.max_num_seqs"]
    assert measured(own, card("24GiB"), keep=keep) == own
    assert measured(own, CPU) == own
    assert measured(plain, card("80GiB")).rollout.gpu_memory_utilization == 0.4


def test_a_plan_answers_for_the_card_that_is_asked_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    asked = recipe(f"model.name={name}")
    small, large = (make_plan(asked, gpu=size * GIB) for size in (16, 80))
    assert small.memory.parts[0].name == "base weights, 4-bit"
    assert "rollout.gpu_memory_utilization: 0.75" in small.notes[-1]
    assert "for a GPU of 80 GiB and 8,030.3 million weights" in large.notes[-1]
    t4 = make_plan(asked, gpu=find_gpu("t4"))
    assert "model.dtype: float32" in t4.notes[-1]
    assert make_plan(asked, gpu=None).gpu == 16 * GIB
    (tmp_path / "small").mkdir()
    own = make_plan(recipe(f"model.name={save_model(tmp_path / 'small')}"), gpu=24 * GIB)
    assert own.memory.parts[0].name == "base weights"
    assert own.recipe.model.load_in_4bit is False
    _print_verdict(replace(own, fits=False), gpu_given=True)
    assert "model.load_in_4bit: true would make the weights smaller" in capsys.readouterr().out


def test_the_engines_share_leaves_room_for_measuring_the_longest_row() -> None:
    """The paper's adapter: of 16 GiB the engine gets less."""
    asked, engines = load_recipe("llama8b_gsm8k"), Engines("unsloth", "vllm", True)

    def fits(size: int, share: float) -> bool:
        of = asked.with_values({"rollout.gpu_memory_utilization": share})
        need = partial(memory_of, of, LLAMA, engines, prompt_tokens=4000, measures=True)
        return best_memory(need, 1500, size * GIB) is not None

    for size, share in ((16, 0.8), (24, 0.85), (80, 0.85)):
        machine = machine_with(size * GIB)
        measured = for_measuring(close(asked, machine, LLAMA).recipe, machine, LLAMA, engines)
        assert measured.rollout.gpu_memory_utilization == share
        assert fits(size, share)
    assert not fits(16, 0.85)
