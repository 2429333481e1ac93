"""Which prompts each step trains on: a function of the seed and the step number alone.

So a resumed run can neither repeat nor skip a prompt, and needs no stored position.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from gtpo_cli.recipe import Recipe
from gtpo_cli.rollout import Prompt
from gtpo_cli.seeds import derive_seed


class PromptOrder:
    """Cuts the problems into steps of `prompts_per_step`; the last step of an epoch may be smaller."""

    def __init__(self, recipe: Recipe, prompts: Sequence[Prompt]) -> None:
        assert prompts, "no prompts"
        self._prompts = prompts
        self._seed = recipe.seed
        self._shuffle = recipe.data.shuffle
        self._per_step = min(recipe.rollout.prompts_per_step, len(prompts))
        self.steps_per_epoch = math.ceil(len(prompts) / self._per_step)
        self._epoch, self._order = -1, list[int]()  # the last epoch asked for
        self.total_steps = recipe.training.max_steps or self.steps_per_epoch * recipe.training.epochs

    @property
    def total_prompts(self) -> int:
        """Prompts of all steps together, each as often as it comes."""
        epochs, steps = divmod(self.total_steps, self.steps_per_epoch)
        return epochs * len(self._prompts) + steps * self._per_step

    def step(self, number: int) -> list[Prompt]:
        """The prompts of step `number`, counted from 1."""
        epoch, index = divmod(number - 1, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return [self._prompts[i] for i in self._order[index * self._per_step : (index + 1) * self._per_step]]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._prompts)))
        if self._shuffle:
            random.Random(derive_seed(self._seed, "order", epoch)).shuffle(order)
        return order
