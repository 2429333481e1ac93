"""The model card: what the model is, how it was made and measured, how to ask it, and what it is not.

From the run folder alone. Nothing that a model wrote is in it, and no path of the machine: folders are named without
what leads to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gtpo_cli.data.benchmarks import BENCHMARKS
from gtpo_cli.evaluation.records import Conditions, Results, Score
from gtpo_cli.evaluation.store import find_evaluations
from gtpo_cli.export.check import Difference
from gtpo_cli.export.usage import Prompting, fenced, how_to_ask
from gtpo_cli.models.tiny import BUILTIN_PREFIX
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.text import markdown_sentence, one_line
from gtpo_cli.text import markdown_text as _plain
from gtpo_cli.tracking import read_metrics
from gtpo_cli.training.summary import changes

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SCORES = ("accuracy", "pass@", "maj@", "strict_format_rate", "truncated_share", "mean_length")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the card says that is not in the run folder. `base`: its public name. `notes`: what the export cost, in
    sentences. `hub_name`: where it will be on the hub, if anywhere."""

    run: RunFolder
    recipe: Recipe
    step: int
    format: str
    dtype: str
    base: str
    prompting: Prompting
    difference: Difference
    notes: tuple[str, ...]
    hub_name: str | None


def model_card(facts: Facts) -> str:
    """The text of README.md. Raises EvaluationError for evaluations of the run that cannot be read."""
    recipe = facts.recipe
    name = facts.run.name or facts.run.path.resolve().name
    sections = [
        _front_matter(facts),
        f"# {_plain(name)}\n\n{_about(facts)}",
        "## How to ask it\n\n" + how_to_ask(facts.format, facts.hub_name, facts.prompting, recipe),
        "## Data\n\n" + _data(recipe),
        "## Training\n\n" + _training(facts),
        "## Evaluation\n\n" + _evaluation(facts),
        "## This export\n\n" + _export(facts),
        "## Limits\n\n" + _limits(facts),
        "## Recipe\n\n" + fenced(shown_recipe(recipe), "yaml"),
    ]
    return "\n\n".join(section.rstrip() for section in sections) + "\n"


def public_name(name: str) -> str:
    """A model or file as it may be told: a hub id or built-in model as it is, a path by its last part."""
    if name.startswith(BUILTIN_PREFIX) or (_HUB_ID.fullmatch(name) and not Path(name).exists()):
        return name
    return Path(name).name or "."


def shown_recipe(recipe: Recipe) -> str:
    """The recipe as YAML, without what concerns the machine or the account it ran with."""
    document = recipe.model_dump(mode="json")
    document["model"]["name"] = public_name(document["model"]["name"])
    if document["data"]["path"] is not None:
        document["data"]["path"] = Path(document["data"]["path"]).name
    for key in ("output_dir", "tracking"):
        del document[key]
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    return text


def _front_matter(facts: Facts) -> str:
    recipe = facts.recipe
    head: dict[str, Any] = {}
    if _is_hub_id(facts.base):
        head |= {
            "base_model": facts.base,
            "base_model_relation": "adapter" if facts.format == "adapter" else "finetune",
        }
    head |= {
        "library_name": {"adapter": "peft", "gguf": "gguf"}.get(facts.format, "transformers"),
        "pipeline_tag": "text-generation",
        "tags": ["gtpo_cli", recipe.objective.name]
        + ([] if recipe.objective.name == "sft" else ["reinforcement-learning"]),
    }
    hub = BENCHMARKS[recipe.data.benchmark].hub if recipe.data.benchmark in BENCHMARKS else None
    if hub is not None and recipe.data.path is None:
        head["datasets"] = [hub.id]
    return "---\n" + yaml.safe_dump(head, sort_keys=False, allow_unicode=True) + "---"


def _is_hub_id(name: str) -> bool:
    return "/" in name and _HUB_ID.fullmatch(name) is not None


def _about(facts: Facts) -> str:
    recipe, base = facts.recipe, facts.base
    method = recipe.objective.name.upper()
    lora = recipe.model.lora
    what = "all weights trained" if lora is None else f"a LoRA adapter of rank {lora.rank}, alpha {lora.alpha:g}"
    bits = ", on the base's weights in 4 bits (NF4)" if recipe.model.load_in_4bit else ""
    how = "supervised fine-tuning" if method == "SFT" else "reinforcement learning with verifiable rewards"
    revision = f" (revision {_plain(recipe.model.revision)})" if recipe.model.revision else ""
    return (
        f"{_plain(base)}{revision} after {facts.step} steps of {how} with gtpo ({method}; {what}{bits}). Format of "
        f"this folder: {facts.format}, {facts.dtype}."
    )


def _data(recipe: Recipe) -> str:
    data = recipe.data
    words = {
        "arithmetic": "The built-in task: chains of three additions and subtractions of one-digit numbers, generated",
        "local": f"A local file or folder ({_plain(Path(data.path or '').name)})",
    }.get(data.benchmark, f"The benchmark {data.benchmark}")
    where = (
        "" if data.path is None or data.benchmark == "local" else f", read from files ({_plain(Path(data.path).name)})"
    )
    limit = "" if data.limit is None else f", the first {data.limit} problems"
    return f"{words}{where}; split {_plain(data.split)}{limit}. The rewards compare the answer with the gold answer."


def _training(facts: Facts) -> str:
    file = facts.run.metrics_file
    rows = [row for row in read_metrics(file) if row["step"] <= facts.step] if file.exists() else []
    table = [
        f"| {_plain(change.words)} | {change.shown.format(change.first)} | {change.shown.format(change.last)} |"
        for change in changes(rows)
    ]
    if not table:
        return f"{facts.step} steps; no metrics of them are in the run folder."
    steps = changes(rows)[0].steps
    head = f"On the training problems, sampled at temperature {facts.recipe.rollout.temperature:g}:\n\n"
    return head + "\n".join([f"| | first {steps} steps | last {steps} steps |", "|---|---:|---:|", *table])


def _evaluation(facts: Facts) -> str:
    subject = f"step-{facts.step:06d}"
    chosen: dict[tuple[str, str], tuple[Conditions, Results]] = {}
    for stored in find_evaluations(facts.run):  # oldest first
        key = (stored.conditions.benchmark, stored.conditions.subject)
        size = (stored.conditions.problems, stored.conditions.samples)
        if key not in chosen or size >= (chosen[key][0].problems, chosen[key][0].samples):
            chosen[key] = stored.conditions, stored.results()
    benchmarks = [benchmark for benchmark, found in chosen if found == subject]
    if not benchmarks:
        return "None was made of this checkpoint (`gtpo eval`): how well it answers new problems is not known."
    return "\n\n".join(_scores(chosen, benchmark, subject) for benchmark in benchmarks)


def _scores(chosen: Mapping[tuple[str, str], tuple[Conditions, Results]], benchmark: str, subject: str) -> str:
    conditions, results = chosen[benchmark, subject]
    base = chosen.get((benchmark, "base"))
    if base is not None and not _comparable(base[0], conditions):
        base = None
    lines = [
        f"{_plain(benchmark)}, {_plain(conditions.split)} split: {conditions.problems} problems, {conditions.samples} "
        f"completions each, temperature {conditions.temperature:g}, top-p {conditions.top_p:g}, at most "
        f"{conditions.max_completion_tokens} tokens. In brackets 95 % bootstrap intervals over problems.",
        "",
        "| | this model |" + (" before training |" if base else ""),
        "|---|---:|" + ("---:|" if base else ""),
    ]
    for name, score in results.scores.items():
        if name.startswith(_SCORES):
            before = base[1].scores.get(name) if base else None
            cells = [_score(name, score), *([_score(name, before)] if base else [])]
            lines.append(f"| {_plain(name.replace('_', ' '))} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _comparable(one: Conditions, other: Conditions) -> bool:
    keys = ("data_digest", "samples", "temperature", "top_p", "max_completion_tokens", "format_mode", "system_prompt")
    return all(getattr(one, key) == getattr(other, key) for key in keys)


def _score(name: str, score: Score | None) -> str:
    if score is None:
        return ""
    factor, unit = (1.0, "") if name == "mean_length" else (100.0, " %")
    low, value, high = (factor * x for x in (score.interval.low, score.interval.estimate, score.interval.high))
    return f"{value:.1f}{unit} ({low:.1f} to {high:.1f})"


def _export(facts: Facts) -> str:
    check = (
        f"It was loaded back and compared with the run's policy on its greedy answers to questions of the run: "
        f"{facts.difference}."
    )
    return " ".join((check, *map(markdown_sentence, facts.notes))) + " `export.json` has the figures."


def _code(text: str) -> str:
    """Text as code within a line, which the text itself cannot end."""
    return f"`{one_line(text).replace('`', chr(0x2035))}`"


def _limits(facts: Facts) -> str:
    recipe = facts.recipe
    rewards = [_code(plugin.name) for plugin in recipe.rewards.plugins]
    lines = [
        "It was rewarded for answers that a program can check, in the tags `<reasoning>` and `<answer>`"
        + (f", and by {', '.join(rewards)}" if rewards else "")
        + ". Whether the reasoning shown is what led to the answer was never rewarded.",
        "Nothing but the problems above was measured: neither other tasks and languages, nor safety, nor bias. What "
        "its base gets wrong there it may still get wrong, or more so.",
        "Figures of training are of problems it trained on; only an evaluation is of new ones.",
        f"It trained on prompts of at most {recipe.data.max_prompt_tokens} tokens and completions of at most "
        f"{recipe.rollout.max_completion_tokens}; longer ones are outside of what it knows.",
        "The licence is that of the base model and of the data, which this card does not know: state it before you "
        "share the model.",
    ]
    if recipe.model.name.startswith(BUILTIN_PREFIX):
        lines.insert(0, "The built-in model reads characters and adds digits: a demonstration, of no other use.")
    return "\n".join(f"- {line}" for line in lines)
