"""The job of a run: what a recipe comes to on this machine, found once before weights load (`planning/resolve.py`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from gtpo_cli.data import Prepared
from gtpo_cli.models import Engines, ModelFiles
from gtpo_cli.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Job:
    """A recipe whose every part is found.

    `recipe`: as it runs, with every open key decided. `engines`: the libraries that train and sample. `model`: the
    model's configuration and tokenizer. `data`: the problems, their prompts and their order.
    """

    recipe: Recipe
    engines: Engines
    model: ModelFiles
    data: Prepared

    @property
    def problem_digests(self) -> list[str]:
        """Eight hexadecimal digits for each problem's question and gold answer, in the order of the data."""
        texts = (f"{problem.question}\0{problem.gold}" for problem, _ in self.data.prompts)
        return [hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8] for text in texts]

    def with_recipe(self, recipe: Recipe) -> Job:
        """Return the job with another recipe of the same model, engines and data."""
        return replace(self, recipe=recipe)
