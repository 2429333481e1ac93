"""From a run's checkpoint to a checked folder: the policy answers, the export is written, loaded back and compared.

One model is in memory at a time.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from gtpo_cli.data import PromptEncoder
from gtpo_cli.errors import ExportError
from gtpo_cli.evaluation.subject import Checkpoint, load_trained
from gtpo_cli.export import gguf
from gtpo_cli.export.card import Facts, model_card
from gtpo_cli.export.check import (
    BOUND_OF_ANOTHER_BASE,
    BOUNDS,
    Answer,
    Difference,
    Reference,
    compare,
    greedy_answers,
    measure,
    measure_both,
    require,
    sample_questions,
)
from gtpo_cli.export.folder import CARD, check_free, size, write_record, written_aside
from gtpo_cli.export.merge import AUTO, tokenizer_of
from gtpo_cli.export.prompting import put_template
from gtpo_cli.export.usage import Prompting
from gtpo_cli.export.write import Written, read_back, write_adapter, write_merged
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder, package_versions

Format = Literal["adapter", "merged", "gguf"]


@dataclass(frozen=True, slots=True)
class Request:
    """What to export and how. `dtype`: "auto" or the type to write. `base`, `revision`: full-precision weights to merge
    into instead of the recipe's. `converter`: llama.cpp's, for gguf. `hub_name`: for the card."""

    run: RunFolder
    checkpoint: Checkpoint
    format: Format
    out: Path
    dtype: str = AUTO
    base: str | None = None
    revision: str | None = None
    converter: str | None = None
    hub_name: str | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export. `difference`: from the run's policy, over `prompts` answers. `notes`: what it cost."""

    path: Path
    dtype: str
    bytes: int
    prompts: int
    difference: Difference
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Policy:
    """What is kept of the run's policy: its answers, and what it gave to their tokens."""

    answers: tuple[Answer, ...]
    reference: Reference
    eos_token_ids: tuple[int, ...]
    device: torch.device


def export_run(request: Request, *, say: Callable[[str], None]) -> Exported:
    """Write the export and check it; `say` is told what happens. Nothing is left at `out` unless it passed.

    Raises ExportError, and what loading models raises (ModelError, CheckpointError).
    """
    recipe = request.run.recipe()
    check_request(request, recipe)
    tokenizer = tokenizer_of(recipe.model, request.checkpoint)
    if request.format == "gguf":
        gguf.check_tokenizer(tokenizer)
    encoder = PromptEncoder(tokenizer, recipe.data.system_prompt)
    policy = _ask_policy(request, recipe, encoder, say)
    prompting = _put_prompt(tokenizer, encoder, recipe, policy)
    with written_aside(request.out) as aside:
        say(f"writing {request.out}")
        written = _write(request, recipe, tokenizer, policy, aside)
        say("loading it back")
        difference = _check(request, recipe, policy, written, aside)
        notes = (*written.notes, *_cost(written, difference))
        facts = Facts(
            request.run, recipe, request.checkpoint.step, request.format, written.dtype, written.base_name, prompting,
            difference, notes, request.hub_name,
        )  # fmt: skip
        (aside / CARD).write_text(model_card(facts), encoding="utf-8")
        write_record(aside, _record(request, written, policy, difference, notes))
    return Exported(request.out, written.dtype, size(request.out), len(policy.answers), difference, notes)


def check_request(request: Request, recipe: Recipe) -> None:
    """Raise ExportError for what cannot be, before a model is loaded for nothing."""
    if request.format == "adapter":
        if request.checkpoint.has_full_weights:
            raise ExportError(
                f"{request.run.path}: trained all weights, so there is no adapter; use --format merged, which is the "
                "whole model"
            )
        if request.dtype != AUTO or request.base is not None:
            raise ExportError("--dtype and --base are for merging; an adapter is exported as it was trained")
    if request.base is not None and request.checkpoint.has_full_weights:
        raise ExportError(f"--base: {request.run.path} trained all weights, so there is nothing to merge into a base")
    if request.revision is not None and request.base is None:
        raise ExportError("--revision is the hub revision of --base, which is not given")
    if request.converter is not None and request.format != "gguf":
        raise ExportError("--converter is for --format gguf")
    if request.format == "gguf":
        gguf.find_converter(request.converter)
    check_free(request.out)


def _ask_policy(request: Request, recipe: Recipe, encoder: PromptEncoder, say: Callable[[str], None]) -> _Policy:
    say(f"loading step {request.checkpoint.step} of {request.run.path}, and asking it greedily")
    policy: Any = load_trained(request.run, request.checkpoint, temperature=1.0, streaming=True)
    questions = sample_questions(request.run)
    answers = greedy_answers(policy, encoder, questions, max_tokens=recipe.evaluation.max_completion_tokens)
    return _Policy(answers, measure_both(policy.model, answers), tuple(sorted(policy.eos_token_ids)), policy.device)


def _put_prompt(tokenizer: Any, encoder: PromptEncoder, recipe: Recipe, policy: _Policy) -> Prompting:
    plain, text = encoder.uses_plain_format, encoder.render("QUESTION")
    questions = [answer.question for answer in policy.answers]
    return Prompting(text, put_template(tokenizer, encoder, recipe.data.system_prompt, questions), plain)


def _write(request: Request, recipe: Recipe, tokenizer: Any, policy: _Policy, aside: Path) -> Written:
    _free_memory()
    if request.format == "adapter":
        return write_adapter(aside, request.checkpoint, recipe, tokenizer)
    model = aside / "model" if request.format == "gguf" else aside
    written = write_merged(
        model, request.checkpoint, recipe, tokenizer,
        dtype=request.dtype, base=request.base, revision=request.revision, answers=policy.answers,
        eos_token_ids=policy.eos_token_ids,
    )  # fmt: skip
    if request.format == "gguf":
        _free_memory()
        name = request.run.name or request.run.path.resolve().name
        gguf.convert(
            gguf.find_converter(request.converter), model, aside / f"{name}-{written.dtype}.gguf", written.dtype
        )
        shutil.rmtree(model)
    return written


def _check(request: Request, recipe: Recipe, policy: _Policy, written: Written, aside: Path) -> Difference:
    """The difference from the run's policy, after comparing with what should have been written."""
    _free_memory()
    model = read_back(request.format, aside, recipe, policy.device)
    found = measure(model, policy.answers)
    bound = BOUNDS[written.dtype]
    again = "check the disk and call the command again, or report this with export.json's versions"
    if written.expected is not None:
        require(compare(written.expected, found), bound=bound, where=str(request.out), remedy=again)
        difference = compare(Reference(policy.reference.trained), found)
        again = "is this the base that the run trained on? See --base and --revision"
        require(difference, bound=BOUND_OF_ANOTHER_BASE, where=str(request.out), remedy=again)
        return difference
    difference = compare(policy.reference, found)
    require(difference, bound=bound, where=str(request.out), remedy=again)
    return difference


def _cost(written: Written, difference: Difference) -> tuple[str, ...]:
    if written.expected is None:
        return ()
    return (
        f"The run trained an adapter on a base in 4 bits or on another one; merged into {written.base_name} in full "
        f"precision the difference above ({difference.mean:.2g} nats on average) is what that change of base makes.",
    )


def _record(
    request: Request, written: Written, policy: _Policy, difference: Difference, notes: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "gtpo_export": 1,
        "run": request.run.name or request.run.path.resolve().name,
        "step": request.checkpoint.step,
        "format": request.format,
        "dtype": written.dtype,
        "base": written.base_name,
        "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "packages": package_versions(),
        "check": {"prompts": len(policy.answers), **asdict(difference)},
        "notes": list(notes),
    }


def _free_memory() -> None:
    """The model before is not referred to any more; a GPU's memory is to be free for the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


