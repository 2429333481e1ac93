"""The job: what a recipe comes to on this machine, found once before weights load (`machine/resolve.py`).

It is plain and frozen. What loads and samples the model, measures it and trains it takes its values from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from gtpo_cli.data import Prepared, PromptEncoder
from gtpo_cli.hub import cached_snapshot
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import CHANGES_NO_STEP, Engine
from gtpo_cli.recipe.section import code_names
from gtpo_cli.runs.user_code import code_digest

if TYPE_CHECKING:
    from gtpo_cli.data.unseen import Benchmark

_LIBRARIES = {"unsloth": "Unsloth", "vllm": "vLLM"}  # others have the recipe's name


class Engines(NamedTuple):
    """`backend` holds the policy, `engine` samples; `shared`: both work on the same weights in GPU memory."""

    backend: Literal["unsloth", "transformers"]
    engine: Engine
    shared: bool

    def __str__(self) -> str:
        if self.shared:
            return "Unsloth, sampling by its vLLM engine"
        backend, engine = (_LIBRARIES.get(name, name) for name in (self.backend, self.engine))
        return backend if backend == engine else f"{backend}, sampling by {engine}"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model without its weights: configuration and tokenizer. `path`: its folder or hub id. `tokenizer_path`: that of
    its tokenizer, another one for an adapter that has its own. `context`: most tokens of prompt and completion
    together, the recipe's or the model's own if fewer."""

    path: str
    config: Any
    tokenizer: Any
    tokenizer_path: str
    context: int


@dataclass(frozen=True, slots=True)
class Job:
    """What loading and sampling a model needs.

    `recipe`: as it runs, with every open key decided. `engines`: the libraries that hold the policy and sample.
    `encoder`: the form of prompts and completions.
    """

    recipe: Recipe
    engines: Engines
    model: ModelFiles
    encoder: PromptEncoder

    @property
    def commit(self) -> str | None:
        """The hub's commit that the model's name and revision resolved to; None for a folder."""
        path = self.model.path
        snapshot = None if Path(path).is_dir() else cached_snapshot(path, self.recipe.model.revision)
        return None if snapshot is None else snapshot.name

    def with_recipe(self, recipe: Recipe) -> Self:
        """Return the job with another recipe of the same model, engines and data."""
        return replace(self, recipe=recipe)


@dataclass(frozen=True, slots=True)
class TrainingJob(Job):
    """What training needs. `data`: the problems, their prompts and their order. `held_out`: the benchmarks that
    `training.eval_every` measures, none without it. `decided`: the keys that the recipe left open, as the machine
    decides them."""

    data: Prepared
    held_out: tuple[Benchmark, ...] = ()
    decided: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kept(self) -> Recipe:
        """The recipe for the run's folder. What changes no step stays open, so that another machine decides anew."""
        return self.recipe.with_values({key: "auto" for key in self.decided if key in CHANGES_NO_STEP})

    def named(self, run_name: str | None) -> Self:
        """Return the job of a run with this name."""
        return self.with_recipe(self.recipe.model_copy(update={"run_name": run_name}))

    @property
    def code_digests(self) -> dict[str, str]:
        """Eight hexadecimal digits for the files of each function or class of the user's own that the recipe names."""
        return {name: code_digest(name) for _, name in code_names(self.recipe)}

    @property
    def problem_digests(self) -> list[str]:
        """Eight hexadecimal digits for each problem's question and gold answer, in the order of the data."""
        texts = (f"{problem.question}\0{problem.gold}" for problem, _ in self.data.prompts)
        return [hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8] for text in texts]
