"""What `auto` means, on machines with and without a GPU and the libraries."""

from __future__ import annotations

from typing import Any

import pytest

from gtpo_cli.errors import ModelError, RecipeError
from gtpo_cli.policy.engines import choose_engines, why_not_shared
from gtpo_cli.recipe import Recipe, build_recipe

BOTH = {"unsloth", "vllm"}
ALL = BOTH | {"vllm_bnb_plugin"}
IN_16_BITS = {"load_in_4bit": False}
TRANSFORMERS = ("transformers", "transformers", False)
SHARED = ("unsloth", "vllm", True)


def recipe(model: dict[str, Any], rollout: dict[str, Any]) -> Recipe:
    settings = {"name": "some/model"} | model
    return build_recipe({"model": settings, "data": {"benchmark": "gsm8k"}, "rollout": rollout}, where="test")


@pytest.mark.parametrize(
    ("gpu", "installed", "model", "rollout", "expected"),
    [
        (True, ALL, {}, {}, SHARED),
        (True, BOTH, {}, {}, TRANSFORMERS),  # 4-bit weights need vLLM's plug-in
        (True, BOTH, IN_16_BITS, {}, SHARED),
        (True, ALL, {"backend": "unsloth"}, {}, SHARED),
        (True, ALL, {"dtype": "float32"}, {}, TRANSFORMERS),  # Unsloth's engine refuses it
        (True, ALL, {"dtype": "float16"}, {}, SHARED),
        (True, set(), {"backend": "unsloth"}, {}, SHARED),  # asked for: loading says what is missing
        (True, {"unsloth"}, {}, {}, TRANSFORMERS),
        (True, {"vllm"}, {}, {}, TRANSFORMERS),
        (True, ALL, {}, {"engine": "transformers"}, TRANSFORMERS),
        (True, ALL, {"backend": "transformers"}, {}, TRANSFORMERS),
        (True, ALL, {"backend": "transformers"}, {"engine": "vllm"}, ("transformers", "vllm", False)),
        (True, BOTH, IN_16_BITS, {"engine": "vllm"}, SHARED),
        (True, BOTH, {"lora": None, "load_in_4bit": False}, {}, TRANSFORMERS),
        (True, BOTH, {"name": "builtin:tiny", "lora": None, "load_in_4bit": False}, {}, TRANSFORMERS),
        (False, BOTH, {}, {}, TRANSFORMERS),
        (False, BOTH, {"backend": "unsloth"}, {}, ("unsloth", "transformers", False)),
        (False, ALL, {"backend": "unsloth"}, {"engine": "vllm"}, ("unsloth", "vllm", False)),
        (False, ALL, {"backend": "unsloth", "dtype": "float32"}, {}, ("unsloth", "transformers", False)),
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


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("backend", ["auto", "unsloth", "transformers"])
def test_4_bit_weights_in_vllm_need_its_plugin(gpu: bool, backend: str) -> None:
    asked = recipe({"backend": backend}, {"engine": "vllm"})
    with pytest.raises(ModelError, match=r"rollout\.engine: vLLM takes 4-bit .* pip install vllm-bnb-plugin"):
        choose_engines(asked, gpu=gpu, installed=BOTH)
    assert choose_engines(asked, gpu=gpu, installed=ALL).engine == "vllm"


def test_vllm_takes_adapters_up_to_rank_512() -> None:
    allowed, large = {"lora": {"rank": 512, "alpha": 1}}, {"lora": {"rank": 513, "alpha": 1}}
    assert choose_engines(recipe(allowed, {"engine": "vllm"}), gpu=True, installed=ALL) == SHARED
    with pytest.raises(
        RecipeError, match=r"model\.lora\.rank: vLLM takes adapters up to rank 512, and this one has rank 513"
    ):
        recipe(large, {"engine": "vllm"})
    with pytest.raises(
        ModelError, match=r"model\.lora\.rank: vLLM takes adapters up to rank 512, and this one has rank 513"
    ):
        choose_engines(recipe(large | {"backend": "unsloth"}, {}), gpu=True, installed=ALL)
    assert choose_engines(recipe(large, {}), gpu=True, installed=ALL) == TRANSFORMERS
    assert "up to rank 512" in str(why_not_shared(recipe(large, {}).model, ALL))
