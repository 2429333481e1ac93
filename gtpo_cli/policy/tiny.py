"""The built-in model `builtin:tiny`: a LLaMA of 167 thousand parameters that reads characters and adds up digits.

With it all of gtpo runs on any machine without a download. It was fine-tuned on imperfect demonstrations of the
arithmetic task, so that reinforcement learning can improve it (scripts/models/build_tiny_model.py reproduces it).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from gtpo_cli.errors import ModelError
from gtpo_cli.runs.files import step_of

BUILTIN_PREFIX = "builtin:"
_BUILTIN = Path(__file__).resolve().parent / "builtin"


def resolve_name(name: str) -> str:
    """Resolve a recipe's `model.name` to a path or hub id: `builtin:tiny` and run folders with all weights to paths."""
    if name.startswith(BUILTIN_PREFIX):
        folder = _BUILTIN / name.removeprefix(BUILTIN_PREFIX)
        if not (folder / "config.json").is_file():
            known = sorted(path.parent.name for path in folder.parent.glob("*/config.json"))
            raise ModelError(
                f"model.name: {name} does not exist; built in: {', '.join(BUILTIN_PREFIX + k for k in known)}"
            )
        return str(folder)
    checkpoints = Path(name) / "checkpoints"
    try:
        is_run = checkpoints.is_dir()
    except OSError as error:  # the name is too long, or a folder is not accessible
        raise ModelError(f"model.name: {name[:80]} cannot be looked up ({error.strerror})") from error
    return str(_weights_of_run(Path(name), checkpoints)) if is_run else name


def recipe_name(path: str) -> str:
    """Return a folder or hub id as a recipe names it: a built-in model by its name, anything else unchanged."""
    return f"{BUILTIN_PREFIX}{Path(path).name}" if Path(path).parent == _BUILTIN else path


def _weights_of_run(run: Path, checkpoints: Path) -> Path:
    """Return the weights of a run's newest checkpoint. Raises ModelError if there are none, or only an adapter."""
    saved = {
        step: path for path in checkpoints.glob("step-*") if (step := step_of(path.name)) and (path / "model").is_dir()
    }
    if not saved:
        raise ModelError(f"model.name: the run {run} has no checkpoint yet; train it first")
    weights = saved[max(saved)] / "model"
    if not (weights / "config.json").is_file():
        raise ModelError(
            f"model.name: the run {run} trained an adapter, not a complete model; name its base model, and "
            f"train the adapter further with model.start (gtpo train --from {run})"
        )
    return weights


@cache
def _architecture() -> dict[str, Any]:
    from transformers import LlamaConfig

    config: dict[str, Any] = LlamaConfig(**json.loads((_BUILTIN / "tiny/config.json").read_text())).to_dict()
    return {name: value for name, value in config.items() if name not in _NOT_THE_ARCHITECTURE}


def is_builtin(config: Any) -> bool:
    """Return whether this is the built-in models' architecture in any size.

    That is LLaMA with keys and values for each head and otherwise equal settings.
    """
    other = config.to_dict()
    same = all(other.get(name) == value for name, value in _architecture().items())
    return same and other["num_key_value_heads"] == other["num_attention_heads"]


# Keys that loading adds to a configuration, and keys about its origin.
_NOT_THE_ARCHITECTURE = frozenset(
    {"_name_or_path", "architectures", "dtype", "initializer_range", "transformers_version", "use_cache"}
    | {"vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "head_dim"}  # sizes
    | {"num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
)
