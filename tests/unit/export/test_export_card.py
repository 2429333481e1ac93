"""The model card says what is so and tells nothing of the machine; the exported tokenizer renders the run's prompt."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from small_models import tiny_tokenizer

from gtpo_cli.data import PromptEncoder
from gtpo_cli.estimators import Interval
from gtpo_cli.evaluation.store import Conditions, Results, Score, evaluation_at
from gtpo_cli.recipe import Recipe, build_recipe, dump_recipe
from gtpo_cli.recipe.schema import PAPER_SYSTEM_PROMPT
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tools.export.card import fenced, model_card, shown_recipe
from gtpo_cli.tools.export.check import LogprobGap
from gtpo_cli.tools.export.folder import Exported, conditions_of
from gtpo_cli.tools.export.using import Prompting, public_name, put_template

SECRET = "/home/somebody/secret-project"
HOSTILE = "Hé \"quoted\" 'x' \\n {{ evil }} {% raw %} \N{GRINNING FACE}\t`` ``` `````\nend"
QUESTIONS = ["3+8-2+5", "What is 7 times 8?\nReally? {{ x }} {% y %}", 'é\N{GRINNING FACE} "quoted" \\n']


def hub_recipe(**data: Any) -> Recipe:
    model = {"name": "meta-llama/Llama-3.1-8B-Instruct", "revision": "abc"}
    sections = {"model": model, "data": {"benchmark": "gsm8k"} | data, "output_dir": f"{SECRET}/runs"}
    return build_recipe(sections | {"tracking": {"wandb": {"project": "the-account"}}}, where="test")


class Facts(NamedTuple):
    """What a card is made from."""

    run: RunFolder
    recipe: Recipe
    exported: Exported
    prompting: Prompting


def facts(folder: Path, recipe: Recipe, prompting: Prompting | None = None, **changes: Any) -> Facts:
    run = RunFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    run.recipe_file.write_text(dump_recipe(recipe))
    made: dict[str, Any] = {
        "run": run.name or folder.name, "step": 10, "format": "merged", "dtype": "bfloat16",
        "base": public_name(recipe.model.name), "prompts": 8,
        "difference_from_policy": LogprobGap(100, 0.0123, 0.25, 99), "rounding": None,
        "notes": ("A note.",), "asked": conditions_of(recipe),
    }  # fmt: skip
    return Facts(run, recipe, Exported(**made | changes), prompting or Prompting("Question: QUESTION", True, True))


def card_of(made: Facts, hub_name: str | None = None) -> str:
    return model_card(*made, folder=made.run.path / "out", hub_name=hub_name)


def code_of(card: str) -> str:
    return card.split("```python\n")[1].split("\n```\n")[0]


def store(run: RunFolder, subject: str, accuracy: float, **changes: Any) -> None:
    conditions: dict[str, Any] = {
        "benchmark": "gsm8k", "split": "test", "subject": subject, "model": "m", "problems": 1, "data_digest": "d",
        "samples": 4, "temperature": 0.5, "top_p": 0.9, "max_completion_tokens": 77, "seed": 1,
        "settings": hub_recipe().decisive,
    }  # fmt: skip
    stored = evaluation_at(run, Conditions(**conditions | changes))
    stored.open()
    names = {"accuracy": accuracy, "pass@1": accuracy, "pass@4": 0.9, "first_pass@1": 0.1, "mean_length": 30.25}
    scores = {name: Score(Interval(value, value - 0.05, value + 0.05), (value,)) for name, value in names.items()}
    stored.finish(Results(("p",), ("x",), ("",), scores))


def front_matter(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def test_the_head_is_what_the_hub_reads(tmp_path: Path) -> None:
    head = front_matter(card_of(facts(tmp_path / "run", hub_recipe())))
    assert head == {
        "base_model": "meta-llama/Llama-3.1-8B-Instruct",
        "base_model_relation": "finetune",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["gtpo_cli", "gtpo", "reinforcement-learning"],
        "datasets": ["openai/gsm8k"],
    }
    adapter = front_matter(card_of(facts(tmp_path / "run", hub_recipe(path=f"{SECRET}/data"), format="adapter")))
    assert (adapter["base_model_relation"], adapter["library_name"]) == ("adapter", "peft")
    assert "datasets" not in adapter


def test_training_and_evaluation_of_this_step_are_in_it(tmp_path: Path) -> None:
    made = facts(tmp_path / "run", hub_recipe())
    rows = [{"step": step, "train/accuracy_rate": step / 100} for step in range(1, 13)]
    made.run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "None was made of this checkpoint" in card_of(made)
    store(made.run, "step-000010", 0.75)
    store(made.run, "step-000012", 0.99)
    card = card_of(made)
    assert "| accuracy | 3.0% | 8.0% |" in card  # steps 1 to 5 and 6 to 10 of the 10 that this checkpoint has
    assert "gsm8k, test split: 1 problem, 4 completions each, temperature 0.5, top-p 0.9, at most 77 tokens" in card
    assert "| accuracy | 75.0 % (70.0 to 80.0) |\n" in card
    assert "| mean length | 30.2 (30.2 to 30.3) |" in card
    assert "99.0 %" not in card
    assert "first pass" not in card
    store(made.run, "step-000010", 0.11, settings=hub_recipe().decisive | {"rewards.answer": "last_line"})
    assert card_of(made) == card, "it was asked otherwise"
    store(made.run, "base", 0.25)
    assert "| pass@1 | 75.0 % (70.0 to 80.0) | 25.0 % (20.0 to 30.0) |" in card_of(made)


@pytest.mark.parametrize(
    ("tags", "told"),
    [({}, "`<reasoning>` and `<answer>`"), ({"reasoning": "think", "answer": "final"}, "`<think>` and `<final>`"),
     ({"reasoning": None}, "`<answer>`")],
)  # fmt: skip
def test_the_tags_are_those_of_the_recipe(tmp_path: Path, tags: dict[str, Any], told: str) -> None:
    sections = {"model": {"name": "a/b"}, "data": {"benchmark": "gsm8k", "system_prompt": None}}
    recipe = build_recipe(sections | {"rewards": {"format": {"tags": tags}}}, where="test")
    assert f"that a program can check, in the tags {told}. Whether" in card_of(facts(tmp_path / "run", recipe))


def test_nothing_of_the_machine_or_the_account_is_told(tmp_path: Path) -> None:
    recipe = hub_recipe(path=f"{SECRET}/gsm8k")
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"name": f"{SECRET}/my-base"})})
    card = card_of(facts(tmp_path / "run", recipe), hub_name="me/demo")
    assert SECRET not in card
    assert "the-account" not in card
    assert str(tmp_path) not in card
    assert "my-base (revision abc) after 10 steps" in card
    assert "base_model" not in front_matter(card)
    shown = yaml.safe_load(shown_recipe(recipe))
    assert (shown["model"]["name"], shown["data"]["path"]) == ("my-base", "gsm8k")
    assert shown["optimizer"] == recipe.model_dump(mode="json")["optimizer"]


def test_sources_of_a_mixture_and_test_files_are_named_without_their_folders() -> None:
    mixture = {f"{SECRET}/a/train.jsonl": 1, f"{SECRET}/b/train.jsonl": 2, "gsm8k": 3, "owner/set": 1}
    mixed = build_recipe({"model": {"name": "a/b"}, "data": {"mixture": mixture}}, where="test")
    shown = shown_recipe(mixed)
    assert SECRET not in shown
    assert yaml.safe_load(shown)["data"]["mixture"] == [
        {"train.jsonl": 1.0}, {"train.jsonl": 2.0}, {"gsm8k": 3.0}, {"owner/set": 1.0}
    ]  # fmt: skip
    assert SECRET not in shown_recipe(hub_recipe(path=f"{SECRET}/a.jsonl"))


def test_on_this_machine_the_lines_name_absolute_paths_and_on_the_hub_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bases" / "mine").mkdir(parents=True)
    hub = hub_recipe()
    local = hub.model_copy(update={"model": hub.model.model_copy(update={"name": "bases/mine", "load_in_4bit": False})})
    out = str(tmp_path / "run" / "out")
    made = facts(tmp_path / "run", local, format="adapter")
    here, there = card_of(made), card_of(made, hub_name="me/demo")
    load = "AutoModelForCausalLM.from_pretrained"
    assert f'base = {load}("{tmp_path}/bases/mine", revision="abc")\n' in code_of(here)
    assert f'model = PeftModel.from_pretrained(base, "{out}").eval()\n' in code_of(here)
    assert (
        f"vllm serve {tmp_path}/bases/mine --revision abc --tokenizer-revision main --tokenizer {out} "
        f"--generation-config vllm --enable-lora --max-lora-rank 128 --lora-modules policy={out}\n" in here
    )
    assert "The paths are of the machine that wrote this" in here
    assert f'# BASE: your copy of mine\nbase = {load}("BASE", revision="abc")\n' in code_of(there)
    assert 'PeftModel.from_pretrained(base, "me/demo")' in code_of(there)
    assert str(tmp_path) not in there
    assert "The paths are of" not in there

    quantized = code_of(card_of(facts(tmp_path / "run", hub, format="adapter"), hub_name="me/demo"))
    assert f'base = {load}("{hub.model.name}", revision="abc", quantization_config=bits)\n' in quantized
    assert 'bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", ' in quantized
    merged = card_of(facts(tmp_path / "run", hub, dtype="float32"))
    assert f'model = {load}("{out}").eval()\n' in code_of(merged)
    assert f"vllm serve {out} --dtype float32\n" in merged
    gguf = facts(tmp_path / "run", hub, format="gguf")
    assert f"llama-server --model {out}/run-bfloat16.gguf\n" in card_of(gguf)
    assert "llama-server --model run-bfloat16.gguf\n" in card_of(gguf, hub_name="me/demo")


def test_a_prompt_that_no_template_renders_is_a_string_of_the_program(tmp_path: Path) -> None:
    program = code_of(card_of(facts(tmp_path / "run", hub_recipe(), Prompting(HOSTILE, False, False))))
    (line,) = [line for line in program.splitlines() if line.startswith("prompt = ")]
    assert ast.literal_eval(line.removeprefix("prompt = ")) == HOSTILE
    assert 'inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)' in program


def test_hostile_prompts_stay_in_their_block(tmp_path: Path) -> None:
    card = card_of(facts(tmp_path / "run", hub_recipe(system_prompt=HOSTILE), prompting=Prompting(HOSTILE, True, True)))
    block = card.split("question in the place of QUESTION:\n\n")[1]
    assert block.startswith("``````\n" + HOSTILE + "\n``````\n")
    assert fenced("plain", "yaml") == "```yaml\nplain\n```"


@pytest.mark.slow
@pytest.mark.parametrize("system", [None, PAPER_SYSTEM_PROMPT, HOSTILE], ids=["none", "the paper's", "hostile"])
@pytest.mark.parametrize("kind", ["built in", "stories260k", "tokenizers/llama-3.1", "tokenizers/qwen2.5"])
def test_a_lone_user_message_gets_the_ids_of_training(kind: str, system: str | None, request: Any) -> None:
    from transformers import AutoTokenizer

    if kind == "built in":
        tokenizer, fresh = tiny_tokenizer(), tiny_tokenizer()
    else:
        folder = request.getfixturevalue("shared") / "models" / kind
        tokenizer, fresh = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert put_template(PromptEncoder(tokenizer, system), system, QUESTIONS[:1])
    encoder = PromptEncoder(fresh, system)
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        for options in ({}, {"add_generation_prompt": True}):
            ids = tokenizer.apply_chat_template(messages, return_dict=True, **options)["input_ids"]
            assert tuple(ids) == encoder.encode(question)
        assert PromptEncoder(tokenizer, system).encode(question) == encoder.encode(question)
    if system == PAPER_SYSTEM_PROMPT:
        own = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1"}]
        text = tokenizer.apply_chat_template(own, add_generation_prompt=True, tokenize=False)
        assert "Be brief." in text
        assert "helpful assistant for solving" not in text
