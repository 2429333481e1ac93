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
from gtpo_cli.evaluation.subject import Checkpoint, load_frozen, load_prompting
from gtpo_cli.export import gguf
from gtpo_cli.export.card import Facts, model_card
from gtpo_cli.export.check import (
    BOUND_OF_ANOTHER_BASE,
    Answer,
    Difference,
    Reference,
    compare,
    greedy_answers,
    measure,
    measure_both,
    require,
    rounding_bound,
    sample_questions,
)
from gtpo_cli.export.folder import CARD, check_free, size, write_record, written_aside
from gtpo_cli.export.merge import AUTO
from gtpo_cli.export.prompting import put_template
from gtpo_cli.export.usage import Prompting
from gtpo_cli.export.write import Written, read_back, write_adapter, write_merged
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder, package_versions

Format = Literal["adapter", "merged", "gguf"]


@dataclass(frozen=True, slots=True)
class Request:
    """What to export and how. `dtype`: "auto" or the type to write. `base`, `revision`: full-precision weights to merge
    into instead of the recipe's. `converter`: llama.cpp's, for gguf. `hub_name`: for the card. `trust_remote_code`: see
    `RunFolder.recipe_to_run`."""

    run: RunFolder
    checkpoint: Checkpoint
    format: Format
    out: Path
    dtype: str = AUTO
    base: str | None = None
    revision: str | None = None
    converter: str | None = None
    hub_name: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export. `difference`: from the run's policy, over `prompts` answers; `rounding`: from the base in full
    precision with the adapter, where the policy was trained on another base or in 4 bits. `notes`: what it cost."""

    path: Path
    dtype: str
    bytes: int
    prompts: int
    difference: Difference
    rounding: Difference | None
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
    recipe = request.run.recipe_to_run(trust_remote_code=request.trust_remote_code)
    check_request(request, recipe)
    tokenizer, _ = load_prompting(recipe, request.checkpoint)
    if request.format == "gguf":
        gguf.check_tokenizer(tokenizer)
    encoder = PromptEncoder(tokenizer, recipe.data.system_prompt)
    policy = _ask_policy(request, recipe, encoder, say)
    prompting = _put_prompt(tokenizer, encoder, recipe, policy)
    with written_aside(request.out) as aside:
        say(f"writing {request.out}")
        written = _write(request, recipe, tokenizer, policy, aside)
        say("loading it back")
        difference, rounding = _check(request, recipe, policy, written, aside)
        notes = (*written.notes, *_cost(request, written, difference))
        facts = Facts(
            request.run, recipe, request.checkpoint.step, request.format, written.dtype, written.base_name, prompting,
            difference, notes, request.hub_name,
        )  # fmt: skip
        (aside / CARD).write_text(model_card(facts), encoding="utf-8")
        write_record(aside, _record(request, written, policy, difference, rounding, notes))
    return Exported(request.out, written.dtype, size(request.out), len(policy.answers), difference, rounding, notes)


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
        gguf.check_package()
    check_free(request.out)


def _ask_policy(request: Request, recipe: Recipe, encoder: PromptEncoder, say: Callable[[str], None]) -> _Policy:
    say(f"loading step {request.checkpoint.step} of {request.run.path}, and asking it greedily")
    policy: Any = load_frozen(recipe, request.checkpoint, temperature=1.0, streaming=True)
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


def _check(
    request: Request, recipe: Recipe, policy: _Policy, written: Written, aside: Path
) -> tuple[Difference, Difference | None]:
    """The differences from the run's policy, and from what should have been written where that is something else."""
    _free_memory()
    found = measure(read_back(request.format, aside, recipe, policy.device), policy.answers)
    expected = (written.expected or policy.reference).trained
    bound, where = rounding_bound(written.dtype, expected.dtype, found.dtype), str(request.out)
    again = "call the command again; if that does not help, use --format adapter and report this"
    if written.expected is None:
        difference = compare(policy.reference, found)
        require(difference, bound=bound, where=where, remedy=again)
        return difference, None
    rounding = compare(written.expected, found)
    require(rounding, bound=bound, where=where, remedy=again)
    difference = compare(Reference(policy.reference.trained), found)
    again = "is this the base that the run trained on? See --base and --revision"
    require(difference, bound=BOUND_OF_ANOTHER_BASE, where=where, remedy=again)
    return difference, rounding


def _cost(request: Request, written: Written, difference: Difference) -> tuple[str, ...]:
    """What it means that the export is not the policy that was trained."""
    if written.expected is None:
        return ()
    if request.base is not None:
        trained, now = "the run's own base", f"{written.base_name}, named with --base"
    else:
        trained, now = "its base rounded to 4 bits (NF4)", "that base in full precision"
    return (
        f"The adapter was trained on {trained} and is merged into {now}: the difference from the policy "
        f"({difference.mean:.2g} nats on average) is what this costs, not an error of the export.",
    )


def _record(
    request: Request,
    written: Written,
    policy: _Policy,
    difference: Difference,
    rounding: Difference | None,
    notes: tuple[str, ...],
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
        "prompts": len(policy.answers),
        "difference_from_policy": asdict(difference),
        "rounding": None if rounding is None else asdict(rounding),
        "notes": list(notes),
    }


def _free_memory() -> None:
    """The model before is not referred to any more; a GPU's memory is to be free for the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
