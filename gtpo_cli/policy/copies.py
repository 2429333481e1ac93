"""Gated models, whose licence users must accept on the hub, and their open copies.

Unsloth keeps copies of the models in the shipped recipes, under the last part of their names: the unchanged weights,
and with the suffix `-bnb-4bit` in 4 bits (NF4). The names follow the table in Unsloth's own loader
(unsloth/models/mapper.py). This module does not contact the hub.
"""

from __future__ import annotations

import re

from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from gtpo_cli.errors import program
from gtpo_cli.text import one_line

_COPIED = re.compile(
    r"meta-llama/Llama-3\.(1-8B|1-8B-Instruct|2-[13]B|2-[13]B-Instruct|3-70B-Instruct)"
    r"|Qwen/Qwen2\.5-(0\.5|1\.5|3|7|14|32|72)B(-Instruct)?"
)


def open_copy(name: str) -> str | None:
    """Return the open copy of a gated model; None if none is known."""
    return f"unsloth/{name.rpartition('/')[2]}" if _COPIED.fullmatch(name) else None


def quantized_copy(name: str) -> str | None:
    """Return the 4-bit copy of a model; None if none is known."""
    copy = open_copy(name)
    return copy and f"{copy}-bnb-4bit"


def hub_refusal(name: str, error: BaseException | None) -> str | None:
    """Return a message with remedies if the hub refused a model or one of its files; None for any other error.

    The remedies are accepting the licence, logging in, and the open copy.
    """
    while error is not None and not _refuses(error):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    login = f"{program('hf')} auth login (or set HF_TOKEN)"
    if isinstance(error, GatedRepoError):
        said = (
            f"model.name: {name} is gated: the hub gives it only to accounts that accepted its licence. Accept it at "
            f"https://huggingface.co/{name}, then log in here: {login}"
        )
    else:
        said = (
            f"model.name: the hub refuses {name} to this login ({one_line(str(error), most=200)}); log in "
            f"again: {login}; for a gated model the token needs read access to gated repositories"
        )
    if copy := open_copy(name):
        said += f". Or use Unsloth's open copy, under the same licence: --set model.name={copy}"
    return said


def _refuses(error: BaseException) -> bool:
    if isinstance(error, RepositoryNotFoundError):
        return isinstance(error, GatedRepoError)
    return isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403)
