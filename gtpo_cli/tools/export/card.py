"""Write the model card: what the model is, how it was made and measured, how to prompt it, and what it is not.

The data come only from the run folder; the text is in templates/card.md.j2. It contains nothing that a model wrote.
Folders are named without their parents, except in the lines that load a local export (`gtpo_cli.tools.export.using`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from gtpo_cli.data.benchmarks import hub_source
from gtpo_cli.evaluation.store import Conditions, Score, largest_evaluations
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.data import BUILT_IN, OWN, SourceRecipe, is_task
from gtpo_cli.rewards.extract import tag_texts
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.text import counted, markdown_sentence, markdown_text, printable
from gtpo_cli.tools.export.folder import Exported
from gtpo_cli.tools.export.using import HUB_ID, Prompting, Use, literal, public_name
from gtpo_cli.tracking import changes, read_metrics

_PLACES = {
    "tags": "in the tags {tags}",
    "boxed": "in a `\\boxed{{}}`",
    "hashes": "behind `####`",
    "last_line": "behind `Answer:` or in the last line",
}
_SCORES = ("accuracy", "score", "strict_format_rate", "truncated_share", "mean_length")


def model_card(
    run: RunFolder, recipe: Recipe, exported: Exported, prompting: Prompting, *, folder: Path, hub_name: str | None
) -> str:
    """Return the text of README.md for an export in `folder`. `hub_name` is its future name on the hub, if any.

    Raises EvaluationError if an evaluation of the run cannot be read.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gtpo_cli.tools.export"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {
        "plain": markdown_text, "sentence": markdown_sentence, "fenced": fenced, "interval": _interval,
        "literal": literal, "counted": counted,
    }  # fmt: skip
    metrics = read_metrics(run.metrics_file) if run.metrics_file.exists() else []
    use = Use.on_hub(exported, recipe.model, hub_name) if hub_name else Use.here(exported, recipe.model, folder)
    return environment.get_template("card.md.j2").render(
        recipe=recipe, exported=exported, prompting=prompting, hub_name=hub_name, use=use,
        head=_head(recipe, exported),
        data=[_data(source) for source in recipe.data.sources],
        changes=changes(
            [row for row in metrics if row["step"] <= exported.step], completions=recipe.completions_per_step
        ),
        evaluations=list(_evaluations(run, recipe, exported.step)),
        is_shown=lambda name: name in _SCORES or name.startswith(("pass@", "maj@", "best@")),
        place=_PLACES[recipe.rewards.answer].format(
            tags=" and ".join(f"`{tag}`" for tag in tag_texts(recipe.rewards.tags) if not tag.startswith("</"))
        ),
        plugins=", ".join(f"`{plugin.name}`" for plugin in recipe.rewards.plugins),
        shown_recipe=shown_recipe(recipe),
    )  # fmt: skip


def _data(source: SourceRecipe) -> str:
    """Describe a source of training data in Markdown, as a sentence without its full stop."""
    id_, _, config = source.name.partition(":")
    name = markdown_text(Path(source.path).name if source.path else public_name(id_) + (config and f" ({config})"))
    words = f"The benchmark {source.benchmark}" + (f", read from files ({name})" if source.path else "")
    if source.benchmark in BUILT_IN:
        words = f"The built-in task: {BUILT_IN[source.benchmark]}, generated"
    elif is_task(source.benchmark):
        config = f" with {markdown_text(json.dumps(source.config))}" if source.config else ""
        words = f"The task {markdown_text(public_name(source.benchmark))}{config}, generated"
    elif source.benchmark in OWN:
        words = f"A local file or folder ({name})" if source.path else f"The data set {name}"
    words += f"; split {markdown_text(source.split)}"
    words += f", without a share of {source.held_out:g} of its questions" if source.held_out else ""
    return words + (f", a sample of {source.limit} problems" if source.limit is not None else "")


def shown_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML, without keys about the machine or the account."""
    document = recipe.model_dump(mode="json", exclude={"output_dir", "tracking"})
    document["model"]["name"] = public_name(document["model"]["name"])
    if document["model"]["start"] is not None:
        document["model"]["start"] = public_name(document["model"]["start"])
    if recipe.data.path is not None:
        document["data"]["path"] = Path(recipe.data.path).name
    if recipe.data.mixture:  # a list, since files of two folders may have one name
        document["data"]["mixture"] = [
            {Path(source.path).name if source.path is not None else name: weight}
            for source, (name, weight) in zip(recipe.data.sources, recipe.data.mixture.items(), strict=True)
        ]
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    return text


def fenced(text: str, language: str = "") -> str:
    """Return a code block that the text cannot end early."""
    text = printable(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _head(recipe: Recipe, exported: Exported) -> str:
    """Return the metadata for the hub as YAML."""
    from huggingface_hub import ModelCardData

    named = "/" in exported.base and HUB_ID.fullmatch(exported.base) is not None
    method = recipe.objective.name
    hubs = (hub for hub in map(hub_source, recipe.data.sources) if hub is not None)
    data = ModelCardData(
        base_model=exported.base if named else None,
        base_model_relation=("adapter" if exported.format == "adapter" else "finetune") if named else None,
        library_name={"adapter": "peft", "gguf": "gguf"}.get(exported.format, "transformers"),
        pipeline_tag="text-generation",
        tags=["gtpo_cli", method, *([] if method == "sft" else ["reinforcement-learning"])],
        datasets=[hub.id for hub in hubs if public_name(hub.id) == hub.id] or None,
    )
    text: str = data.to_yaml() + "\n"
    return text


def _evaluations(
    run: RunFolder, recipe: Recipe, step: int
) -> Iterator[tuple[Conditions, Mapping[str, Score], Mapping[str, Score]]]:
    """Yield each benchmark's largest evaluation of this step with the recipe's own prompt and rewards, its scores, and
    the base's scores under equal conditions (else none)."""
    asked = {key: value for key, value in recipe.decisive.items() if key.startswith(("data.", "rewards."))}
    asked.pop("rewards.plugins", None)  # whose code is a condition of its own
    largest = largest_evaluations(run, asked)
    found = {(stored.conditions.benchmark, stored.conditions.subject): stored for stored in largest}
    for (benchmark, subject), stored in found.items():
        if subject != f"step-{step:06d}":
            continue
        own, base = stored.conditions, found.get((benchmark, "base"))
        alike = base is not None and not own.differences(base.conditions, "subject", "model", "seed", "weights")
        yield own, stored.results().scores, base.results().scores if base and alike else {}


def _interval(score: Score, name: str) -> str:
    factor, unit = (1.0, "") if name == "mean_length" else (100.0, " %")
    low, value, high = (factor * x for x in (score.interval.low, score.interval.estimate, score.interval.high))
    return f"{value:.1f}{unit}" + (f" ({low:.1f} to {high:.1f})" if score.interval.is_bounded else "")
