"""Loading a model from a folder or the hub, for every policy, with an explanation of each failure."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import httpx
import torch
from huggingface_hub.errors import EntryNotFoundError, HFValidationError
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open

from gtpo_cli.errors import ModelError, install, out_of_memory, translated
from gtpo_cli.hub import offline_remedy, only_the_cache_if_unreachable
from gtpo_cli.job import ModelFiles
from gtpo_cli.policy.adapter_config import base_of_adapter, is_adapter
from gtpo_cli.policy.policy import Policy
from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.runs.files import Wrong, open_regular, parse_json, read_bytes, read_json
from gtpo_cli.runs.limited import LIMITS
from gtpo_cli.text import describe, one_line, shown, some

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

# Largest mean |difference| in nats between two computations of a log-probability that counts as rounding, by the
# coarsest type involved (docs/export.md explains the values).
ROUNDING = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}
# The same between a sampler and the policy. Rounding in 16 bits moves a sampler by 0.01 to 0.08 nats (docs/engines.md),
# another model by 0.4 and more.
SAMPLER_GAP = {"float32": 0.005, "float16": 0.2, "bfloat16": 0.2}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type: torch.bfloat16 -> "bfloat16", as in DTYPES and in libraries' arguments."""
    return str(dtype).removeprefix("torch.")


# Errors of the libraries for a model that cannot be fetched. transformers raises OSError for an unknown name or file.
_FETCH_ERRORS = (OSError, httpx.HTTPError, EntryNotFoundError, HFValidationError)
# Upper bounds for sizes in a config.json. A library builds the model before it notices that weights are missing.
_MAX_LAYERS = 1000
_MAX_SIZE = 2**27
_MAX_LABELS = 2**17
_SMALL_MODEL = 20_000_000  # parameters; for smaller models a second thread does not pay on a busy machine
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "*.tiktoken",
    "tekken.json",
)


def load_tokenizer(recipe: ModelRecipe, path: str, config: Any = None) -> Any:
    """Load only the tokenizer, of a model or an adapter; `config`: the model's. Raises ModelError with the remedy."""
    from transformers import AutoTokenizer

    with explained(path, adapter=is_adapter(Path(path))):
        if Path(path).is_dir() and not has_tokenizer(Path(path)):
            raise ModelError(
                f"model.name: {path} has no tokenizer (tokenizer.json is missing); copy the tokenizer's files of its "
                "base model into it"
            )
        _check_before_loading(path, recipe.revision)
        return AutoTokenizer.from_pretrained(
            path, config=config, revision=recipe.revision, trust_remote_code=recipe.trust_remote_code
        )


def has_tokenizer(folder: Path) -> bool:
    return any(any(folder.glob(name)) for name in TOKENIZER_FILES)


def read_model(
    recipe: ModelRecipe, path: str | None = None, config: Any = None, *, tokenizer_path: str | None = None
) -> ModelFiles:
    """Read a model's configuration, unless it is given, and its tokenizer, by default from where the recipe names it.

    `tokenizer_path`: another place of the tokenizer. Raises ModelError with the remedy.
    """
    path = resolve_name(recipe.name) if path is None else path
    config = load_config(recipe, path) if config is None else config
    tokenizer_path = tokenizer_path or path
    tokenizer = load_tokenizer(recipe, tokenizer_path, config)
    return ModelFiles(path, config, tokenizer, tokenizer_path, bounded_context(config, recipe.max_seq_length))


def load_config(recipe: ModelRecipe, path: str) -> Any:
    """Load only the model's configuration.

    Raises ModelError with the remedy, also for impossible sizes and for an adapter beside the weights.
    """
    from transformers import AutoConfig

    with explained(path):
        check_no_adapter(path, recipe.revision)
        _check_before_loading(path, recipe.revision)
        return AutoConfig.from_pretrained(path, revision=recipe.revision, trust_remote_code=recipe.trust_remote_code)


def _check_before_loading(path: str, revision: str | None) -> None:
    """Raise ModelError for a small file with which a library would fill the memory or never end: sizes in config.json,
    of which it makes lists, and rules in tokenizer.json."""
    from gtpo_cli.runs.limited import tokenizes

    if (config := _fetched(path, "config.json", revision)) is not None:
        with contextlib.suppress(ValueError):  # no JSON: loading it says so
            _check_sizes(path, parse_json(read_bytes(config), dict[str, JsonValue]))
    rules = _fetched(path, "tokenizer.json", revision)
    if rules is not None and not tokenizes(rules, rules.stat().st_mtime):
        raise ModelError(
            f"model.name: tokenizer.json of {path} does not tokenise a text within {LIMITS}, so it is damaged; fetch "
            "the model again"
        )


def _fetched(path: str, name: str, revision: str | None) -> Path | None:
    """Return a file of a folder or of the hub; None if there is none, which loading reports where it matters."""
    from transformers.utils import cached_file

    found = cached_file(
        path, name, revision=revision, _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_gated_repo=False, _raise_exceptions_for_connection_errors=False,
    )  # fmt: skip
    return None if found is None else Path(found)


def check_no_adapter(path: str, revision: str | None = None) -> None:
    """Raise ModelError for a model with an adapter beside its weights, which transformers would silently apply."""
    from transformers.utils.peft_utils import find_adapter_config_file

    if find_adapter_config_file(path, revision=revision) is not None:
        alone = (
            "remove its config.json" if Path(path).is_dir() else f"download it (hf download {path} --local-dir FOLDER)"
        )
        raise ModelError(
            f"model.name: {path} has an adapter (adapter_config.json), which transformers would silently apply; name "
            f"the model without it, or merge it with PEFT (merge_and_unload); if it is an adapter alone, {alone} and "
            "evaluate the folder: gtpo eval FOLDER"
        )


@contextlib.contextmanager
def explained(path: str, *, adapter: bool = False) -> Iterator[None]:
    """Load quietly in the block, from the folder or hub id `path`, and turn every failure into a ModelError.

    `adapter`: the folder is that of an adapter, not of a whole model.
    """
    if adapter:
        _check_own_files(Path(path))
    else:
        _check_folder(path)
    reason = None
    asking = contextlib.nullcontext() if Path(path).is_dir() else only_the_cache_if_unreachable()

    def failure(error: BaseException) -> ModelError:
        return ModelError(load_failure(path, error, unreachable=reason))

    with translated(BaseException, failure), quiet(), asking as why:  # BaseException: tokenizers panics with one
        reason = why
        yield


def names_path(name: str) -> bool:
    """Whether a name has the form of a path. A hub id is `name` or `owner/name`, and starts with a letter or digit."""
    return name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1 or "\\" in name


def _check_folder(path: str) -> None:
    """Raise ModelError for a folder that cannot be a model, before a library searches the hub for missing files."""
    folder = Path(path)
    try:
        is_file, is_folder = folder.is_file(), folder.is_dir()
    except OSError as error:
        raise ModelError(f"model.name: {path[:80]}... cannot be looked up ({error.strerror})") from error
    if is_file:
        raise ModelError(f"model.name: {path} is a file; name the folder of a Hugging Face model")
    if not is_folder:
        if names_path(path):
            raise ModelError(f"model.name: there is no folder {path}; correct the name, or give a hub id (owner/name)")
        return
    if os.path.lexists(folder / "config.json"):
        _check_own_files(folder)
        return
    if is_adapter(folder):
        raise ModelError(
            f"model.name: {path} is an adapter, not a complete model; name its base model"
            f"{base_of_adapter(folder)} and train the adapter further with model.start (gtpo train --from {path})"
        )
    raise ModelError(f"model.name: {path} is a folder without config.json; name a Hugging Face model folder")


def _check_own_files(folder: Path) -> None:
    check_files(folder, lambda why: ModelError(f"model.name: {why}; fetch the model again"))


@dataclass(frozen=True, slots=True)
class _WeightIndex:
    """What is read of `model.safetensors.index.json`: the file of each tensor."""

    weight_map: dict[str, str]


def check_files(folder: Path, wrong: Wrong) -> None:
    """Raise `wrong(why)` unless all that a library opens for a model's folder is a regular file in it.

    A library that opens a FIFO waits forever, and one that opens a device may never end. An index of weights may name
    any file of the machine.
    """
    for file in sorted(folder.rglob("*")):
        if not (file.is_file() or file.is_dir()):
            raise wrong(f"{file} is no regular file")
    for index in sorted(folder.glob("*.index.json")):
        named = read_json(index, _WeightIndex, lambda why, index=index: wrong(f"{index} cannot be read ({why})"))  # type: ignore[misc]
        for name in sorted(set(named.weight_map.values())):
            if "\0" in name or Path(name).name != name or not (folder / name).is_file():
                raise wrong(f"{index} names {shown(name)}, which is no file of this folder")


def _check_sizes(path: str, config: Mapping[str, Any]) -> None:
    """Raise ModelError for a configuration larger than any model, before a library tries to build it."""
    for name, value in _numbers(config):
        layered = re.search("layer|expert|block", name)
        most = _MAX_LAYERS if layered and re.match("n_|num_", name) else _MAX_SIZE
        most = _MAX_LABELS if "label" in name else most
        if value > most and re.search("label|layer|expert|block|size|dim|embd|head|model|position|ctx|rank", name):
            raise ModelError(
                f"model.name: config.json of {path} has {name} = {value:.3g}, but no model has more than {most:,}, so "
                "it is damaged; fetch the model again"
            )


def _numbers(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, (int, float)):
            yield name, min(value, sys.float_info.max)


@torch.no_grad()
def check_finite(path: str, model: Any) -> None:
    """Raise ModelError for weights that are NaN or infinite.

    A bias of the output layer may be minus infinity, with which a model bars tokens.
    """
    output = model.get_output_embeddings()
    bias: Any = getattr(output, "bias", None)
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            if weight is bias and bool((weight < math.inf).all()):  # NaN is not
                continue
            raise ModelError(
                f"model.name: the weights of {path} are not finite ({name} has NaN or infinity), so the model is "
                "damaged; fetch it again, or choose another"
            )


def check_complete(path: str, model: torch.nn.Module, loading: Mapping[str, Collection[str]]) -> None:
    """Raise ModelError if weights were missing, since random numbers would take their place, or if layers of the model
    left some out, such as a bias. `loading`: what transformers says of it."""
    if missing := sorted(loading["missing_keys"]):
        first = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelError(
            f"model.name: the weights of {path} lack {len(missing)} tensors that its config.json needs ({first}); it "
            "is incomplete or not a causal language model; fetch it again, or choose another"
        )
    layers, buffers = ({name for name, _ in found} for found in (model.named_modules(), model.named_buffers()))
    parts = {key: key.rpartition(".") for key in sorted(loading["unexpected_keys"])}
    unused = [
        key
        for key, (layer, _, part) in parts.items()
        if layer in layers and part in ("weight", "bias") and key not in buffers  # a mask may be called bias
    ]
    if unused:
        raise ModelError(
            f"model.name: the weights of {path} have {len(unused)} tensors for which its config.json has no place "
            f"({some(unused)}), so it would be another model; correct config.json, or fetch both from one place"
        )


def bounded_context(config: Any, max_seq_length: int) -> int:
    """Return the most tokens that the model treats alike in every batch: its positions, or fewer with longrope.

    Longrope (Phi-3) turns the positions of a whole batch otherwise once one of its rows is longer than the original
    context. A completion would have other log-probabilities beside longer ones than beside shorter ones.
    """
    config = config.get_text_config()
    ropes = getattr(config, "rope_parameters", None) or {}
    limits = [getattr(config, "max_position_embeddings", None)]
    for rope in (ropes, *ropes.values()):  # one for the model, or one for each kind of layer
        if isinstance(rope, Mapping) and rope.get("rope_type") == "longrope":
            limits.append(rope.get("original_max_position_embeddings"))
    return min([max_seq_length, *(limit for limit in limits if isinstance(limit, int) and limit > 0)])


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        return DTYPES[name]
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float32


def nf4_config(compute_dtype: torch.dtype) -> Any:
    """Return the paper's quantisation: NF4 with double quantisation, computed in `compute_dtype`.

    Raises ModelError if bitsandbytes is missing.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(
            f"model.load_in_4bit: true needs bitsandbytes, which is not installed: {install('bnb')}, "
            "or train an unquantised base with --set model.load_in_4bit=false"
        )
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
    )


def keep_weights_differentiable(model: torch.nn.Module) -> int:
    """Stop bitsandbytes from repacking 4-bit weights on a CPU, and return the number of affected layers.

    On CPUs with avx512_bf16 the first no-grad forward of a 4-bit layer in eval mode (sampling!) repacks its weights
    into a layout that backward cannot read. Then no gradient reaches the layer's input, with only a warning.
    """
    layers = [module for module in model.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False  # type: ignore[assignment]  # a plain flag of bitsandbytes
    return len(layers)


def set_threads(policy: Policy) -> None:
    """Let torch compute with one CPU thread for a small model, and as torch chooses for others."""
    if policy.num_parameters < _SMALL_MODEL:
        torch.set_num_threads(1)


def load_failure(path: str, error: BaseException, *, unreachable: str | None = None) -> str:
    """Explain to a user why loading failed, with the matching remedy.

    `unreachable`: the reason why the hub was not contacted, if so.
    """
    folder = Path(path)
    said = one_line(str(error))
    if out_of_memory := _out_of_memory(error):
        return f"model.name: {path} does not fit {out_of_memory} ({said})"
    from gtpo_cli.hub import hub_refusal

    if refusal := hub_refusal(path, error):
        return refusal
    if not said or not isinstance(error, (*_FETCH_ERRORS, ValueError, RuntimeError, ImportError, SafetensorError)):
        said = describe(error)  # the exception's own message is not meant for users
    if "Unrecognized configuration class" in said:
        said = said.partition(" for this kind")[0]
        return f"model.name: {path} is not a causal language model like Llama or Qwen ({said}); choose another"
    if "custom code" in said or "trust_remote_code" in said:
        return (
            f"model.name: {path} comes with its own code, which does not run; read it, and if you trust it, set "
            "model.trust_remote_code: true"
        )
    if isinstance(error, UnpicklingError):
        return (
            f"model.name: the weights of {path} are a pickle, which is refused because it could run code; use a model "
            "with safetensors"
        )
    if folder.is_dir() and (damaged := damaged_file(folder)):
        return f"model.name: {damaged}"
    if "ignore_mismatched_sizes" in said:
        said = "the shapes of its weights differ from its config.json"
    elif isinstance(error, (RuntimeError, ImportError)):  # a problem of a library or the machine, not of the files
        return f"model.name: {path} cannot be loaded: {said}; check this machine with gtpo doctor --recipe"
    if folder.is_dir():
        return f"model.name: {path} cannot be loaded: {said}; fetch it again, or choose another"
    if not isinstance(error, _FETCH_ERRORS):
        return f"model.name: {path} cannot be loaded: {said}; choose another model"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"model.name: {path} cannot be stored: {said}; free some space, or name another disk with HF_HOME"
    if unreachable is not None:
        return (
            f"model.name: {path} is no local folder, not in the cache, and the hub was not asked ({unreachable}). "
            f"Check the name; offline, give a folder, or {offline_remedy()}; without any model, use builtin:tiny."
        )
    return (
        f"model.name: {path} is no local folder and cannot be had from the hub: {said} "
        "Offline, download it elsewhere and give the folder; without any model, use builtin:tiny."
    )


def _out_of_memory(error: BaseException) -> str | None:
    """Return whose memory ran out with the remedy; None for another failure."""
    whose = out_of_memory(error)
    if whose == "the GPU":
        return (
            "the GPU's memory: set model.load_in_4bit: true, lower rollout.gpu_memory_utilization, "
            "model.max_seq_length or model.lora.rank, stop other programs on the GPU, or choose a smaller model; gtpo "
            "plan shows what fits"
        )
    if whose is not None:
        return "this machine's main memory: stop other programs, or choose a smaller model or a larger machine"
    return None


def damaged_file(folder: Path) -> str | None:
    """Describe the first file of a model's folder that cannot be read, with the remedy; None if all can."""
    for file in sorted(folder.glob("*.json")):
        try:
            document = json.loads(read_bytes(file).decode())
        except (OSError, ValueError, RecursionError) as error:
            return f"{file} cannot be read ({one_line(str(error))}); fetch the model again"
        if not isinstance(document, dict):
            return f"{file} cannot be read (a {type(document).__name__}, not a JSON object); fetch the model again"
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with open_regular(file) as stream:
                if stream.read(7) == b"version":
                    return f"{file} is a pointer of Git LFS, not the weights; fetch them with git lfs pull"
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            return f"{file} cannot be read ({one_line(str(error))}); it is cut off or damaged; fetch the model again"
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and advice from transformers while it loads."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
