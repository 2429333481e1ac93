"""The one preparation: which prompts a run has, which of them each step takes, and what is counted beforehand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from gtpo_cli.data import Prepared, PromptOrder, prepare
from gtpo_cli.data.prompts import PromptEncoder
from gtpo_cli.policy.loading import read_model
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.types import Problem

DOCUMENT = {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}}


def order(count: int, *overrides: str, full_steps: bool = False) -> PromptOrder:
    prompts = [(Problem(str(i), "q", "1"), (1,)) for i in range(count)]
    return PromptOrder(build_recipe(DOCUMENT, overrides, where="r"), prompts, full_steps=full_steps)


def prepared(recipe: Recipe) -> Prepared:
    model = read_model(recipe.model)
    return prepare(recipe, PromptEncoder(model.tokenizer, recipe.data.system_prompt), model.context)


def ids(order: PromptOrder, step: int) -> list[str]:
    return [problem.id for problem, _ in order.step(step)]


def test_each_epoch_has_every_prompt_once_in_a_new_order() -> None:
    plan = order(10, "rollout.prompts_per_step=4", "training.epochs=2")
    assert (plan.steps_per_epoch, plan.total_steps) == (3, 6)
    epochs = [[i for step in range(start, start + 3) for i in ids(plan, step)] for start in (1, 4)]
    assert [len(ids(plan, step)) for step in range(1, 7)] == [4, 4, 2, 4, 4, 2]
    for epoch in epochs:
        assert Counter(epoch) == Counter(map(str, range(10)))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(("count", "steps"), [(10, 6), (10, 7), (10, 2), (8, 5), (3, 4), (1, 9)])
def test_prompts_are_counted_without_going_through_the_steps(count: int, steps: int) -> None:
    plan = order(count, "rollout.prompts_per_step=4", f"training.max_steps={steps}")
    assert plan.total_prompts == sum(len(plan.step(number)) for number in range(1, steps + 1))


def test_sft_plans_the_references_that_fit_once_each(tmp_path: Path) -> None:
    rows = [{"question": "1+1", "answer": "2", "solution": "1+1=2"}, {"question": "1+2", "answer": "3"},
            {"question": "1+3", "answer": "4", "solution": "x" * 400}]  # fmt: skip
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = DOCUMENT | {
        "data": {"benchmark": "local", "path": str(tmp_path / "mine.jsonl"), "columns": {"solution": "solution"}}
    }
    overrides = ["objective.name=sft", "rollout={max_completion_tokens: 100, prompts_per_step: 2, group_size: 4}"]
    data = prepared(build_recipe(document, [*overrides, "training.max_steps=5"], where="r"))
    assert ([problem.question for problem, _ in data.prompts], data.dropped) == (["1+1"], 2)
    assert (data.order.total_steps, data.sampled, data.imitated) == (5, 0, 5)
    assert [note.partition(":")[0] for note in data.notes] == [
        "dropped 1 row (1 no column solution)", "dropped 1 row (1 reference too long)",
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "epochs"), [(10, 2), (8, 2), (3, 2), (5, 1)])
def test_full_steps_are_those_of_the_whole_order_but_the_smaller_ones(count: int, epochs: int) -> None:
    settings = ["rollout.prompts_per_step=4", f"training.epochs={epochs}"]
    whole, full = order(count, *settings), order(count, *settings, full_steps=True)
    size = min(count, 4)
    expected = [step for n in range(1, whole.total_steps + 1) if len(step := ids(whole, n)) == size]
    assert [ids(full, n) for n in range(1, full.total_steps + 1)] == expected
    assert full.total_prompts == size * len(expected)
    assert [str(number) for number in full.numbers(2)] == ids(full, 2)


def test_without_shuffle_prompts_come_as_in_the_file_and_max_steps_goes_round() -> None:
    plan = order(3, "data.shuffle=false", "training.max_steps=5", "rollout.prompts_per_step=1")
    assert [ids(plan, step) for step in range(1, 6)] == [["0"], ["1"], ["2"], ["0"], ["1"]]
    assert plan.total_steps == 5


def test_the_seed_decides_the_order() -> None:
    assert ids(order(50, "seed=1"), 1) != ids(order(50, "seed=2"), 1)


def test_only_who_samples_again_says_so() -> None:
    recipe = build_recipe(DOCUMENT, ["objective.name=dapo"], where="r")
    model = read_model(recipe.model)
    encoder, context = PromptEncoder(model.tokenizer, recipe.data.system_prompt), model.context
    said = "groups without reward spread are sampled again, 3 times at most (objective.resample)"
    assert said in prepare(recipe, encoder, context).notes
    assert said not in prepare(recipe, encoder, context, full_steps=True).notes  # TRL


def test_a_context_that_cuts_the_longest_completion_is_told() -> None:
    fits = ["data.max_prompt_tokens=64", "rollout.max_completion_tokens=64", "model.max_seq_length=500"]
    made = prepared(build_recipe(DOCUMENT, fits, where="r"))
    longest = made.longest_prompt
    assert made.notes == []
    (note,) = prepared(build_recipe(DOCUMENT, [*fits, f"model.max_seq_length={longest + 63}"], where="r")).notes
    assert note.startswith(f"the longest prompt has {longest} tokens and leaves 63 to its completion, not 64 (rollout.")
    assert note.endswith(f"both together are at most {longest + 63} (model.max_seq_length)")
    assert prepared(build_recipe(DOCUMENT, [*fits, f"model.max_seq_length={longest + 64}"], where="r")).notes == []
