"""What an export keeps of how its run was asked, and that it is read as anybody's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gtpo_cli.cli.options import find_model
from gtpo_cli.errors import ExportError
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.runs.checkpoints import Checkpoint
from gtpo_cli.tools.export.check import LogprobGap
from gtpo_cli.tools.export.folder import Exported, conditions_of, read_export, write_record


def recipe_of(**sections: Any) -> Recipe:
    document: dict[str, Any] = {
        "seed": 7,
        "model": {"name": "owner/base", "revision": "abc", "lora": {"rank": 4}, "max_seq_length": 300},
        "data": {"benchmark": "arithmetic", "system_prompt": "Add.", "max_prompt_tokens": 99},
        "rewards": {
            "format": {"mode": "presence", "tags": {"reasoning": None, "answer": "final"}, "weight": 0.5},
            "accuracy": {"equality": "text"},
        },
        "evaluation": {"samples": 3, "pass_k": [3], "majority_k": [], "temperature": 0.7, "limit": 20},
    }
    return build_recipe(document | sections, where="test")


def written(folder: Path, recipe: Recipe, format: Any = "merged") -> Path:
    folder.mkdir()
    difference = LogprobGap(1, 0.0, 0.0, 1)
    exported = Exported("r\x1b", 5, format, "bfloat16", "owner/base", 1, difference, None, (), conditions_of(recipe))
    write_record(folder, exported)
    return folder


def changed(folder: Path, **sections: Any) -> Path:
    """The same record with other sections in `asked`."""
    document = json.loads((folder / "export.json").read_text())
    document["asked"] |= sections
    (folder / "export.json").write_text(json.dumps(document))
    return folder


def test_a_merged_export_is_asked_as_the_run_and_an_adapter_on_its_base(tmp_path: Path) -> None:
    recipe = recipe_of()
    merged = read_export(written(tmp_path / "merged", recipe))
    adapter = read_export(written(tmp_path / "adapter", recipe, "adapter"))
    assert merged is not None
    assert adapter is not None
    for found in (merged, adapter):
        assert (found.recipe.seed, found.recipe.data, found.recipe.rewards, found.recipe.evaluation) == (
            recipe.seed, recipe.data, recipe.rewards, recipe.evaluation
        )  # fmt: skip
        assert (found.step, "\x1b" in found.run) == (5, False)
    model = merged.recipe.model
    assert (model.name, model.lora, model.load_in_4bit, model.revision) == (
        str(tmp_path / "merged"), None, False, None
    )  # fmt: skip
    assert model.max_seq_length == 300
    assert merged.checkpoint is None
    assert adapter.recipe.model == recipe.model
    assert adapter.checkpoint == Checkpoint(5, tmp_path, "adapter")
    assert adapter.checkpoint.model == tmp_path / "adapter"
    elsewhere = read_export(tmp_path / "adapter", ["model.name=/bases/mine"])
    assert elsewhere is not None
    assert elsewhere.recipe.model.name == "/bases/mine"


def test_data_that_were_a_file_are_to_be_named_again(tmp_path: Path) -> None:
    columns = {"question": "prompt", "answer": "gold"}
    local: dict[str, Any] = {"benchmark": "local", "path": "/home/somebody/rows.jsonl", "columns": columns}
    local |= {"system_prompt": "Add.", "max_prompt_tokens": 99, "gold": "somebody.code:read"}
    folder = written(tmp_path / "out", recipe_of(data=local))
    assert "somebody" not in (folder / "export.json").read_text()
    found = read_export(folder)
    assert found is not None
    assert (found.recipe.evaluation.benchmarks, found.recipe.data.path) == (("local",), None)
    assert (found.recipe.data.columns.question, found.recipe.data.system_prompt) == ("prompt", "Add.")
    assert found.recipe.data.gold == "auto"
    *_, words = find_model(str(folder), data_path=tmp_path / "rows.jsonl")
    assert words.endswith(
        f"if it was trained on {tmp_path / 'rows.jsonl'}, name the run's recipe.yaml with --recipe: that asks only "
        "what the run held out, and reads gold answers as it did"
    )
    assert "trained on" not in find_model(str(folder))[2]
    other = written(tmp_path / "other", recipe_of())
    assert "trained on" not in find_model(str(other), data_path=tmp_path / "rows.jsonl")[2]


def test_a_record_switches_on_no_code_and_names_no_file(tmp_path: Path) -> None:
    recipe = recipe_of()
    folder = changed(
        written(tmp_path / "out", recipe, "adapter"),
        model={"name": "evil/model", "trust_remote_code": True, "max_seq_length": 300, "lora": {"rank": 4}},
        data={"benchmark": "arithmetic", "path": "/etc/passwd", "max_prompt_tokens": 99, "gold": "os:abort"},
        rewards={"format": {"weight": 1}, "accuracy": {"weight": 1}, "length": {"weight": 0}}
        | {"plugins": [{"name": "os:abort"}]},
        output_dir="/somewhere",
    )
    found = read_export(folder)
    assert found is not None
    assert (found.recipe.model.name, found.recipe.model.trust_remote_code) == ("owner/base", False)
    assert (found.recipe.data.path, found.recipe.rewards.plugins, found.recipe.output_dir) == (None, (), "runs")


@pytest.mark.parametrize("document", [None, {}, {"run": "x"}])
def test_a_folder_that_says_nothing_of_it_is_no_export(tmp_path: Path, document: Any) -> None:
    if document is not None:
        (tmp_path / "export.json").write_text(json.dumps(document))
    assert read_export(tmp_path) is None
    (tmp_path / "export.json").write_text("no JSON")
    with pytest.raises(ExportError, match=r"export.json: cannot be read"):
        read_export(tmp_path)


def test_a_task_of_the_user_s_own_stays_behind_and_a_record_that_names_one_is_refused(tmp_path: Path) -> None:
    own = {"benchmark": "somebody/tasks.py:Task", "config": {"width": 3}, "system_prompt": "Add."}
    folder = written(tmp_path / "out", recipe_of(data=own))
    assert "somebody" not in (folder / "export.json").read_text()
    found = read_export(folder)
    assert found is not None
    assert (found.recipe.evaluation.benchmarks, found.recipe.data.config) == (("gsm8k",), {})
    named = own | {"benchmark": "reasoning_gym/gcd", "config": {"max_numbers": 3}}
    kept = read_export(written(tmp_path / "named", recipe_of(data=named)))
    assert kept is not None
    assert (kept.recipe.data.benchmark, kept.recipe.data.config) == ("reasoning_gym/gcd", {"max_numbers": 3})
    for sections in ({"data": own | {"benchmark": "evil.py:Task"}}, {"evaluation": {"benchmarks": ["evil.py:Task"]}}):
        with pytest.raises(ExportError, match=r"names the code evil.py:Task, which no export does"):
            read_export(changed(folder, **sections))
