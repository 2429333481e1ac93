"""A real pre-trained model from `make real-model`: what the folder holds, and what `make demo-real` types."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from commands import ROOT, Run, metrics
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from gtpo_cli.tasks.making import task_problems

MODEL = ROOT / "build" / "smollm2-135m"
WHOLE = (MODEL / "model.safetensors").is_file()  # written last
needs_model = pytest.mark.skipif(not WHOLE, reason=f"{MODEL.name} is not here: make real-model makes it")


@needs_model
def test_the_folder_has_the_weights_and_the_tokenizer_of_the_model() -> None:
    with safe_open(MODEL / "model.safetensors", "pt") as weights:
        kept = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
        assert sum(math.prod(one.get_shape()) for one in kept.values()) == 134_515_008
        assert {one.get_dtype() for one in kept.values()} == {"BF16"}
        assert "lm_head.weight" not in kept
    config = json.loads((MODEL / "config.json").read_text())
    assert (config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]) == (64, 9, 3)
    assert config["tie_word_embeddings"] is True
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    assert [tokenizer.decode(token) for token in tokenizer.encode("57 + 6")] == ["5", "7", " +", " ", "6"]
    assert tokenizer.decode(tokenizer.encode("Zoë's 3 apples\n")) == "Zoë's 3 apples\n"
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert said.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert said.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@needs_model
def test_it_answers_sums() -> None:
    """Pre-trained weights know this; anything mistaken in the conversion does not."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(MODEL), AutoTokenizer.from_pretrained(MODEL)
    right = 0
    for first, second in ((2, 3), (4, 4), (5, 2), (6, 1), (7, 5), (8, 3)):
        asked = [{"role": "user", "content": f"What is {first} + {second}? Answer with the number only."}]
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        said = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        right += str(first + second) in tokenizer.decode(said)
    assert right >= 3


@needs_model
def test_the_demonstration_typed(gtpo: Run, tmp_path: Path) -> None:
    """One small step each of what make demo-real does in full."""
    one = ["--set", "training.max_steps=1", "--set", "rollout.prompts_per_step=2"]
    gtpo("train", "--recipe", "smollm135m_tasks_sft", "--set", f"model.name={MODEL}", *one)
    few = ("rollout.max_completion_tokens=24", "evaluation.max_completion_tokens=24")
    less = ("rollout.group_size=2", "objective.probe.num_prompts=2", *few)
    small = [part for setting in less for part in ("--set", setting)]
    done = gtpo(
        "train", "--recipe", "smollm135m_tasks", "--from", "runs/smollm135m_tasks_sft", *one, *small, "--name", "gtpo"
    )
    assert "right at first: " in done.stdout
    (step,) = metrics(tmp_path / "runs" / "gtpo")
    assert step["sampler/gap_max"] < 1e-3
    done = gtpo("eval", "runs/gtpo", "--base", "--limit", "2", "--pass-k", "2")
    evaluations = tmp_path / "runs" / "gtpo" / "evaluation" / "mixture"
    (stored,) = evaluations.glob("step-000001-*/samples.jsonl")
    lines = [json.loads(line) for line in stored.read_text().splitlines()]
    sizes = {"chain_sum": {"max_terms": 3, "max_digits": 2}, "products": {"max_terms": 3, "max_digits": 1}}
    asked = [task_problems(f"reasoning_gym/{task}", size, "test", 0, 2) for task, size in sizes.items()]
    assert sorted(line["question"] for line in lines) == sorted(one.question for part in asked for one in part)
    assert "mixture test: 4 problems, 2 completions each" in done.stdout
    assert len(list(evaluations.glob("base-*"))) == 1
    short = ("--set", few[1])
    untrained = gtpo("eval", str(MODEL), "--recipe", "smollm135m_tasks", "--limit", "1", "--pass-k", "1", *short)
    assert "mixture test: 2 problems, 1 completion each" in untrained.stdout
