"""What gtpo init writes: a recipe that fits by the plan, no smaller than it must be."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from gtpo_cli.errors import DataError, RecipeError
from gtpo_cli.machine import first_recipe as planning
from gtpo_cli.machine import fit
from gtpo_cli.machine.first_recipe import RECIPE_SIZES, RecipeSize, first_recipe
from gtpo_cli.machine.fit import make_plan
from gtpo_cli.machine.installed import GIB, Card, find_gpu
from gtpo_cli.machine.ready import problems_of
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.engines import choose_engines
from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.recipe import Recipe, load_recipe

LLAMA, QWEN = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-3B-Instruct"
GSM8K = {"benchmark": "gsm8k"}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def written(folder: Path, model: str, data: dict[str, str], gpu: Card | float | None) -> Recipe:
    """The recipe, read back from its file."""
    (folder / "mine.yaml").write_text(first_recipe(model, data, gpu).text)
    return load_recipe(folder / "mine.yaml")


def setting(recipe: Recipe) -> RecipeSize:
    assert recipe.model.lora is not None
    assert recipe.model.max_seq_length == recipe.data.max_prompt_tokens + recipe.rollout.max_completion_tokens
    rollout = recipe.rollout
    return RecipeSize(
        recipe.model.lora.rank, recipe.data.max_prompt_tokens, rollout.max_completion_tokens, rollout.group_size
    )


@pytest.mark.parametrize(
    ("model", "gpu", "number"),
    [(LLAMA, "a100-80gb", 0), (LLAMA, "4090", 0), (LLAMA, "12", 1), (LLAMA, "10", None), (QWEN, "8", None),
     (QWEN, "t4", 0)],
)  # fmt: skip
def test_it_fits_and_the_next_larger_setting_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, gpu: str, number: int | None
) -> None:
    monkeypatch.setattr(fit, "PUBLISHED_PROMPTS", {})  # prompts as long as the recipe allows
    size = find_gpu(gpu)
    recipe = written(tmp_path, model, GSM8K, size)
    plan = make_plan(recipe, gpu=size)
    assert plan.fits
    chosen = RECIPE_SIZES.index(setting(recipe))
    assert number is None or chosen == number
    if plan.memory.sequences is not None and plan.engines.shared:  # no larger share would sample more at once
        assert plan.better_share is None
    for larger in RECIPE_SIZES[:chosen]:
        changes = [
            f"model.lora={{rank: {larger.rank}, alpha: {larger.rank}}}", f"data.max_prompt_tokens={larger.prompt}",
            f"model.max_seq_length={larger.prompt + larger.completion}", f"rollout.group_size={larger.group}",
            f"rollout.max_completion_tokens={larger.completion}", "training.micro_batch_size=1",
        ]  # fmt: skip
        for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
            tried = load_recipe(tmp_path / "mine.yaml", [*changes, f"rollout.gpu_memory_utilization={share}"])
            assert not make_plan(tried, gpu=size).fits


def test_known_data_bound_the_prompts_and_small_models_are_not_put_in_4_bits(tmp_path: Path) -> None:
    recipe = written(tmp_path, str(resolve_name("builtin:tiny")), {"benchmark": "arithmetic"}, 8 * GIB)
    assert recipe.data.max_prompt_tokens == 192  # the longest, with the system prompt, of 64 at a time
    assert not recipe.model.load_in_4bit
    assert recipe.optimizer.name == "adamw"


def test_without_a_gpu_it_writes_what_starts_on_a_cpu(tmp_path: Path) -> None:
    tiny = str(resolve_name("builtin:tiny"))
    recipe = written(tmp_path, tiny, {"benchmark": "arithmetic"}, None)
    assert problems_of(Parts(recipe)) == []
    assert str(choose_engines(recipe, gpu=False, installed=())) == "transformers"
    assert (recipe.model.load_in_4bit, recipe.model.gradient_checkpointing) == (False, False)
    assert recipe.model.lora is not None
    assert (recipe.model.lora.rank, recipe.model.lora.alpha) == (16, 32)
    assert (recipe.optimizer.name, recipe.optimizer.learning_rate, recipe.optimizer.betas) == (
        "adamw",
        1e-4,
        (0.9, 0.95),
    )
    assert (recipe.rollout.engine, recipe.rollout.group_size, recipe.rollout.prompts_per_step) == ("transformers", 8, 4)
    assert (recipe.data.max_prompt_tokens, recipe.model.max_seq_length) == (192, 448)  # as long as the data need
    assert (recipe.training.max_steps, recipe.training.save_every) == (100, 25)


def test_a_model_that_would_fill_the_memory_of_a_machine_without_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "main_memory", lambda: 16.0 * GIB)
    words = r"8\.0 billion weights, 29\.9 GiB in 32 bits, and this machine has no GPU and 16\.0 GiB; name the GPU"
    with pytest.raises(RecipeError, match=words):
        first_recipe(LLAMA, GSM8K, None)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not fit 6 GiB, even with an adapter of rank 8"):
        first_recipe(LLAMA, GSM8K, 6 * GIB)
    with pytest.raises(DataError, match=r"absent\.jsonl: no such file"):  # though the model's tokenizer is not here
        first_recipe(LLAMA, {"benchmark": "local", "path": "absent.jsonl"}, 24 * GIB)
    words = tmp_path / "words.jsonl"
    words.write_text(json.dumps({"question": "1+2 " * 100, "answer": "3"}) + "\n")
    with pytest.raises(RecipeError, match=r"gtpo init: steps and prompts are not known here: .*too long"):
        first_recipe("builtin:tiny", {"benchmark": "local", "path": str(words)}, None)


DATES = [{"sentence": f"day {day}", "iso_date": f"2020-10-{day}", "source": "made"} for day in range(10, 30)]


def test_columns_that_cannot_be_guessed_are_asked_for_by_name_and_codes_are_compared_as_text(tmp_path: Path) -> None:
    file = tmp_path / "dates.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in DATES))
    data = {"benchmark": "local", "path": str(file)}
    with pytest.raises(RecipeError, match="found sentence, iso_date, source; name them: --question NAME --answer NAME"):
        first_recipe("builtin:tiny", data, None)
    named = data | {"columns": {"question": "sentence", "answer": "iso_date"}}
    made = first_recipe("builtin:tiny", named, None)
    assert f"{file}: no use is made of source (data.columns)" in made.plan.notes
    (tmp_path / "mine.yaml").write_text(made.text)
    recipe = load_recipe(tmp_path / "mine.yaml")
    assert (recipe.data.columns.question, recipe.data.columns.answer) == ("sentence", "iso_date")
    assert recipe.rewards.accuracy.equality == "text"


def test_the_system_prompt_stands_in_the_file_and_speaks_of_mathematics_only_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "dates.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in DATES))
    named = {"benchmark": "local", "path": str(file), "columns": {"question": "sentence", "answer": "iso_date"}}
    tiny = str(resolve_name("builtin:tiny"))
    prompt = written(tmp_path, tiny, named, None).data.system_prompt
    assert prompt is not None
    assert prompt.startswith("You are a helpful assistant.\nGiven a question")
    assert "system_prompt:" in (tmp_path / "mine.yaml").read_text()
