"""SFT: cross-entropy on the reference completion only, against torch's own cross-entropy on full logits."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from small_models import random_model
from small_steps import recorded_gradients

from gtpo_cli.data.preparation import drop_long_references
from gtpo_cli.data.prompts import PromptEncoder
from gtpo_cli.errors import DataError
from gtpo_cli.policy.packing import training_budget
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe.schema import OptimizerRecipe
from gtpo_cli.rewards import Tags
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.sft import sft_step
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Problem

PROMPTS = [
    (Problem("a", "1+1", "2", "one and one"), (1, 4, 9, 80, 9, 5)),
    (Problem("b", "7", "7", ""), (1, 4, 15, 5)),
    (Problem("c", "12-4", "8", "twelve take away four"), (1, 4, 9, 10, 82, 12, 5)),
]


@pytest.mark.parametrize("micro", [1, 8])
def test_loss_and_gradient_equal_torchs_cross_entropy(micro: int) -> None:
    model, tokenizer = random_model()
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=256)
    recipe = OptimizerRecipe(name="adamw", max_grad_norm=1e6, warmup_ratio=0.0, learning_rate=1e-4)
    updater = Updater(policy.trainable_parameters(), recipe, total_steps=3)
    before = copy.deepcopy(model)
    size = training_budget(micro, longest_row=100, warn=print)
    gradients = recorded_gradients(updater)
    metrics = sft_step(policy, updater, size, PROMPTS, PromptEncoder(tokenizer, None), clock=Stopwatch())

    logits, targets = [], []
    for problem, prompt in PROMPTS:
        text = f"<reasoning>{problem.solution}</reasoning><answer>{problem.gold}</answer>"
        completion = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        row = torch.tensor([[*prompt, *completion]])
        logits.append(before(input_ids=row).logits[0, len(prompt) - 1 : -1])
        targets.append(torch.tensor(completion))
    loss = torch.nn.functional.cross_entropy(torch.cat(logits), torch.cat(targets))
    loss.backward()
    assert metrics["optim/loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert metrics["completions/length_mean"] == pytest.approx(sum(map(len, targets)) / 3)
    for ours, theirs in zip(gradients[0], sorted(before.parameters(), key=lambda p: p.ndim < 2), strict=True):
        torch.testing.assert_close(ours, theirs.grad, rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in policy.trainable_parameters())


def test_without_a_reasoning_tag_no_worked_solution_is_needed() -> None:
    encoder = PromptEncoder(random_model()[1], None, tags=Tags(reasoning=None, answer="json"))
    prompts = [(Problem("d", "q", "1", None), (1, 2))]
    kept, dropped = drop_long_references(prompts, encoder, max_completion_tokens=30, max_seq_length=64)
    assert (len(kept), dropped) == (1, [])
    assert encoder.reference(prompts[0][0]).text == "<json>1</json>"


def test_problems_without_a_worked_solution_are_named_once_with_the_two_ways_out(tmp_path: Path) -> None:
    from gtpo_cli.data.preparation import prepare
    from gtpo_cli.policy.loading import load_tokenizer
    from gtpo_cli.policy.tiny import resolve_name
    from gtpo_cli.recipe import build_recipe

    file = tmp_path / "own.jsonl"
    file.write_text('{"question": "1+2", "answer": "3"}\n{"question": "1+3", "answer": "4"}\n')
    keys = {"model": {"name": "builtin:tiny"}, "data": {"path": str(file)}, "objective": {"name": "sft"}}
    recipe = build_recipe(keys, where="here")
    with pytest.raises(DataError, match=r"data\.columns\.solution.*rewards\.format\.tags\.reasoning: null") as error:
        prepare(recipe, PromptEncoder(load_tokenizer(recipe.model, resolve_name("builtin:tiny")), None), 512)
    assert "own.jsonl:2" not in str(error.value)
