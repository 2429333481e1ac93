"""An inspected step as one self-contained page: colour for lambda, shading for entropy, lines for the spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gtpo_cli.errors import EvaluationError
from gtpo_cli.files import own_folder
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import LN_2
from gtpo_cli.report.inspection import InspectedCompletion, InspectedGroup, InspectedStep
from gtpo_cli.report.inspection_text import headline, pulls_text, rules, visible
from gtpo_cli.run_folder import write_atomically

_FULL_SHADE = 2 * LN_2  # nats: the entropy from which a token's shading is full


def write_page(step: InspectedStep, file: Path) -> Path:
    """Write the page; its path. Raises EvaluationError when it cannot be written."""
    try:
        own_folder(file.parent)
        write_atomically(file, render(step))
    except OSError as error:
        raise EvaluationError(
            f"{file}: cannot be written ({error.strerror or error}); name another file with --out"
        ) from error
    return file


def render(step: InspectedStep) -> str:
    """The page with all groups of the step."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gtpo_cli.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("inspect.html.j2").render(
        title=f"{step.run.name}, step {step.step}",
        rules=rules(step),
        full_shade=_FULL_SHADE,
        groups=[_group(group, step.recipe) for group in step.groups],
    )


def _group(group: InspectedGroup, recipe: Recipe) -> dict[str, Any]:
    return {
        "number": group.number,
        "problem": group.problem,
        "question": group.question,
        "gold": group.gold,
        "mean": group.reward_mean,
        "std": group.reward_std,
        "informative": group.informative,
        "pulls": pulls_text(group, recipe),
        "completions": [_completion(group, completion, recipe) for completion in group.completions],
    }


def _completion(group: InspectedGroup, completion: InspectedCompletion, recipe: Recipe) -> dict[str, Any]:
    return {
        "headline": headline(completion, recipe).splitlines(),
        "sign": "plus" if completion.advantage > 0 else "minus" if completion.advantage < 0 else "zero",
        "kept": completion.kept,
        "tokens": [
            {
                "place": place,
                "text": visible(token.text),
                "line_break": "\n" in token.text,
                "classes": " ".join(
                    name
                    for name, holds in (
                        ("less", token.weight < 1),
                        ("more", token.weight > 1),
                        ("f", token.forward),
                        ("b", token.backward),
                    )
                    if holds
                ),
                "shade": round(min(1.0, token.entropy / _FULL_SHADE), 3),
                "span": token.mark.strip(),
                "lambda": f"{token.weight:g}",
                "logprob": f"{token.logprob:.4f}",
                "entropy": f"{token.entropy:.4f}",
                "weight": f"{completion.token_weight(token, recipe):+.5f}",
                "why": group.why(completion, place, recipe),
            }
            for place, token in enumerate(completion.tokens)
        ],
    }
