"""What every policy needs to load a model from a folder or the hub, and how a failure is said."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gtpo_cli.errors import ModelError
from gtpo_cli.recipe.schema import ModelRecipe

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def load_tokenizer(recipe: ModelRecipe, path: str) -> Any:
    """The tokenizer alone. Raises ModelError with the remedy."""
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(
                path, revision=recipe.revision, trust_remote_code=recipe.trust_remote_code
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(load_failure(path, error)) from error


def load_config(recipe: ModelRecipe, path: str) -> Any:
    """The model's configuration alone. Raises ModelError with the remedy."""
    from transformers import AutoConfig

    try:
        with quiet():
            return AutoConfig.from_pretrained(
                path, revision=recipe.revision, trust_remote_code=recipe.trust_remote_code
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(load_failure(path, error)) from error


def context_length(recipe: ModelRecipe, path: str) -> int:
    """Most tokens of prompt and completion together: the recipe's, or fewer where the model has fewer positions."""
    return bounded_context(load_config(recipe, path), recipe.max_seq_length)


def bounded_context(config: Any, max_seq_length: int) -> int:
    positions = getattr(config, "max_position_embeddings", None)
    return min(max_seq_length, positions) if positions else max_seq_length


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        return DTYPES[name]
    return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32


def load_failure(path: str, error: Exception) -> str:
    folder = Path(path)
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            return f"model.name: {path} is a folder without config.json; name a Hugging Face model folder"
        try:
            json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as broken:
            return f"model.name: {folder / 'config.json'} cannot be read ({broken}); fetch the model again"
        return f"model.name: {path} cannot be loaded: {first}"
    return (
        f"model.name: {path} is no local folder and cannot be had from the hub: {first} "
        "Offline, download it elsewhere and give the folder; without any model, use builtin:tiny."
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars or advice from transformers while it loads: our own display says what matters."""
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
