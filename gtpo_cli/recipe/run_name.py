"""The default name of a run: model, data, method and start time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from gtpo_cli.recipe.data import SourceRecipe
from gtpo_cli.recipe.schema import Recipe

_LONGEST = 57  # characters; 60 with a number
_LONGEST_DATA = 14
# Format suffixes of a model's name, which a run's name drops.
_FORMAT = re.compile(r"[-_](instruct|chat|it|hf|unsloth|bnb|4bit)(?=[-_]|$)")


def default_names(recipe: Recipe) -> Iterator[str]:
    """Yield `smollm2-135m-gsm8k-gtpo-20261123-1832`, then the same with -2, -3, ... for starts in the same minute.

    Names of one recipe sort by time. They have at most 60 characters of a-z, 0-9, `.`, `_` and `-`.
    """
    model = Path(recipe.model.name.removeprefix("builtin:")).absolute()
    data = _plain("-".join(map(_of_data, recipe.data.sources)))[:_LONGEST_DATA].strip("-._")
    rest = f"-{data or recipe.data.benchmark}-{recipe.objective.name}-{time.strftime('%Y%m%d-%H%M')}"
    name = _FORMAT.sub("", _plain(model.name))[: _LONGEST - len(rest)].strip("-._") or "model"
    yield name + rest
    for number in count(2):
        yield f"{name}{rest}-{number}"


def _of_data(source: SourceRecipe) -> str:
    return Path(source.path).stem if source.path else source.name.rpartition("/")[2]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._")
