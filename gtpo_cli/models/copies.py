"""Models that the hub gives only after a licence was accepted there, and the copies that it gives to everybody.

Unsloth keeps copies of the models that the shipped recipes name, under the last part of their names: the weights as
they are, and in 4 bits (NF4) with `-bnb-4bit` behind it. So says the table of Unsloth's own loader
(unsloth/models/mapper.py); nothing is asked here.
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
    """The copy of a model that needs no licence to be accepted first; None where none is known."""
    return f"unsloth/{name.rpartition('/')[2]}" if _COPIED.fullmatch(name) else None


def quantized_copy(name: str) -> str | None:
    """The copy of a model in 4 bits; None where none is known."""
    copy = open_copy(name)
    return copy and f"{copy}-bnb-4bit"


def hub_refusal(name: str, error: BaseException | None) -> str | None:
    """What to tell a user whom the hub does not give a model, or a file of it: where to accept its licence, how to log
    in, which copy is open. None where the error, and what it came from, is another."""
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
            f"model.name: the hub does not give {name} to this login ({one_line(str(error), most=200)}); log in "
            f"again: {login}; the token needs read access to gated repositories where the model is one"
        )
    if copy := open_copy(name):
        said += f". Or take Unsloth's open copy, under the same licence: --set model.name={copy}"
    return said


def _refuses(error: BaseException) -> bool:
    if isinstance(error, RepositoryNotFoundError):
        return isinstance(error, GatedRepoError)
    return isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403)
