"""A model without a run: where its evaluations are kept; and what the options of gtpo eval make of a recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_models import adapted, random_model

from gtpo_cli.cli.eval_options import with_options
from gtpo_cli.cli.evaluate import _folder_of
from gtpo_cli.cli.options import find_model
from gtpo_cli.errors import ModelError
from gtpo_cli.recipe import load_recipe


@pytest.mark.parametrize(
    ("model", "folder"),
    [("builtin:tiny", "builtin-tiny"), ("org/Some-1.5B", "org-Some-1.5B"), (".", "here"), ("..", "above")],
)
def test_every_model_has_a_folder_of_its_own(
    model: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "above" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "above" / "here")
    recipe, checkpoint, _ = find_model(model)
    assert checkpoint is None
    assert _folder_of(model, recipe).path == Path("runs") / "models" / folder
    assert recipe.model.name == model


def test_an_adapter_brings_its_base_with_its_revision(tmp_path: Path) -> None:
    adapted(random_model()[0]).save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    settings = json.loads(file.read_text()) | {"base_model_name_or_path": "owner/base", "revision": "v2"}
    file.write_text(json.dumps(settings))
    recipe, checkpoint, words = find_model(str(tmp_path))
    model, lora = recipe.model, recipe.model.lora
    assert (model.name, model.revision, model.start, model.load_in_4bit) == ("owner/base", "v2", None, False)
    assert lora is not None
    assert (lora.rank, lora.alpha, lora.target_modules) == (4, 8, ("down_proj", "q_proj", "v_proj"))
    assert checkpoint is not None
    assert checkpoint.model == tmp_path
    assert words == (
        f"{tmp_path}: an adapter on owner/base; not an export of gtpo, so it gets gtpo's default system prompt, in the "
        "base's chat template"
    )
    elsewhere, *_ = find_model(str(tmp_path), overrides=["model.name=mine", "model.revision=null"])
    assert (elsewhere.model.name, elsewhere.model.revision, elsewhere.model.lora) == ("mine", None, lora)
    file.write_text(json.dumps(settings | {"revision": 2}))
    with pytest.raises(ModelError, match="base_model_name_or_path or revision is no text"):
        find_model(str(tmp_path))


@pytest.mark.parametrize(
    ("own", "pass_k", "majority_k"),
    [
        ("{samples: 8}", (1, 2, 4, 8, 16), (4, 8, 16)),
        ("{samples: 8, majority_k: [3]}", (1, 2, 4, 8, 16), (3,)),
        ("{samples: 64, majority_k: [3, 64]}", (1, 2, 4, 8, 16), (3,)),
    ],
)
def test_more_completions_have_more_of_the_default_ks(
    own: str, pass_k: tuple[int, ...], majority_k: tuple[int, ...]
) -> None:
    recipe = load_recipe("tiny_arithmetic", [f"evaluation={own}"])
    asked = with_options(recipe, None, pass_k="16", maj_k=None, limit=3).evaluation
    assert (asked.samples, asked.limit, asked.pass_k, asked.majority_k) == (16, 3, pass_k, majority_k)
