"""The doctor on this machine: what it says is what is here."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from families import family_model
from small_models import random_model
from typer.testing import CliRunner

from gtpo_cli import hub
from gtpo_cli.cli.app import app
from gtpo_cli.errors import NotReadyError, RewardError, install
from gtpo_cli.machine import installed as machine
from gtpo_cli.machine.installed import Finding
from gtpo_cli.machine.open_keys import machine_with
from gtpo_cli.machine.ready import _for_recipe, check_recipe, examine, memory_finding, problems_of, resolve
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.recipe import Recipe, load_recipe


def test_the_built_in_model_can_start_wherever_the_tests_run(tmp_path: Path) -> None:
    findings = {finding.subject: finding for finding in examine(load_recipe("tiny_arithmetic"), output_dir=tmp_path)}
    assert [finding for finding in findings.values() if finding.state == "problem"] == []
    assert findings["torch"].words == version("torch")
    assert findings["wandb"].words == "off in the recipe"
    assert set(findings) >= {"python", "transformers", "peft", "GPU", "bitsandbytes", "unsloth", "vllm", "hub", "disk"}


def test_without_wandb_training_can_start_unless_it_must_log_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    states = {mode: machine.wandb(mode).state for mode in ("off", "auto", "offline", "online")}
    assert states == {"off": "ok", "auto": "note", "offline": "note", "online": "problem"}
    assert machine.wandb("auto").words == "not installed: runs are not logged there"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_an_8b_recipe_needs_a_gpu_and_the_built_in_model_does_not() -> None:
    finding = next(_for_recipe(Parts(load_recipe("llama8b_gsm8k"))))
    assert finding.state == "problem"
    assert finding.remedy == "small models train on a CPU; 8.0 billion weights need a GPU, and gtpo plan shows which"
    left_open = load_recipe("llama8b_gsm8k", ["model.load_in_4bit=auto"])
    assert next(_for_recipe(Parts(left_open))) == finding
    finding = next(_for_recipe(Parts(load_recipe("tiny_arithmetic"))))
    assert (finding.state, finding.remedy) == ("note", "a model of this size trains on a CPU")
    assert machine.gpu().remedy == "small models train on a CPU; larger ones need a GPU, and gtpo plan shows which"


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)  # whoever answers at all is there
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_memory_is_held_against_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def found(name: str, size: int, *changes: str, read_data: bool = True) -> Finding:
        parts = Parts(load_recipe(name, changes), machine_with(size * 2**30))
        return memory_finding(parts, size * 2**30, read_data=read_data)

    enough, too_little = (found("llama8b_gsm8k", size) for size in (48, 12))
    assert enough.state == "ok"
    assert enough.words.endswith("GiB needed of 48; gtpo plan says for what")
    assert too_little.state == "problem"
    assert too_little.words.startswith(
        "rollout.gpu_memory_utilization leaves vLLM no room for one whole sequence on 12"
    )
    too_large = found("llama8b_gsm8k", 12, "rollout.gpu_memory_utilization=0.9")
    assert too_large.state == "problem"
    assert too_large.words.endswith("GiB needed of 12")
    at_once = found("llama8b_math", 48, read_data=False)
    assert at_once.state == "ok"


# -- what gtpo train looks at before it loads -------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    """A small model and a data file of one's own, as overrides of the smallest recipe."""
    model, tokenizer = random_model(max_position_embeddings=512)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        f"model.name={tmp_path / 'model'}", "data.benchmark=local", f"data.path={tmp_path / 'data.jsonl'}",
        "data.max_prompt_tokens=100", "model.max_seq_length=200", "data.system_prompt=null",
    ]  # fmt: skip


def problems(recipe: Recipe) -> list[str]:
    return [str(problem) for problem in problems_of(Parts(recipe))]


def test_the_built_in_model_has_no_problem() -> None:
    assert problems(load_recipe("tiny_arithmetic")) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.usefixtures("offline")
def test_all_that_is_missing_is_told_at_once_each_with_its_remedy() -> None:
    overrides = ["training.max_steps=1", "rewards.plugins=[{name: 'no_such_module:f', weight: 1.0}]"]
    with pytest.raises(NotReadyError) as caught:
        resolve(load_recipe("llama8b_gsm8k", overrides))
    gpu, reward, model, data = str(caught.value).splitlines()
    assert gpu == "GPU: none; small models train on a CPU; 8.0 billion weights need a GPU, and gtpo plan shows which"
    assert "module no_such_module cannot be imported" in reward
    assert "install it, or put its folder on PYTHONPATH" in reward
    assert model.startswith("model.name: meta-llama/Llama-3.1-8B-Instruct is no local folder, not in the cache")
    assert "hf download" in model
    assert data.startswith("openai/gsm8k: the hub cannot be reached")
    assert "set data.path to a local copy" in data


def test_an_adapter_on_layers_that_the_model_does_not_have_is_known_before_its_weights_load(tmp_path: Path) -> None:
    """The default names are LLaMA's; Phi-3 has others."""
    model, tokenizer = family_model("Phi-3")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    changes = [f"model.name={tmp_path}", "data.system_prompt=null"]
    named = load_recipe("tiny_arithmetic", [*changes, "model.lora={target_modules: [q_proj, o_proj, gate_proj]}"])
    (finding,) = problems_of(Parts(named))
    assert (finding.subject, finding.words, finding.remedy) == (
        "adapter",
        "model.lora.target_modules: no linear layer between embedding and output is called q_proj and gate_proj",
        "it has down_proj, gate_up_proj, o_proj, qkv_proj, or all-linear for all of them",
    )
    for ends in ("lm_head", "embed_tokens"):  # where gtpo would ignore an adapter
        (finding,) = problems_of(
            Parts(load_recipe("tiny_arithmetic", [*changes, f"model.lora.target_modules=[{ends}]"]))
        )
        assert finding.words.endswith(f"no linear layer between embedding and output is called {ends}")
    for lora in ("{target_modules: all-linear}", "{target_modules: [qkv_proj]}", "null"):
        assert problems_of(Parts(load_recipe("tiny_arithmetic", [*changes, f"model.lora={lora}"]))) == []


def test_a_start_that_is_not_there_is_a_problem_of_a_new_run_alone() -> None:
    recipe = load_recipe("tiny_arithmetic", ["model.start=runs/gone:3"])
    assert problems(recipe) == [
        "model.start: runs/gone does not exist; name a run's folder (RUN, RUN:last, RUN:STEP) or a folder with "
        "adapter_config.json"
    ]
    assert problems_of(Parts(recipe), resumed=True) == []


def test_what_is_not_installed_is_a_problem_where_it_is_asked_for(
    own: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    absent = {"unsloth", "vllm", "vllm_bnb_plugin"}

    def found(name: str, *rest: Any) -> Any:
        return None if name in absent else find("json" if name == "vllm" else name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    engines = ["model.lora={}", "model.load_in_4bit=false", "model.backend=unsloth", "rollout.engine=vllm"]
    asked = load_recipe("tiny_arithmetic", [*own, *engines])
    from_the_checkout = install("cuda")
    assert problems(asked) == [
        f"unsloth: not installed; {from_the_checkout}",
        f"vllm: not installed; {from_the_checkout}",
    ]
    in_4_bits = asked.model_copy(update={"model": asked.model.model_copy(update={"load_in_4bit": True})})
    assert f"vllm-bnb-plugin: not installed; {from_the_checkout}" in problems(in_4_bits)
    absent.discard("vllm")
    assert any("pip install vllm-bnb-plugin" in problem for problem in problems(in_4_bits))
    by_trl = problems_of(Parts(asked, by_trl=True))  # which holds the policy on transformers
    assert by_trl == []


@pytest.mark.parametrize(
    "command",
    [["recipes", "check", "tiny_arithmetic"], ["doctor", "--recipe", "tiny_arithmetic"], ["train", "--dry-run"]],
)
def test_a_reward_that_cannot_be_imported_is_known_before_training(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(machine, "answers", lambda address: False)
    (tmp_path / "my_sound_reward.py").write_text("def f(problem, completion): return 0.0\n")
    (tmp_path / "my_broken_reward.py").write_text("import no_such_package_at_all\n")

    def said(*names: str) -> str:
        plugins = ", ".join(f"{{name: '{name}'}}" for name in names)
        small = ["--set", "data.limit=1", "--set", f"rewards.plugins=[{plugins}]"]
        done = CliRunner().invoke(app, [*command, *small])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.output

    sound = said("my_sound_reward:f")
    assert "my_sound_reward cannot" not in sound
    assert "next: gtpo train " in sound
    assert "--set 'rewards.plugins=[{name: " in sound.splitlines()[-1]  # the next command trains what was looked at
    assert "module my_sound_reward has no function g" in said("my_sound_reward:f", "my_sound_reward:g")
    broken = said("my_broken_reward:f")
    assert (
        f"module my_broken_reward cannot be imported (at {tmp_path / 'my_broken_reward.py'}:1 in <module>: " in broken
    )


def test_a_recipe_check_knows_the_columns_of_a_generated_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asks_for_more.py").write_text("def f(completions, tests, **columns):\n    return [1.0]\n")
    (tmp_path / "asks_for_gold.py").write_text("def f(completions, gold, question):\n    return [1.0]\n")
    monkeypatch.syspath_prepend(tmp_path)
    more, gold = (f"rewards.plugins=[{{name: 'asks_for_{what}:f', weight: 1.0}}]" for what in ("more", "gold"))
    for name in ("tiny_arithmetic", "smollm135m_words"):
        assert check_recipe(load_recipe(name, [gold])) == []
        with pytest.raises(RewardError, match="asks for the column tests, which the data do not have"):
            check_recipe(load_recipe(name, [more]))
    assert check_recipe(load_recipe("llama8b_gsm8k", [more])) == []  # whose data need not be here


def cached(cache: Path, folder: Path) -> Path:
    """`folder` as the snapshot of some/model in a cache."""
    home = cache / "models--some--model"
    shutil.copytree(folder, home / "snapshots" / ("0" * 40))
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40)
    return home / "snapshots" / ("0" * 40)


@pytest.mark.usefixtures("offline")
def test_a_cache_that_lacks_weights_is_found_out_before_loading(
    own: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    snapshot = cached(tmp_path / "cache", tmp_path / "model")
    recipe = load_recipe("tiny_arithmetic", [*own[1:], "model.name=some/model", "model.lora={}"])
    assert problems(recipe) == []
    assert hub.cached_snapshot("some/model") == snapshot
    assert hub.cached_snapshot("some/other") is None
    (snapshot / "model.safetensors").unlink()
    (problem,) = problems(recipe)
    assert problem.startswith("model.name: of some/model the cache has no model.safetensors, and the hub was not asked")
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    (snapshot / "model-1.safetensors").touch()
    assert hub.missing_weights(snapshot) == "model-2.safetensors"
    (snapshot / "model-2.safetensors").touch()
    assert hub.missing_weights(snapshot) is None
