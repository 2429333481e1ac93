"""Which prompts a step asks: by its number, and by what difficulty lets it ask."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gtpo_cli.data.prompts import Prompt
from gtpo_cli.recipe import Recipe
from gtpo_cli.seeds import derive_seed


class Asked(NamedTuple):
    """What a step may ask. `levels`: the level of each part of the data; None without `data.curriculum`. `resting`: the
    numbers of prompts that rest (`data.rest_after`)."""

    levels: Mapping[str, int] | None = None
    resting: frozenset[int] = frozenset()


ALL = Asked()


class PromptOrder:
    """The prompts of each step, which depend only on the seed, the step's number, and what a step may ask.

    So a resumed run neither repeats nor skips a prompt, and needs no stored position. An epoch is divided into steps of
    `prompts_per_step`. Its last step may be smaller; with `full_steps` it is left out, because TRL needs full steps.
    """

    def __init__(self, recipe: Recipe, prompts: Sequence[Prompt], *, full_steps: bool = False) -> None:
        assert prompts, "no prompts"
        self._prompts = prompts
        self._seed = recipe.seed
        self._shuffle = recipe.data.shuffle
        self.prompts_per_step = min(recipe.rollout.prompts_per_step, len(prompts))
        self._per_epoch = len(prompts) - (len(prompts) % self.prompts_per_step if full_steps else 0)
        self.steps_per_epoch = math.ceil(self._per_epoch / self.prompts_per_step)
        self._epoch, self._order = -1, list[int]()  # cache of the last epoch used
        names = [source.name for source in recipe.data.sources]
        self._weights = dict(zip(names, recipe.data.mixture.values() or [1.0], strict=True))
        self.total_steps = recipe.training.max_steps or self.steps_per_epoch * recipe.training.epochs

    @property
    def total_prompts(self) -> int:
        """The number of prompts in all steps, with repetitions."""
        epochs, steps = divmod(self.total_steps, self.steps_per_epoch)
        return epochs * self._per_epoch + steps * self.prompts_per_step

    def step(self, number: int, asked: Asked = ALL) -> list[Prompt]:
        """Return the prompts of step `number`, counted from 1."""
        return [self._prompts[index] for index in self.numbers(number, asked)]

    def numbers(self, number: int, asked: Asked = ALL) -> list[int]:
        """Return the positions of step `number`'s prompts in the data, counted from 0.

        With levels, each is drawn from a part (by the weights of `data.mixture`) at its level. Others take the place of
        prompts that rest; if all rest, none does.
        """
        draw = random.Random(derive_seed(self._seed, "asked", number))
        if asked.levels is None:
            chosen = self._of_epoch(number)
            awake = [place for place in chosen if place not in asked.resting]
            return awake + self._drawn(draw, asked, len(chosen) - len(awake), but=chosen)
        parts = draw.choices(list(self._weights), list(self._weights.values()), k=self.prompts_per_step)
        chosen = []
        for part, count in Counter(parts).items():
            chosen += self._drawn(draw, asked, count, part=part)
        return chosen

    def _drawn(
        self, draw: random.Random, asked: Asked, count: int, *, part: str | None = None, but: Sequence[int] = ()
    ) -> list[int]:
        """Draw prompts that may be asked, of one part or of all; the same one twice only if there are too few."""
        if not count:
            return []
        allowed = [
            place
            for place, (problem, _) in enumerate(self._prompts)
            if part in (None, problem.part) and (asked.levels is None or problem.level == asked.levels[problem.part])
        ]
        awake = [place for place in allowed if place not in asked.resting and place not in but] or allowed
        return draw.sample(awake, count) if count <= len(awake) else draw.choices(awake, k=count)

    def _of_epoch(self, number: int) -> list[int]:
        epoch, index = divmod(number - 1, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return self._order[index * self.prompts_per_step : (index + 1) * self.prompts_per_step]

    def more(self, number: int, attempt: int, count: int, *, asked: Asked = ALL) -> list[Prompt]:
        """Draw `count` further prompts for step `number` from all that may be asked; at most as many as a step has."""
        draw = random.Random(derive_seed(self._seed, f"resample {attempt}", number))
        return [self._prompts[place] for place in self._drawn(draw, asked, count)]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._prompts)))
        if self._shuffle:
            random.Random(derive_seed(self._seed, "order", epoch)).shuffle(order)
        return order
