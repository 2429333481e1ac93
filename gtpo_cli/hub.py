"""The hub: whether it can be reached (checked once), and open copies of gated models, whose licence it asks for.

If it cannot, its library tries six times for each file, with pauses, so a mistyped folder would take a minute to
report. Only failed connections count here (no network, no such host, refused). The library handles slow hubs, rejected
logins and server errors itself.

Unsloth keeps copies of the models in the shipped recipes, under the last part of their names: the unchanged weights,
and with the suffix `-bnb-4bit` in 4 bits (NF4). The names follow the table in Unsloth's own loader
(unsloth/models/mapper.py).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from gtpo_cli.errors import program
from gtpo_cli.text import one_line

_SECONDS = 10.0
_SECONDS_TO_CONNECT = 5.0
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def why_unreachable() -> str | None:
    """Return why the hub cannot be reached, or None. The first call takes a few tenths of a second."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    return _connection_failure(constants.ENDPOINT)


def offline_remedy() -> str:
    """Return the remedy for an unreachable hub."""
    from huggingface_hub import constants

    there = "bring it here, or unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "set HF_HUB_OFFLINE=1 here"
    return f"fill the cache on a machine with network (hf download NAME) and {there}"


@contextmanager
def only_the_cache_if_unreachable() -> Iterator[str | None]:
    """Make the libraries use only their cache in the block if the hub is unreachable. Yields `why_unreachable()`."""
    from huggingface_hub import constants

    reason = why_unreachable()
    # The libraries have no other switch that covers every file.
    places: list[Any] = [constants, *(module for name, module in sys.modules.items() if name == "datasets.config")]
    before = [vars(place)["HF_HUB_OFFLINE"] for place in places]
    try:
        for place in places:
            place.HF_HUB_OFFLINE = place.HF_HUB_OFFLINE or reason is not None
        yield reason
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


@cache
def _connection_failure(endpoint: str) -> str | None:
    import httpx
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=httpx.Timeout(_SECONDS, connect=_SECONDS_TO_CONNECT))
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL) as error:
        return f"{endpoint}: {error or 'no answer'}"
    except httpx.HTTPError:
        return None  # reached or only slow, which the library handles
    return None


def cached_snapshot(name: str, revision: str | None = None) -> Path | None:
    """Return the cached folder of a hub name (at a revision); the folder's name is the commit."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(file).parent if isinstance(file, str) else None


def missing_weights(snapshot: Path) -> str | None:
    """Return the first weights file that a cached snapshot lacks; None if it is complete."""
    there = next((snapshot / name for name in _WEIGHTS if (snapshot / name).exists()), None)
    if there is None:
        return _WEIGHTS[0]
    if there.suffix != ".json":
        return None
    shards = json.loads(there.read_text(encoding="utf-8"))["weight_map"].values()
    return next((name for name in sorted(set(shards)) if not (snapshot / name).exists()), None)


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
    from huggingface_hub.errors import GatedRepoError

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
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    if isinstance(error, RepositoryNotFoundError):
        return isinstance(error, GatedRepoError)
    return isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403)
