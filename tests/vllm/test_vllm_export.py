"""A merged export answers through vLLM as through transformers: the same greedy tokens, asked as a chat.

`make test-vllm` runs this in an environment of its own; elsewhere it is skipped.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from exported_runs import QUESTIONS, export, greedy_by_transformers, moved_run, recipe_on
from policy_contract import save_model
from small_models import tiny_tokenizer

from gtpo_cli.data import PromptEncoder
from gtpo_cli.recipe import Recipe, build_recipe

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not here: make test-vllm")
COUNT = 40


def adapter_recipe(folder: Path) -> Recipe:
    """vLLM's attention on a CPU takes heads of 32 and more."""
    changes = {"initializer_range": 0.1, "num_attention_heads": 2, "num_key_value_heads": 1}
    base = save_model(folder, "llama", **changes)
    return recipe_on(base, system_prompt="Answer with a number.", backend="transformers")


def demo_recipe(folder: Path) -> Recipe:
    model = {"name": "builtin:tiny", "max_seq_length": 128}
    return build_recipe({"model": model, "data": {"benchmark": "arithmetic", "max_prompt_tokens": 64}}, where="test")


# float32 for random weights, whose likeliest tokens lie so close that 16 bits may swap them; vLLM's `auto` is not it
@pytest.mark.parametrize(
    ("recipe", "scale", "dtype"), [(adapter_recipe, 0.1, "float32"), (demo_recipe, 0.0, "bfloat16")]
)
def test_the_greedy_tokens_are_those_of_transformers(recipe: Any, scale: float, dtype: str, tmp_path: Path) -> None:
    import vllm

    run = moved_run(tmp_path / "run", recipe(tmp_path / "base"), scale=scale)
    done = export(run, dtype=dtype)
    assert json.loads((done.path / "config.json").read_text())["dtype"] == dtype
    expected = greedy_by_transformers(done.path, COUNT)
    engine = vllm.LLM(model=str(done.path), dtype=dtype, max_model_len=128, enforce_eager=True)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    params = vllm.SamplingParams(temperature=0.0, max_tokens=COUNT)
    answered = engine.chat(chats, params, use_tqdm=False)
    trained_on = PromptEncoder(tiny_tokenizer(), run.recipe().data.system_prompt)
    assert [tuple(answer.prompt_token_ids) for answer in answered] == [trained_on.encode(q) for q in QUESTIONS]
    found = [list(answer.outputs[0].token_ids) for answer in answered]
    assert found == expected
    assert len({tuple(row) for row in expected}) > 1  # not one answer to everything
