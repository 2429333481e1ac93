"""gtpo init --from-config: files of TRL and Unsloth, as their users write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gtpo_cli.errors import RecipeError
from gtpo_cli.machine.ready import check_recipe
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.tools.translate.translation import TranslatedRecipe, translated_recipe

UNSLOTH = """
from unsloth import FastLanguageModel, is_bfloat16_supported
import os
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

context = 1024
rank = 32
prompt_tokens = 256

model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Qwen2.5-3B-Instruct",
    max_seq_length=context,
    load_in_4bit=True,
    fast_inference=True,
    max_lora_rank=rank,
    gpu_memory_utilization=0.6,
)
model = FastLanguageModel.get_peft_model(
    model,
    r=rank,
    target_modules=["q_proj", "v_proj"],
    lora_alpha=2 * rank,
    use_gradient_checkpointing="unsloth",
    random_state=3407,
)
rows = load_dataset("openai/gsm8k", "main", split="train").map(lambda row: {"prompt": row["question"]})

def is_right(completions, answer, **kwargs):
    return [1.0 if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]

args = GRPOConfig(
    use_vllm=True,
    learning_rate=5e-6,
    adam_beta1=0.9,
    adam_beta2=0.99,
    weight_decay=0.1,
    warmup_ratio=0.1,
    lr_scheduler_type="cosine",
    optim="paged_adamw_8bit",
    logging_steps=1,
    bf16=is_bfloat16_supported(),
    per_device_train_batch_size=1,
    gradient_accumulation_steps=4,
    num_generations=6,
    max_prompt_length=prompt_tokens,
    max_completion_length=context - prompt_tokens,
    max_steps=250,
    save_steps=250,
    max_grad_norm=0.1,
    report_to="none",
    output_dir=os.environ["OUT"],
    entropy_coef=0.01,
    vllm_tensor_parallel_size=1,
)
trainer = GRPOTrainer(model=model, processing_class=tokenizer, reward_funcs=[is_right], args=args, train_dataset=rows)
trainer.train()
"""

TRL = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
dataset_name: sums.jsonl
load_in_4bit: true
use_peft: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
beta: 0.001
max_completion_length: 400
max_seq_length: 1024
num_generations: 4
temperature: 0.9
scale_rewards: false
reward_funcs: [rewards.is_right]
gradient_accumulation_steps: 4
per_device_train_batch_size: 8
num_train_epochs: 2
optim: adamw_bnb_8bit
lr_scheduler_type: constant_with_warmup
learning_rate: 2e-5
weight_decay: 0.01
warmup_steps: 10
bf16: true
packing: false
max_train_samples: 500
run_name: first try
seed: 42
deepspeed: zero2.json
some_new_switch: 3
"""


TRL_ON_TASK = "model_name_or_path: builtin:tiny\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def translated(name: str, text: str, **named: object) -> tuple[Recipe, TranslatedRecipe]:
    """The recipe, read back from its file and checked, and what was said."""
    Path(name).write_text(text)
    found = translated_recipe(Path(name), **({"model": None, "data": None} | named))  # type: ignore[arg-type]
    Path("mine.yaml").write_text(found.text)
    recipe = load_recipe("mine.yaml")
    check_recipe(recipe)
    return recipe, found


def values(recipe: Recipe, section: str, *keys: str) -> tuple[object, ...]:
    return tuple(getattr(getattr(recipe, section), key) for key in keys)


def test_a_script_for_unsloth() -> None:
    recipe, found = translated("train.py", UNSLOTH)
    assert found.tool == "Unsloth"
    model = ("name", "load_in_4bit", "max_seq_length", "gradient_checkpointing")
    assert values(recipe, "model", *model) == ("unsloth/Qwen2.5-3B-Instruct", True, 1024, True)
    lora = recipe.model.lora
    assert lora is not None
    assert (lora.rank, lora.alpha, lora.target_modules) == (32, 64, ("q_proj", "v_proj"))  # rank, 2 * rank: names
    assert values(recipe, "data", "benchmark", "max_prompt_tokens", "split") == ("gsm8k", 256, "train")
    rollout = (
        "engine",
        "group_size",
        "prompts_per_step",
        "max_completion_tokens",
        "gpu_memory_utilization",
        "temperature",
    )
    assert values(recipe, "rollout", *rollout) == ("auto", 6, 4, 768, 0.6, 1.0)  # 1 x 4 is no multiple of 6: 6 x 4
    assert values(recipe, "objective", "name", "average", "kl_coef") == ("grpo", "token", 0.0)
    optimizer = ("name", "learning_rate", "betas", "weight_decay", "max_grad_norm", "schedule", "warmup_ratio")
    assert values(recipe, "optimizer", *optimizer) == ("paged_adamw_8bit", 5e-6, (0.9, 0.99), 0.1, 0.1, "cosine", 0.1)
    assert values(recipe, "training", "max_steps", "save_every", "micro_batch_size") == (250, 250, 6)
    assert (recipe.seed, recipe.tracking.wandb.mode, recipe.output_dir) == (3407, "off", "runs")
    lines = UNSLOTH.splitlines()
    for words in ("bf16=is_bfloat16_supported()", 'output_dir=os.environ["OUT"]', "reward_funcs=[is_right]"):
        line = next(number for number, text in enumerate(lines, start=1) if words in text)
        said = words.replace("=", " = ", 1).replace('"', "'")
        assert [one for one in found.remarks if one.startswith(f"left out: {said} (line {line}): ")], words
    assert "  engine: auto  # use_vllm, fast_inference" in found.text.splitlines()
    assert (
        "left out: max_lora_rank (line 16): 32: vLLM is told the adapter's own rank, model.lora.rank" in found.remarks
    )
    assert any(one.startswith("left out: entropy_coef (line 53): 0.01: it is a bonus") for one in found.remarks)
    assert found.remarks[-1] == "left out, without a counterpart: vllm_tensor_parallel_size (line 54)"
    assert found.remarks[0].startswith(
        "a step is 4 prompts x 6 completions: num_generations 6 (so Unsloth sets the batch size) x "
        "gradient_accumulation_steps 4, on one device"
    )
    assert all(f"# {one}" in found.text.splitlines() for one in found.remarks)


def test_a_yaml_of_trl() -> None:
    rows = [{"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "It is\n#### 2"}]}] * 12
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe, found = translated("grpo.yml", TRL)
    assert found.tool == "TRL"
    assert values(recipe, "model", "name", "load_in_4bit", "dtype") == ("Qwen/Qwen2.5-1.5B-Instruct", True, "bfloat16")
    assert recipe.model.lora is not None
    assert (recipe.model.lora.rank, recipe.model.lora.alpha) == (16, 32)
    assert values(recipe, "data", "path", "gold", "limit", "max_prompt_tokens") == ("sums.jsonl", "hashes", 500, 624)
    assert (recipe.data.columns.question, recipe.data.columns.answer) == ("messages", "messages")
    rollout = ("group_size", "prompts_per_step", "max_completion_tokens", "temperature")
    assert values(recipe, "rollout", *rollout) == (4, 8, 400, 0.9)  # 8 x 4 completions / 4
    objective = ("name", "kl_coef", "average")
    assert values(recipe, "objective", *objective) == ("grpo", 0.001, "token")
    assert recipe.objective.advantages.config == {"scale": "none"}
    optimizer = ("name", "learning_rate", "betas", "weight_decay", "schedule", "warmup_ratio")
    assert values(recipe, "optimizer", *optimizer) == ("adamw_8bit", 2e-5, (0.9, 0.999), 0.01, "constant", 0.0)
    assert values(recipe, "training", "epochs", "micro_batch_size") == (2, 8)
    assert recipe.seed == 42
    words = "per_device_train_batch_size 8 x gradient_accumulation_steps 4"
    assert found.remarks[0].startswith(f"a step is 8 prompts x 4 completions: {words}, on one device")
    left_out = {
        one.removeprefix("left out: ").partition(":")[0] for one in found.remarks if one.startswith("left out: ")
    }
    assert {"lora_dropout", "warmup_steps", "reward_funcs", "run_name", "deepspeed"} <= left_out
    assert "packing" not in left_out  # switched off there, not there at all here
    assert found.remarks[-1] == "left out, without a counterpart: some_new_switch"


def test_what_a_script_for_trl_leaves_open_is_trls_default() -> None:
    script = """
from trl import GRPOConfig, GRPOTrainer
config = GRPOConfig("out", num_generations=4, max_steps=100, warmup_steps=5, epsilon=0.1, epsilon_high=0.3, beta=0.04)
GRPOTrainer("Qwen/Qwen2.5-0.5B-Instruct", args=config, reward_funcs="a/reward-model", train_dataset=rows).train()
"""
    data = {"benchmark": "arithmetic"}
    recipe, found = translated("train.py", script, data=data)
    assert found.tool == "TRL"
    assert values(recipe, "model", "name", "lora", "load_in_4bit") == ("Qwen/Qwen2.5-0.5B-Instruct", None, False)
    assert recipe.output_dir == "out"
    assert values(recipe, "rollout", "group_size", "prompts_per_step", "max_completion_tokens") == (
        4,
        2,
        512,
    )  # 8 x 1 / 4
    assert (recipe.objective.clip.low, recipe.objective.clip.high, recipe.objective.kl_coef) == (0.1, 0.3, 0.04)
    optimizer = ("learning_rate", "betas", "weight_decay", "max_grad_norm", "schedule", "warmup_ratio")
    assert values(recipe, "optimizer", *optimizer) == (1e-6, (0.9, 0.999), 0.0, 1.0, "linear", 0.05)
    assert "  weight_decay: 0.0  # TRL's default" in found.text.splitlines()


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ("loss_type='sapo'", "loss_type: sapo: no such loss here"),
        ("optim='lion_8bit'", "optim (line 1): lion_8bit: there are adamw, adamw_8bit, paged_adamw_8bit"),
        ("scale_rewards='batch'", "scale_rewards: batch: rewards are scaled within a group, or not at all"),
        ("num_train_epochs=0.5", "num_train_epochs (line 1): 0.5: a whole number is needed here"),
        ("num_generations=3", "per_device_train_batch_size 8 x gradient_accumulation_steps 1: is no multiple of "
         "num_generations, 3, which TRL refuses"),
        ("gradient_accumulation_steps='auto'", "gradient_accumulation_steps: auto: is no number of 1 or more"),
        ("seed=1, data_seed=2", "data_seed (line 1): 2: seed is 1 by seed"),
        ("optim=['adamw']", "optim (line 1): ['adamw']: there are adamw"),
        ("cliprange=0.1", "cliprange (line 1): 0.1: use objective.clip: clip range"),
        ("max_completion_length=None, delta=1.5", "without a counterpart: delta (line 1)"),
        ("top_p=0.9", "top_p (line 1): 0.9: training samples from the policy itself"),
        ("**settings", "**settings (line 1): no plain value, and nothing of the script is run"),
    ],
)  # fmt: skip
def test_values_without_a_counterpart_are_said_and_the_rest_is_written(words: str, lacks: str) -> None:
    script = f"GRPOConfig(learning_rate=3e-6, {words})\n"
    recipe, found = translated("train.py", script, model="builtin:tiny", data={"benchmark": "arithmetic"})
    assert any(one.startswith("left out") and lacks in one for one in found.remarks), found.remarks
    assert recipe.optimizer.learning_rate == 3e-6


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", "import os\n", r"has no GRPOConfig\(\.\.\.\) call"),
        ("a.py", "GRPOConfig(\n", "line 1: is not Python"),
        ("a.py", "GRPOConfig(output_dir='out')\n", "names no model that can be read"),
        ("a.py", "GRPOTrainer(model='m', args=GRPOConfig())\n", "names no data that can be read; name them: --data"),
        ("a.ipynb", "{}", "jupyter nbconvert --to script"),
        ("a.yaml", "model: {name: m}\ndata: {benchmark: gsm8k}\n", "is already a recipe"),
        ("a.yaml", "epochs: 3\n", "names no model as TRL does"),
        (
            "a.yaml",
            "model_name_or_path: m\nlearning_rate: -1\n",
            r"a\.yaml, in gtpo's words: optimizer\.learning_rate",
        ),
    ],
)
def test_what_is_no_such_file_is_refused(name: str, text: str, words: str) -> None:
    Path(name).write_text(text)
    data = {"benchmark": "gsm8k"} if "learning_rate" in text else None
    with pytest.raises(RecipeError, match=words):
        translated_recipe(Path(name), model=None, data=data)


def test_a_script_is_never_run_and_names_are_only_followed_where_they_mean_one_value() -> None:
    script = """
open("ran", "w")
rate = 1e-5
twice = 1
twice = 2
loop = loop + 1
steps = 10 * (2 + 3) - 1
def main(rate_of_main, seed=7, **settings):
    settings = {"seed": 5, "temperature": 0.7}
    return GRPOConfig(learning_rate=rate, max_steps=steps, top_k=twice, top_p=loop, beta=1 / 0,
                      weight_decay=seed, **more)
more = {"seed": 5, "temperature": 0.7}
"""
    recipe, found = translated("train.py", script, model="builtin:tiny", data={"benchmark": "arithmetic"})
    assert not Path("ran").exists()
    assert (recipe.optimizer.learning_rate, recipe.training.max_steps) == (1e-5, 49)
    assert (recipe.seed, recipe.rollout.temperature) == (5, 0.7)
    unread = [one.removeprefix("left out: ").partition(" (line")[0] for one in found.remarks if "no plain value" in one]
    assert unread == ["top_k = twice", "top_p = loop", "beta = 1 / 0", "weight_decay = seed"]


PROMPTED = '''
FORMAT = """Respond so:
<think>
...
</think>
<final>
...
</final>
"""
def rows():
    return load_dataset("openai/gsm8k", "main")["train"].map(lambda row: {"prompt": [
        {"role": "system", "content": PROMPT},
        {"role": "user", "content": row["question"]},
    ]})
args = GRPOConfig(output_dir="out")
trainer = GRPOTrainer(
    "a/b", args=args, train_dataset=rows(),
    reward_funcs=[xmlcount_reward_func, soft_format_reward_func, strict_format_reward_func, int_reward_func, correct],
)
'''


def test_the_system_prompt_of_a_script_is_the_recipes_with_the_tags_that_it_asks_for(tmp_path: Path) -> None:
    """Otherwise the run would ask for one form and pay another."""
    script = tmp_path / "train.py"
    script.write_text(PROMPTED.replace("PROMPT}", "FORMAT}"))
    found = translated_recipe(script, model=None, data={"benchmark": "gsm8k"})
    (tmp_path / "mine.yaml").write_text(found.text)
    recipe = load_recipe(str(tmp_path / "mine.yaml"))
    assert recipe.data.system_prompt == "Respond so:\n<think>\n...\n</think>\n<final>\n...\n</final>\n"
    assert (recipe.rewards.tags.reasoning, recipe.rewards.tags.answer) == ("think", "final")
    functions = "xmlcount_reward_func, soft_format_reward_func, strict_format_reward_func, int_reward_func, correct"
    assert any(one.startswith(f"left out: reward_funcs = [{functions}] (line 18): move") for one in found.remarks)
    script.write_text(PROMPTED.replace("PROMPT}", "FORMAT.strip()}"))
    remarks = translated_recipe(script, model=None, data={"benchmark": "gsm8k"}).remarks
    said = "left out: system_prompt = FORMAT.strip() (line 12): no plain value, and nothing of the script is run"
    assert said in remarks


@pytest.mark.parametrize(
    ("prompt", "reasoning", "place", "answer"),
    [
        ("First <answer>x</answer>, then why: <why>y</why>", "why", "tags", "answer"),
        ("<work>x</work><mine>y</mine>", "work", "tags", "mine"),  # of other names the second
        ("Only <final_answer>x</final_answer>", None, "tags", "final_answer"),
        ("<think>x</think> and \\boxed{y}", "think", "boxed", "answer"),
        ("<think>x</think><answer>\\boxed{y}</answer>", "think", "tags", "answer"),
        ("Put it in \\boxed{}.", None, "boxed", "answer"),
    ],
)
def test_where_the_system_prompt_asks_for_the_answer(
    prompt: str, reasoning: str | None, place: str, answer: str
) -> None:
    recipe, _ = translated(
        "t.yaml", TRL_ON_TASK + f"system_prompt: {json.dumps(prompt)}\n", data={"benchmark": "arithmetic"}
    )
    assert recipe.data.system_prompt == prompt
    assert recipe.rewards.answer == place
    assert (recipe.rewards.tags.reasoning, recipe.rewards.format.tags.answer) == (reasoning, answer)


def test_a_prompt_with_more_tags_is_left_to_the_user() -> None:
    prompt = "<think>x</think><check>y</check><answer>z</answer>"
    _, found = translated(
        "t.yaml", TRL_ON_TASK + f"system_prompt: {json.dumps(prompt)}\n", data={"benchmark": "arithmetic"}
    )
    said = "left out: system_prompt: asks for think, check, answer; write into rewards what counts as the answer"
    assert said in found.remarks


@pytest.mark.parametrize(
    ("call", "data", "said"),
    [
        ('load_dataset("openai/gsm8k", "main", split="train[:100]")', {"benchmark": "gsm8k"}, "the part [:100] of the"),
        ('load_dataset("a/b", data_files="one.csv")', {"benchmark": "hub", "dataset": "a/b"}, "data_files is left out"),
        ('load_dataset("openai/gsm8k", "main", revision="v1")', {"dataset": "openai/gsm8k:main@v1"}, None),
        ('load_dataset("csv", data_files="one.csv")', {"benchmark": "local", "path": "one.csv"}, None),
        ('load_dataset("csv", data_files=["one.csv", "two.csv"])', None, "and here are several files"),
        ('load_dataset("openai/gsm8k", "socratic")', {"benchmark": "hub", "dataset": "openai/gsm8k:socratic"}, None),
    ],
)
def test_the_data_of_a_script(call: str, data: dict[str, str] | None, said: str | None) -> None:
    Path("one.csv").write_text("question,answer\n1+1,2\n")
    Path("t.py").write_text(f"rows = {call}\nargs = GRPOConfig(output_dir='o')\nt = GRPOTrainer('a/b', args=args)\n")
    if data is None:
        with pytest.raises(RecipeError, match=said):
            translated_recipe(Path("t.py"), model=None, data=None)
        return
    found = translated_recipe(Path("t.py"), model=None, data=None)
    Path("mine.yaml").write_text(found.text)
    source = load_recipe("mine.yaml").data.model_dump(exclude_unset=True)
    assert {key: source[key] for key in data} == data
    if said is not None:
        assert any(said in one for one in found.remarks)
