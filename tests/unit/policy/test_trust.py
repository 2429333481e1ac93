"""Nothing that was downloaded runs: code beside a model, and pickles in the place of weights."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import random_model

from gtpo_cli.errors import ModelError
from gtpo_cli.policy.loading import read_model
from gtpo_cli.policy.transformers_policy import TransformersPolicy, load_transformers_policy
from gtpo_cli.recipe.schema import ModelRecipe

CODE = """
from pathlib import Path
Path({file!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Config(LlamaConfig):
    model_type = "foreign"
class Model(LlamaForCausalLM):
    config_class = Config
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, tokenizer = random_model()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(path: Path, **changes: Any) -> TransformersPolicy:
    recipe = ModelRecipe(
        name=str(path), max_seq_length=64, load_in_4bit=False, dtype="float32", lora=None, gradient_checkpointing=False,
        **changes,
    )  # fmt: skip
    return load_transformers_policy(
        recipe, files=read_model(recipe, str(path)), temperature=1.0, with_reference=False, seed=1
    )


def test_code_beside_a_model_runs_only_when_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (folder / "foreign.py").write_text(CODE.format(file=str(ran)))
    file = folder / "config.json"
    changes = {
        "model_type": "foreign",
        "auto_map": {"AutoConfig": "foreign.Config", "AutoModelForCausalLM": "foreign.Model"},
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(
        ModelError,
        match="comes with its own code, which does not run",
    ):
        load(folder)
    assert not ran.exists()
    assert type(load(folder, trust_remote_code=True).model).__name__ == "Model"  # so it could have run
    assert ran.exists()


class Danger:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.file,))


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_pickle_in_the_place_of_weights_does_not_run(folder: Path, tmp_path: Path, how: str) -> None:
    ran = tmp_path / "ran"
    (folder / "model.safetensors").unlink()
    weights = folder / "pytorch_model.bin"
    if how == "torch":
        torch.save({"lm_head.weight": Danger(ran)}, weights)
    else:
        weights.write_bytes(pickle.dumps(Danger(ran)))
    with pytest.raises(ModelError, match="are a pickle, which is refused because it could run code"):
        load(folder)
    assert not ran.exists()
    if how == "pickle":
        pickle.loads(weights.read_bytes())
        assert ran.exists()  # so it could have run
