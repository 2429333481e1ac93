"""What `auto` means, on machines with and without a GPU and the libraries."""

from __future__ import annotations

from typing import Any

import pytest

from gtpo_cli.errors import ModelError
from gtpo_cli.models import Engines, choose_engines
from gtpo_cli.recipe import Recipe, build_recipe

BOTH = {"unsloth", "vllm"}
TRANSFORMERS = ("transformers", "transformers", False)
SHARED = ("unsloth", "vllm", True)


def recipe(model: dict[str, Any], rollout: dict[str, Any]) -> Recipe:
    settings = {"name": "some/model"} | model
    return build_recipe({"model": settings, "data": {"benchmark": "gsm8k"}, "rollout": rollout}, where="test")


@pytest.mark.parametrize(
    ("gpu", "installed", "model", "rollout", "expected"),
    [
        (True, BOTH, {}, {}, SHARED),
        (True, BOTH, {"backend": "unsloth"}, {}, SHARED),
        (True, set(), {"backend": "unsloth"}, {}, SHARED),  # asked for: loading says what is missing
        (True, {"unsloth"}, {}, {}, TRANSFORMERS),
        (True, {"vllm"}, {}, {}, TRANSFORMERS),
        (True, BOTH, {}, {"engine": "transformers"}, TRANSFORMERS),
        (True, BOTH, {"backend": "transformers"}, {}, TRANSFORMERS),
        (True, BOTH, {"backend": "transformers"}, {"engine": "vllm"}, ("transformers", "vllm", False)),
        (True, BOTH, {"lora": None, "load_in_4bit": False}, {}, TRANSFORMERS),
        (True, BOTH, {"name": "builtin:tiny", "lora": None, "load_in_4bit": False}, {}, TRANSFORMERS),
        (False, BOTH, {}, {}, TRANSFORMERS),
        (False, BOTH, {"backend": "unsloth"}, {}, ("unsloth", "transformers", False)),
        (False, BOTH, {"backend": "unsloth"}, {"engine": "vllm"}, ("unsloth", "vllm", False)),
    ],
)
def test_what_is_chosen(
    gpu: bool,
    installed: set[str],
    model: dict[str, Any],
    rollout: dict[str, Any],
    expected: tuple[str, str, bool],
) -> None:
    assert choose_engines(recipe(model, rollout), gpu=gpu, installed=installed) == expected


def test_unsloth_on_a_gpu_samples_through_vllm() -> None:
    with pytest.raises(ModelError, match=r"rollout\.engine: transformers cannot sample .* use engine: vllm"):
        choose_engines(recipe({"backend": "unsloth"}, {"engine": "transformers"}), gpu=True, installed=BOTH)


def test_how_it_reads() -> None:
    said = [str(Engines(*choice)) for choice in (SHARED, TRANSFORMERS, ("transformers", "vllm", False))]
    assert said == ["Unsloth, sampling by its vLLM engine", "transformers", "transformers, sampling by vLLM"]
