"""A model whose chat template opens the reasoning is trained, measured, asked and exported; right answers are paid."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from commands import Run
from transformers import AutoTokenizer

from gtpo_cli.policy.tiny import resolve_name

NOTE = "the chat template ends the prompt with <reasoning>, which counts as the completion's"
SETTINGS = ["--set", "model.name=./thinker", "--set", "data.system_prompt=null", "--set", "training.max_steps=3"]


@pytest.fixture
def thinker(tmp_path: Path) -> Path:
    """The built-in model with a template that ends the prompt with <reasoning>, as models that think open theirs."""
    folder = shutil.copytree(resolve_name("builtin:tiny"), tmp_path / "thinker")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if add_generation_prompt %}<reasoning>{% endif %}")
    return folder


def metrics(tmp_path: Path, run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (tmp_path / "runs" / run / "metrics.jsonl").read_text().splitlines()]


def test_what_the_template_opens_counts_from_training_to_the_export(gtpo: Run, thinker: Path, tmp_path: Path) -> None:
    said = gtpo("train", "--recipe", "tiny_arithmetic", *SETTINGS, "--name", "one").stdout
    assert NOTE in said
    for step in metrics(tmp_path, "one"):
        assert step["train/accuracy_rate"] > 0.2
        assert step["train/strict_format_rate"] > 0.5
    assert f"note     prompts          {NOTE}" in gtpo("doctor", "--recipe", "tiny_arithmetic", *SETTINGS).stdout
    scores = json.loads(gtpo("eval", "runs/one", "--limit", "20", "--json").stdout)["evaluations"][0]["scores"]
    assert scores["strict_format_rate"]["estimate"] > 0.5
    assert scores["pass@1"]["estimate"] > 0.2
    answered = gtpo("generate", "runs/one", "3+8-2+5", "--gold", "14", "--greedy").stdout
    assert "<reasoning>" not in answered
    assert "answer   14\n" in answered
    assert "verdict  correct" in answered
    gtpo("export", "runs/one")
    export = tmp_path / "runs/one/export/merged"
    assert "The prompt ends with `<reasoning>`, so an answer goes on from there." in (export / "README.md").read_text()
    asked = AutoTokenizer.from_pretrained(export).apply_chat_template(
        [{"role": "user", "content": "1+1"}], tokenize=False, add_generation_prompt=True
    )
    assert asked == "<s><user>1+1<assistant><reasoning>"


def test_sft_does_not_teach_the_opened_tag_again(gtpo: Run, thinker: Path, tmp_path: Path) -> None:
    sft = ["train", "--recipe", "tiny_arithmetic", *SETTINGS, "--set", "objective.name=sft"]
    gtpo(*sft, "--name", "sft")
    gtpo(*sft, "--name", "plain", "--set", "model.name=builtin:tiny")
    opened, whole = metrics(tmp_path, "sft"), metrics(tmp_path, "plain")
    for step, usual in zip(opened, whole, strict=True):
        assert usual["completions/length_mean"] - step["completions/length_mean"] == 3  # the tokens of <reasoning>
        assert step["optim/loss"] < 0.2


def test_init_takes_over_the_tag_that_the_template_opens(gtpo: Run, thinker: Path, tmp_path: Path) -> None:
    template = thinker / "chat_template.jinja"
    template.write_text(template.read_text().replace("<reasoning>", "<think>") + "{# until </think> #}")
    gtpo("init", "mine.yaml", "--model", "./thinker", "--benchmark", "arithmetic")
    written = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert written["rewards"]["format"]["tags"] == {"reasoning": "think"}
    assert "between <think> and </think>" in written["data"]["system_prompt"]
    said = gtpo("train", "--recipe", "mine.yaml", "--dry-run").stdout
    assert NOTE.replace("<reasoning>", "<think>") in said
