"""Find what a recipe comes to on this machine: each part once, on first use, before weights load."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from gtpo_cli.data import Prepared, prepare
from gtpo_cli.errors import ModelError
from gtpo_cli.job import Job
from gtpo_cli.models import Engines, ModelFiles, read_model
from gtpo_cli.models.engines import on_transformers
from gtpo_cli.models.loading import load_config
from gtpo_cli.models.tiny import BUILTIN_PREFIX, resolve_name
from gtpo_cli.planning.open_keys import Closed, Machine, close, this_machine
from gtpo_cli.planning.shapes import PUBLISHED, ModelShape, shape_of
from gtpo_cli.recipe import Recipe
from gtpo_cli.rewards import check_columns


class Parts:
    """The parts of a recipe's job. Each raises its own error where it cannot be found."""

    def __init__(self, recipe: Recipe, *, by_trl: bool = False) -> None:
        """`by_trl`: for TRL's trainer, which holds the policy on transformers and makes full steps."""
        self.written, self.by_trl = recipe, by_trl
        self._asked = on_transformers(recipe) if by_trl else recipe

    @cached_property
    def machine(self) -> Machine:
        return this_machine()

    @cached_property
    def path(self) -> str:
        return resolve_name(self.written.model.name)

    @cached_property
    def config(self) -> Any:
        """The model's configuration, or why it cannot be read."""
        try:
            return load_config(self.written.model, self.path)
        except ModelError as error:  # asked for only once, since asking the hub may take long
            return error

    @cached_property
    def shape(self) -> ModelShape | None:
        """The model's dimensions; None where nothing tells them."""
        name = self.written.model.name
        if isinstance(self.config, ModelError):
            return PUBLISHED.get(name)
        try:
            return shape_of(self.config, name)
        except ModelError:
            return None

    @cached_property
    def closed(self) -> Closed:
        """The values of the open keys, and the engines."""
        builtin = self.written.model.name.startswith(BUILTIN_PREFIX)
        return close(self._asked, self.machine, None if builtin else self.shape)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe with every open key decided; of TRL's trainer the engines stay as written."""
        return self.written.with_values(self.closed.values)

    @cached_property
    def here(self) -> Recipe:
        """The recipe as this machine holds the policy."""
        return self._asked.with_values(self.closed.values)

    @property
    def engines(self) -> Engines:
        if isinstance(self.closed.engines, ModelError):
            raise self.closed.engines
        return self.closed.engines

    @cached_property
    def model(self) -> ModelFiles:
        if isinstance(self.config, ModelError):
            raise self.config
        return read_model(self.written.model, self.path, self.config)

    @cached_property
    def data(self) -> Prepared:
        longest = self.model.context(self.written.model.max_seq_length)
        return prepare(self.written, self.model.tokenizer, longest, full_steps=self.by_trl)

    def check_columns(self) -> None:
        """Raise RewardError for a reward that is missing or reads columns which the data do not have."""
        if self.written.generates:
            check_columns(self.written.rewards, [problem for problem, _ in self.data.prompts])

    def job(self) -> Job:
        """Return the job. Raises DataError, ModelError or RewardError for a part that cannot be found."""
        self.check_columns()
        return Job(self.recipe, self.engines, self.model, self.data)
