"""Adapters that PEFT made and saved, evaluated and asked as typed: they answer as PEFT's merged model does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Run
from small_models import adapted, random_model, tiny_tokenizer

TEMPLATE = "{{ bos_token }}{% for m in messages %}<user>Q: {{ m['content'] }}{% endfor %}<assistant>"
ASKED = ["--data-path", "mine.jsonl", "--pass-k", "4", "--set", "evaluation.max_completion_tokens=24"]
SET = ["--set", "data.system_prompt=null"]

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """make("theirs", use_dora=True): the folder of an adapter on `base`, saved by PEFT, and beside it what PEFT merges
    it to. Its base is the relative path "base"."""
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    model, tokenizer = random_model(num_hidden_layers=3)
    model.save_pretrained("base")
    tokenizer.save_pretrained("base")
    (tmp_path / "mine.jsonl").write_text(
        "".join(json.dumps({"question": f"{n}+1", "answer": str(n + 1)}) + "\n" for n in range(3))
    )

    def make(name: str, **changes: Any) -> Path:
        model = adapted(AutoModelForCausalLM.from_pretrained("base"), **changes)
        model.save_pretrained(name)
        model.merge_and_unload().save_pretrained(f"{name}-merged")
        tokenizer.save_pretrained(f"{name}-merged")
        return tmp_path / name

    return make


def configure(folder: Path, **changes: Any) -> dict[str, Any]:
    file = folder / "adapter_config.json"
    settings: dict[str, Any] = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(settings))
    return settings


def give_template(*folders: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    for folder in folders:
        tokenizer.save_pretrained(folder)


def found(gtpo: Run, tmp_path: Path, *arguments: str) -> list[tuple[str, dict[str, Any], list[Any]]]:
    """(subject, scores, completions) of each model that the command evaluates."""
    document = json.loads(gtpo("eval", *arguments, *ASKED, *SET, "--json").stdout)
    read = []
    for one in document["evaluations"]:
        lines = (tmp_path / one["folder"] / "samples.jsonl").read_text().splitlines()
        read.append((one["subject"], one["scores"], [json.loads(line)["completions"] for line in lines]))
    return read


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two models gave the same completions; merging rounds their entropies otherwise."""
    texts = [[[c | {"mean_entropy": None} for c in problem] for problem in each] for each in (one, other)]
    entropies = [[c["mean_entropy"] for problem in each for c in problem] for each in (one, other)]
    return texts[0] == texts[1] and entropies[0] == pytest.approx(entropies[1], abs=1e-4)


def test_an_adapter_answers_as_its_merged_model(make: Make, gtpo: Run, tmp_path: Path) -> None:
    plain = make("plain")
    linear = make("linear", target_modules="all-linear", r=2, lora_alpha=5)  # PEFT writes the names of 21 layers short
    settings = configure(linear, lora_alpha=5.0)
    configure(linear, target_modules=sorted(settings["target_modules"], reverse=True))
    assert sorted(settings["target_modules"]) == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"
    ]  # fmt: skip
    assert settings["base_model_name_or_path"] == "base"
    hub = tmp_path / "models--owner--linear"  # the hub's cache has links
    for file in linear.iterdir():
        (hub / "blobs").mkdir(parents=True, exist_ok=True)
        shutil.copy(file, hub / "blobs" / f"of-{file.name}")
        (hub / "snapshots" / "c0ffee").mkdir(parents=True, exist_ok=True)
        (hub / "snapshots" / "c0ffee" / file.name).symlink_to(f"../../blobs/of-{file.name}")
    ((_, _, of_base),) = found(gtpo, tmp_path, "base")
    for folder in (plain, linear):
        ((subject, scores, completions),) = found(gtpo, tmp_path, folder.name)
        ((_, expected, by_merged),) = found(gtpo, tmp_path, f"{folder.name}-merged")
        assert subject == "trained"
        assert same(completions, by_merged)
        assert {name: score["estimate"] for name, score in scores.items() if name != "mean_entropy"} == {
            name: score["estimate"] for name, score in expected.items() if name != "mean_entropy"
        }
        assert not same(completions, of_base)
    ((_, _, cached),) = found(gtpo, tmp_path, str(hub / "snapshots" / "c0ffee"))
    assert cached == completions
    base, trained = found(gtpo, tmp_path, "linear", "--base")
    assert (base[0], base[2], trained[0], trained[2]) == ("base", of_base, "trained", completions)


def test_the_adapters_own_tokenizer_asks_it_and_its_base(make: Make, gtpo: Run, tmp_path: Path) -> None:
    theirs = make("theirs")
    (_, _, bare), (_, _, with_the_bases) = found(gtpo, tmp_path, "theirs", "--base")
    said = gtpo("eval", "theirs", *ASKED, *SET).stdout.splitlines()[0]
    assert said == (
        "theirs: an adapter on base; not an export of gtpo, so it gets no system prompt, in the base's chat template"
    )
    shutil.copytree(tmp_path / "base", tmp_path / "base-asked")
    give_template(theirs, tmp_path / "theirs-merged", tmp_path / "base-asked")
    said = gtpo("eval", "theirs", *ASKED, *SET).stdout.splitlines()[0]
    assert said.endswith("in its own chat template")
    base, trained = found(gtpo, tmp_path, "theirs", "--base")
    assert same(trained[2], found(gtpo, tmp_path, "theirs-merged")[0][2])
    assert not same(trained[2], with_the_bases)
    assert base[2] == found(gtpo, tmp_path, "base-asked")[0][2] != bare  # what was stored has another tokenizer


def test_generate_asks_the_adapter(make: Make, gtpo: Run) -> None:
    theirs = make("theirs")
    give_template(theirs, theirs.with_name("theirs-merged"), theirs.with_name("base"))
    ask = ["1+2", "--greedy", "--max-tokens", "20"]
    answered, merged, base, bare = (
        gtpo("generate", name, *ask, *more).stdout.splitlines()
        for name, more in (("theirs", ()), ("theirs-merged", ()), ("theirs", ("--base",)), ("base", ()))
    )
    assert answered[0].startswith("theirs: an adapter on base; not an export of gtpo, so it gets gtpo's default system")
    assert answered[1:] == merged[1:]
    assert base[0].startswith("base, untrained; greedy")
    assert base[1:] == bare[1:] != answered[1:]


def test_a_base_that_is_not_there_can_be_named(make: Make, gtpo: Run, tmp_path: Path) -> None:
    theirs = make("theirs")
    ((_, _, completions),) = found(gtpo, tmp_path, "theirs")
    (tmp_path / "base").rename(tmp_path / "moved")
    for name, why in (
        ("../base", "there is no folder ../base; correct the name, or give a hub id"),
        ("base", "base is no local folder, not in the cache, and the hub was not asked"),
    ):
        configure(theirs, base_model_name_or_path=name)
        for command in (["eval", "theirs", *ASKED], ["generate", "theirs", "1+1"]):
            said = gtpo(*command, code=2).stderr
            assert f"model.name: {why}" in said
            assert f"This is the base of the adapter {theirs}: what base_model_name_or_path in its adapter_conf" in said
            assert said.rstrip().endswith("name the base with --set model.name=BASE (gtpo eval).")
    assert found(gtpo, tmp_path, "theirs", "--set", "model.name=moved")[0][2] == completions
    configure(theirs, base_model_name_or_path=None)
    assert (
        "theirs/adapter_config.json: names no base model; write it there (base_model_name_or_path), or name it with "
        "--set model.name=BASE (gtpo eval)" in gtpo("eval", "theirs", *ASKED, code=2).stderr
    )
    ((_, _, named),) = found(gtpo, tmp_path, "theirs", "--set", "model.name=moved")
    assert named == completions
    wide, tokenizer = random_model(hidden_size=128)
    for part in (wide, tokenizer):
        part.save_pretrained(tmp_path / "wide")
    assert (
        "adapter_model.safetensors: its tensors have other shapes than the layers of the model; it was trained on "
        "another base than model.name"
        in gtpo("eval", "theirs", *ASKED, *SET, "--set", "model.name=wide", code=2).stderr
    )


def test_what_is_asked_comes_from_a_recipe_too(make: Make, gtpo: Run, tmp_path: Path) -> None:
    make("theirs")
    (tmp_path / "mine.yaml").write_text(
        "model: {name: another/base, load_in_4bit: false, lora: {rank: 64}}\n"
        "data: {benchmark: local, path: mine.jsonl, system_prompt: null}\n"
    )
    asked = ["eval", "theirs", "--recipe", "mine.yaml", *ASKED]
    assert gtpo(*asked).stdout.splitlines()[0] == (
        "theirs: an adapter on base; with the prompts of the recipe mine.yaml"
    )
    ((_, _, completions),) = found(gtpo, tmp_path, "theirs")
    assert found(gtpo, tmp_path, "theirs", "--recipe", "mine.yaml")[0][2] == completions
    refused = gtpo("eval", "theirs", code=2).stderr
    assert (
        "theirs: is no run and no export of gtpo, so it has no problems of its own; name some: --benchmark" in refused
    )


def test_more_than_plain_lora_is_refused(make: Make, gtpo: Run, tmp_path: Path) -> None:
    for name, changes, said in (
        ("dora", {"use_dora": True}, "use_dora: True"),
        ("saved", {"modules_to_save": ["lm_head"]}, 'modules_to_save: ["lm_head"]'),
    ):
        make(name, **changes)
        for command in (["eval", name, *ASKED], ["eval", name], ["generate", name, "1+1"]):
            assert (
                f"{name}/adapter_config.json: {said} is more than plain LoRA, which is all that gtpo computes exactly; "
                "merge it into its base with PEFT (merge_and_unload) and name the result as model.name"
                in gtpo(*command, code=2).stderr.replace("'", '"')
            )
    assert not (tmp_path / "runs").exists()
    theirs = make("theirs")
    (theirs / "adapter_model.safetensors").rename(theirs / "adapter_model.bin")
    assert (
        "a pickle (adapter_model.bin) is not read because it could run code: save it as safetensors with PEFT"
        in gtpo("eval", "theirs", *ASKED, *SET, code=2).stderr
    )
    assert not list((tmp_path / "runs").glob("*/*/evaluation/*/*/results.json"))
    shutil.copy(tmp_path / "base" / "config.json", theirs)
    assert (
        "if it is an adapter alone, remove its config.json and evaluate the folder: gtpo eval FOLDER"
        in gtpo("eval", "theirs", *ASKED, code=2).stderr
    )
