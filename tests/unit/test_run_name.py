"""What a run is called that nobody named, and what it may be called."""

from __future__ import annotations

import re
import time
from itertools import islice

import pytest

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import build_recipe, load_recipe
from gtpo_cli.runs.folder import default_names

NOW = time.strptime("2026-11-23 18:32", "%Y-%m-%d %H:%M")
PATH = "benchmark: local, path: "


@pytest.mark.parametrize(
    ("model", "data", "method", "expected"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "benchmark: gsm8k", "gtpo", "smollm2-135m-gsm8k-gtpo-"),
        ("u/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "benchmark: math", "dr_grpo", "meta-llama-3.1-8b-math-dr_grpo-"),
        ("builtin:tiny", "benchmark: arithmetic", "sft", "tiny-arithmetic-sft-"),
        ("/models/my model/", f"{PATH}data/My Sums.v2.jsonl", "gtpo", "my-model-my-sums.v2-gtpo-"),
        ("a/b", "dataset: openai/gsm-8.5K", "gtpo", "b-gsm-8.5k-gtpo-"),
        ("a/b", "mixture: {gsm8k: 1, math: 2}", "gtpo", "b-gsm8k-math-gtpo-"),
        ("模型", f"{PATH}'..'", "gtpo", "model-local-gtpo-"),
        ("a/Qwen2.5-7B-Chat-" + "x" * 99, f"{PATH}{'y' * 99}.csv", "grpo", f"qwen2.5-7b-{'x' * 12}-{'y' * 14}-grpo-"),
    ],
)  # fmt: skip
def test_the_name_says_model_data_method_and_time(
    model: str, data: str, method: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "localtime", lambda *_: NOW)
    monkeypatch.setattr(time, "strftime", lambda form, *_, strftime=time.strftime: strftime(form, NOW))
    settings = [f"model.name={model}", f"data={{{data}}}", f"objective.name={method}"]
    recipe = build_recipe({}, settings, where="test")
    names = list(islice(default_names(recipe), 120))
    assert names[:3] == [f"{expected}20261123-1832{end}" for end in ("", "-2", "-3")]
    assert len(set(names)) == 120
    assert all(len(name) <= 60 for name in names[:99])
    for name in names[:2]:  # the recipe that is saved with it must load
        assert load_recipe("tiny_arithmetic", [f"run_name={name}"]).run_name == name


@pytest.mark.parametrize("name", ["my run", "", "-x", ".x", "a/b", "..", "x" * 122, "x\n"])
def test_a_name_that_is_no_folder_is_refused_in_words(name: str) -> None:
    with pytest.raises(RecipeError, match=re.escape("run_name: expected at most 121 letters, digits, _, - and dots")):
        build_recipe({"run_name": name, "model": {"name": "m"}, "data": {"benchmark": "gsm8k"}}, where="test")
