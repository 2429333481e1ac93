"""Difficulty that follows the model: the levels of tasks (`data.curriculum`) and prompts that rest (`data.rest_after`).

Both depend only on the verdicts of the steps made, so they are a small part of a checkpoint and a resumed run goes on
exactly. They change between generations only: a generation's prompts are chosen by what was known before it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from gtpo_cli.data import Prompt
from gtpo_cli.data.order import Asked
from gtpo_cli.recipe.data import CurriculumRecipe
from gtpo_cli.runs.files import Count, parse_json
from gtpo_cli.training.step import Outcome


@dataclass(frozen=True, slots=True)
class _Stored:
    """In a checkpoint. `recent`: the last completions of each task at its level, 1 for a right one. `alike`: how often
    in a row the groups of a prompt, by its number in the data, were all right or all wrong. `resting`: numbers too."""

    levels: dict[str, Count]
    recent: dict[str, list[Count]]
    alike: dict[str, Count]
    resting: list[Count]


class Difficulty:
    """What is asked next. `levels`: each task's level, from 0. `resting`: numbers of prompts that are left out."""

    def __init__(
        self, prompts: Sequence[Prompt], curriculum: CurriculumRecipe | None = None, rest_after: int | None = None
    ) -> None:
        """`prompts`: all prompts of the run, in the order of the data."""
        self._curriculum, self._rest_after = curriculum, rest_after
        self._place = {id(problem): number for number, (problem, _) in enumerate(prompts)}
        self._top = dict[str, int]()
        for problem, _ in prompts:
            self._top[problem.part] = max(problem.level, self._top.get(problem.part, 0))
        over = 1 if curriculum is None else curriculum.over
        self.levels = dict.fromkeys(self._top, 0)
        self.resting = frozenset[int]()
        self._recent = {part: deque[int](maxlen=over) for part in self._top}
        self._alike = dict[int, int]()

    @property
    def asked(self) -> Asked:
        """What the next steps may ask."""
        return Asked(None if self._curriculum is None else self.levels, self.resting)

    def observe(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Take note of all groups that a step sampled, and return its metrics."""
        right: dict[str, list[int]] = {}
        for problem, answers in outcomes:
            correct = [int(answer) for answer in answers]
            right.setdefault(problem.part, []).extend(correct)
            if problem.level == self.levels[problem.part]:  # not one that was sampled before a move
                self._recent[problem.part].extend(correct)
            number, alike = self._place[id(problem)], len(set(correct)) == 1
            self._alike[number] = self._alike.get(number, 0) + 1 if alike else 0
        metrics = {f"tasks/{part}/accuracy_rate": fmean(correct) for part, correct in right.items()}
        if self._curriculum is not None:
            metrics |= {f"tasks/{part}/level": float(level) for part, level in self.levels.items()}
        if self._rest_after is not None:
            metrics["tasks/resting"] = float(len(self.resting))
        return metrics

    def move(self) -> None:
        """Raise or lower levels, and let prompts rest, before a generation."""
        if self._curriculum is not None:
            for part, recent in self._recent.items():
                self._move(part, recent, self._curriculum)
        if self._rest_after is not None:
            self.resting = frozenset(number for number, times in self._alike.items() if times >= self._rest_after)

    def _move(self, part: str, recent: deque[int], curriculum: CurriculumRecipe) -> None:
        if len(recent) < curriculum.over:
            return
        accuracy, level = fmean(recent), self.levels[part]
        step = int(accuracy >= curriculum.raise_at) - int(accuracy <= curriculum.lower_at)
        if 0 <= level + step <= self._top[part] and step:
            self.levels[part] = level + step
            recent.clear()

    def state_dict(self) -> str:
        """Return what `load_state_dict` needs, as JSON."""
        recent = {part: list(values) for part, values in self._recent.items()}
        alike = {str(number): times for number, times in sorted(self._alike.items()) if times}
        return json.dumps(asdict(_Stored(self.levels, recent, alike, sorted(self.resting))))

    def load_state_dict(self, state: str) -> None:
        """Raises ValueError for the state of other tasks, or for values that they cannot have."""
        stored = parse_json(state, _Stored)
        if stored.levels.keys() != self.levels.keys() or stored.recent.keys() != self.levels.keys():
            raise ValueError("its levels belong to other tasks")
        if any(level > self._top[part] for part, level in stored.levels.items()):
            raise ValueError("it has a level that its task does not have")
        alike = {int(number): times for number, times in stored.alike.items()}
        if any(number >= len(self._place) for number in (*alike, *stored.resting)):
            raise ValueError("it names prompts that the data do not have")
        self.levels = dict(stored.levels)
        for part, values in stored.recent.items():
            self._recent[part].clear()
            self._recent[part].extend(min(value, 1) for value in values)
        self._alike, self.resting = alike, frozenset(stored.resting)
