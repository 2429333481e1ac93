"""The recipe's rewards as a reward function of TRL, which keeps its verdicts as the records that gtpo logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gtpo_cli.data import Prompt
from gtpo_cli.policy import Policy
from gtpo_cli.rewards import Scorer
from gtpo_cli.types import Completion, Group, Verdict


class RecipeReward:
    """A reward function of TRL: the recipe's weighted sum, from the same scorer as gtpo's own loop.

    `verdicts`: those of the newest call, for this process's completions. User rewards see NaN as log-probabilities,
    since TRL does not have them when it scores.
    """

    __name__ = "reward"  # as TRL logs it

    def __init__(self, scorer: Scorer, prompts: Sequence[Prompt], policy: Policy) -> None:
        self._scorer, self._prompts = scorer, prompts
        self._tokenizer, self._eos = policy.tokenizer, policy.eos_token_ids
        self.verdicts: list[Verdict] = []

    def __call__(self, *, completion_ids: list[list[int]], problem: list[int], **_: Any) -> list[float]:
        completions = self.completions(completion_ids, [[math.nan] * len(ids) for ids in completion_ids])
        groups = [
            Group(self._prompts[number][0], (), (completion,))
            for number, completion in zip(problem, completions, strict=True)
        ]
        self.verdicts = [group.verdicts[0] for group in self._scorer.score_groups(groups)]
        return [verdict.reward for verdict in self.verdicts]

    def completions(self, token_ids: list[list[int]], logprobs: list[list[float]]) -> list[Completion]:
        """Make records of completions, decoding their texts as gtpo's samplers do."""
        texts = self._tokenizer.batch_decode(token_ids, skip_special_tokens=True)
        return [
            Completion(tuple(ids), tuple(logp), "stop" if ids and ids[-1] in self._eos else "length", text)
            for ids, logp, text in zip(token_ids, logprobs, texts, strict=True)
        ]

    def groups(
        self,
        problems: Sequence[int],
        verdicts: Sequence[Verdict],
        token_ids: list[list[int]],
        logprobs: list[list[float]],
        *,
        size: int,
    ) -> list[Group]:
        """Build the step's groups from the rows of all processes in order."""
        rows = self.completions(token_ids, logprobs)
        groups = []
        for start in range(0, len(rows), size):
            assert len(set(problems[start : start + size])) == 1, "a group is not in one piece"
            problem, prompt_ids = self._prompts[problems[start]]
            members = slice(start, start + size)
            groups.append(Group(problem, prompt_ids, tuple(rows[members]), tuple(verdicts[members])))
        return groups
