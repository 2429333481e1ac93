"""A model without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.recipe.schema import ModelRecipe


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's configuration and tokenizer. `path`: its folder or hub id."""

    path: str
    config: Any
    tokenizer: Any

    def context(self, max_seq_length: int) -> int:
        """Return the most tokens of prompt and completion together: the recipe's, or the model's own if fewer."""
        from gtpo_cli.models.loading import bounded_context

        return bounded_context(self.config, max_seq_length)


def read_model(recipe: ModelRecipe, path: str | None = None, config: Any = None) -> ModelFiles:
    """Read a model's configuration, unless it is given, and its tokenizer, by default from where the recipe names it.

    Raises ModelError with the remedy.
    """
    from gtpo_cli.models.loading import load_config, load_tokenizer

    path = resolve_name(recipe.name) if path is None else path
    config = load_config(recipe, path) if config is None else config
    return ModelFiles(path, config, load_tokenizer(recipe, path, config))
