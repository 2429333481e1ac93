"""Export a run's checkpoint: the policy answers questions, then the export is written, loaded again and compared.

One model is in memory at a time; two while the changes of full-weight training are measured.

Only the hub's own library reads a token for an upload.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gtpo_cli.data import PromptEncoder
from gtpo_cli.errors import ExportError, program
from gtpo_cli.evaluation.loading import Subject, load_frozen
from gtpo_cli.hub import why_unreachable
from gtpo_cli.job import Job
from gtpo_cli.machine.resolve import measuring_job
from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.checkpoints import Checkpoint
from gtpo_cli.runs.folder import NO_TRUST, RunFolder, Trust
from gtpo_cli.terminal.signals import stage
from gtpo_cli.text import one_line
from gtpo_cli.tools.export import gguf
from gtpo_cli.tools.export.card import model_card
from gtpo_cli.tools.export.check import (
    BOUND_OF_ANOTHER_BASE,
    Answer,
    AnswerLogprobs,
    Reference,
    compare,
    greedy_answers,
    measure,
    measure_both,
    require,
    rounding_bound,
    sample_questions,
)
from gtpo_cli.tools.export.folder import (
    CARD,
    Exported,
    Format,
    RecipeSections,
    check_free,
    conditions_of,
    write_record,
    written_aside,
)
from gtpo_cli.tools.export.using import Prompting, place_of, public_name, put_template
from gtpo_cli.tools.export.weights import AUTO, Written, read_back, write_adapter, write_merged

# What libraries would load beside the other of the two, or beside a smaller one.
_ADAPTER_OR_MODEL = [
    "adapter_config.json", "adapter_model.safetensors", "config.json", "generation_config.json", "model.safetensors",
    "model-?????-of-?????.safetensors", "model.safetensors.index.json",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """What to export, and how. `dtype`: "auto" or the type to write. `base`, `revision`: full-precision weights to
    merge into instead of the recipe's. `converter`: llama.cpp's, for gguf. `hub_name`: the export's name on the hub;
    then it contains no path of this machine. `trust`: which code of others may run."""

    run: RunFolder
    checkpoint: Checkpoint
    format: Format
    out: Path
    dtype: str = AUTO
    base: str | None = None
    revision: str | None = None
    converter: str | None = None
    hub_name: str | None = None
    trust: Trust = NO_TRUST


@dataclass(frozen=True, slots=True)
class _Policy:
    """The part of the run's policy that stays in memory: its answers and their measurements."""

    answers: tuple[Answer, ...]
    reference: Reference
    eos_token_ids: tuple[int, ...]
    device: torch.device


def export_run(request: Request, *, say: Callable[[str], None]) -> Exported:
    """Write the export and check it. `say` prints progress. Nothing is left at `out` if the check fails.

    Raises ExportError, and errors of loading models (ModelError, CheckpointError).
    """
    run, checkpoint = request.run, request.checkpoint
    recipe = run.recipe_to_run(trust=request.trust)
    _check_request(request)
    job = measuring_job(recipe, checkpoint, temperature=1.0, streaming=True)
    tokenizer = job.model.tokenizer
    if request.format == "gguf":
        gguf.check_tokenizer(tokenizer)
    encoder = job.encoder
    with stage(say, f"loading step {checkpoint.step} of {run.path}, and sampling greedy answers"):
        policy = _measure_policy(request, job, encoder)
    plain, text = encoder.uses_plain_format, encoder.render("QUESTION")
    questions = [answer.question for answer in policy.answers]
    rendered = put_template(encoder, recipe.data.system_prompt, questions)
    prompting = Prompting(text, rendered, plain, encoder.opened.strip(), encoder.has_special_tags)
    with written_aside(request.out) as aside:
        with stage(say, f"writing {request.out}"):
            written = _write(request, recipe, tokenizer, policy, aside)
        with stage(say, "loading it back"):
            _free_memory()
            found = measure(read_back(request.format, aside, recipe.model, policy.device), policy.answers)
        exported = _compare(request, policy, written, found, conditions_of(recipe))
        card = model_card(run, recipe, exported, prompting, folder=request.out, hub_name=request.hub_name)
        (aside / CARD).write_text(card, encoding="utf-8")
        write_record(aside, exported)
    return exported


def _check_request(request: Request) -> None:
    """Raise ExportError for an impossible request before a model is loaded."""
    whole = request.checkpoint.has_full_weights
    if request.format == "adapter" and whole:
        raise ExportError(
            f"{request.run.path}: trained all weights, so there is no adapter; use --format merged, which is the "
            "whole model"
        )
    if request.format == "adapter" and (request.dtype != AUTO or request.base is not None):
        raise ExportError("--dtype and --base are for merging; an adapter is exported unchanged")
    if request.base is not None and whole:
        raise ExportError(f"--base: {request.run.path} trained all weights, so there is nothing to merge into a base")
    if request.revision is not None and request.base is None:
        raise ExportError("--revision is the hub revision of --base, which is not given")
    if request.converter is not None and request.format != "gguf":
        raise ExportError("--converter is for --format gguf")
    if request.format == "gguf":
        gguf.find_converter(request.converter)
        gguf.check_package()
    check_free(request.out)


def _measure_policy(request: Request, job: Job, encoder: PromptEncoder) -> _Policy:
    policy: Any = load_frozen(Subject(str(request.run.path), job, request.checkpoint))
    questions = sample_questions(request.run)
    answers = greedy_answers(policy, encoder, questions, max_tokens=job.recipe.evaluation.max_completion_tokens)
    return _Policy(answers, measure_both(policy.model, answers), tuple(sorted(policy.eos_token_ids)), policy.device)


def _write(request: Request, recipe: Recipe, tokenizer: Any, policy: _Policy, aside: Path) -> Written:
    _free_memory()
    if request.format == "adapter":
        place = place_of if request.hub_name is None else public_name
        return write_adapter(aside, request.checkpoint, recipe.model, tokenizer, base=place(recipe.model.name))
    model = aside / "model" if request.format == "gguf" else aside
    written = write_merged(
        model, request.checkpoint, recipe.model, tokenizer,
        dtype=request.dtype, base=request.base, revision=request.revision, answers=policy.answers,
        eos_token_ids=policy.eos_token_ids,
    )  # fmt: skip
    if request.format == "gguf":
        _free_memory()
        target = aside / gguf.file_name(request.run.name, written.dtype)
        gguf.convert(gguf.find_converter(request.converter), model, target, written.dtype)
        shutil.rmtree(model)
    return written


def _compare(
    request: Request, policy: _Policy, written: Written, found: AnswerLogprobs, conditions: RecipeSections
) -> Exported:
    """Compare the export with the run's policy and, if it was merged into another base, with that merge too.

    Raises ExportError if the export is not the trained model."""
    expected, where = written.expected or policy.reference, str(request.out)
    difference, rounding, notes = compare(expected, found), None, written.notes
    require(
        difference, bound=rounding_bound(written.dtype, expected.trained.dtype, found.dtype), where=where,
        remedy="run the command again; if that does not help, use --format adapter and report this",
    )  # fmt: skip
    if written.expected is not None:
        difference, rounding = compare(Reference(policy.reference.trained), found), difference
        remedy = "is this the base that the run trained on? See --base and --revision"
        require(difference, bound=BOUND_OF_ANOTHER_BASE, where=where, remedy=remedy)
        trained, now = "its base rounded to 4 bits (NF4)", "that base in full precision"
        if request.base is not None:
            trained, now = "the run's own base", f"{written.base}, named with --base"
        notes += (
            f"The adapter was trained on {trained} and is merged into {now}. The difference from the policy "
            f"({difference.mean:.2g} nats on average) comes from that, not from an error of the export.",
        )
    return Exported(
        request.run.name, request.checkpoint.step, request.format, written.dtype, written.base, len(policy.answers),
        difference, rounding, notes, conditions,
    )  # fmt: skip


def _free_memory() -> None:
    """Free the GPU memory of the last model, which has no references left, for the next one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def check_push(name: str, *, public: bool) -> None:
    """Raise ExportError before the work if a push would fail: for its name, the network, the token, or a repository
    that is already public without --public."""
    import httpx
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ExportError(f"--push {name}: is not a valid model name on the hub: {error}") from error
    reason = why_unreachable()
    if reason is not None:
        raise ExportError(
            f"--push {name}: the hub cannot be reached ({reason}); export without --push, replace this machine's paths "
            f"in README.md and adapter_config.json by {name}, then on a machine with network: hf upload {name} FOLDER"
        )
    if get_token() is None:
        raise ExportError(f"--push {name}: there is no token; log in with {program('hf')} auth login, or set HF_TOKEN")
    try:
        existing = HfApi().model_info(name)
    except RepositoryNotFoundError:
        return  # it will be created
    except (HfHubHTTPError, httpx.HTTPError) as error:
        raise _refused(name, error) from error
    if not existing.private and not public:
        raise ExportError(
            f"--push {name}: is already public, so everybody would see the export; use --public if you want that, or "
            "choose another name"
        )


def push(folder: Path, name: str, *, format_: Format, public: bool, message: str) -> str:
    """Create the repository if it is missing, private unless `public`, upload the folder and return its address.

    An adapter or a merged model replaces the one that is there. A GGUF file takes the place of neither.

    Raises ExportError; the local export stays.
    """
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api = HfApi()
    try:
        url = api.create_repo(name, private=not public, exist_ok=True)
        replaced = None if format_ == "gguf" else _ADAPTER_OR_MODEL
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, delete_patterns=replaced)
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError, RuntimeError) as error:
        raise _refused(name, error, folder) from error
    return str(url)


def _refused(name: str, error: Exception, folder: Path | None = None) -> ExportError:
    reason = one_line(str(error))
    hf = program("hf")
    retry = "" if folder is None else f" The export itself is complete in {folder}: {hf} upload {name} {folder}"
    return ExportError(
        f"--push {name}: the hub refused ({reason}); may this token write there? See {hf} auth whoami.{retry}"
    )
