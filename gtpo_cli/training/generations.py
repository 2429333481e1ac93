"""Generations: one call of the sampler gives the scored completions of K steps (`rollout.steps_per_generation`).

Steps are grouped into generations by number: 1 to K, K + 1 to 2 K, and so on. The last may be shorter. If samples are
missing in the middle of a generation (a rollback dropped them, the run's end moved, sampling failed), the rest of it is
sampled with the weights of that moment.

In a checkpoint a completion takes 12 bytes a token (id, log-probability of the sampler, ln pi_old) and a few hundred
bytes for its verdict. There are at most (K - 1) B G completions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.data import Prompt, PromptOrder
from gtpo_cli.data.order import ALL
from gtpo_cli.data.prompts import completion_text
from gtpo_cli.objective.batch import pad_rows
from gtpo_cli.policy.packing import measure_rows
from gtpo_cli.policy.sampler import SamplingParams, collate, sample
from gtpo_cli.runs.files import Count, parse_json
from gtpo_cli.seeds import derive_seed
from gtpo_cli.training.difficulty import Difficulty
from gtpo_cli.training.step import Outcome, StepParts, StepSamples
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Completion, Group, Verdict

MorePrompts = Callable[[int, int], Sequence[Prompt]]  # (attempt, how many) -> prompts
# One number for each token; completions are concatenated.
_TENSORS = {"token_ids": torch.int32, "logprobs": torch.float32, "old_logprobs": torch.float32}


@dataclass(frozen=True, slots=True)
class StepPrompts:
    """The prompts of one step and the seed for sampling them.

    `more` supplies new prompts when `objective.resample` replaces groups without reward spread.
    """

    prompts: Sequence[Prompt]
    seed: int
    more: MorePrompts | None = None


def sample_steps(parts: StepParts, steps: Sequence[StepPrompts], *, clock: Stopwatch) -> list[StepSamples]:
    """Sample and score the prompts of these steps with the current weights, in one generation.

    One call of the sampler takes all prompts, with the seed of the first step. Each step then resamples with its own
    seed.
    """
    policy = parts.policy
    with clock.phase("sample"):
        parts.sampler.sync(policy)
    groups = _sample_and_score(parts, [prompt for step in steps for prompt in step.prompts], steps[0].seed, clock)
    samples = []
    for age, step in enumerate(steps):
        chosen, groups = groups[: len(step.prompts)], groups[len(step.prompts) :]
        discarded = _resample(parts, chosen, step, clock)
        old_NT = None
        if age > 0:  # by then the weights will have moved
            with clock.phase("train"):
                old_NT = measure_rows(  # ln pi_old
                    collate(chosen, device=policy.device),
                    lambda rows: policy.token_logprobs(rows)[0],
                    parts.budget,
                    packed=policy.packs,
                ).cpu()
        samples.append(StepSamples(chosen, step.seed, discarded, age, old_NT))
    return samples


def _sample_and_score(parts: StepParts, prompts: Sequence[Prompt], seed: int, clock: Stopwatch) -> list[Group]:
    rollout = parts.rollout
    params = SamplingParams(rollout.temperature, max_completion_tokens=rollout.max_completion_tokens, seed=seed)
    with clock.phase("sample"):
        groups = sample(parts.sampler, prompts, rollout.group_size, params, ended=parts.scorer.begin)
    with clock.phase("reward"):
        return parts.scorer.score_groups(groups)


def _resample(parts: StepParts, groups: list[Group], step: StepPrompts, clock: Stopwatch) -> list[Outcome] | None:
    """Replace groups without reward spread by groups of new prompts (DAPO's dynamic sampling), and return those that
    were replaced. A group without spread after the last attempt stays.
    """
    attempts = parts.objective.resample
    if step.more is None or not attempts:
        return None
    discarded = []
    for attempt in range(attempts):
        without_spread = [place for place, group in enumerate(groups) if len({v.reward for v in group.verdicts}) == 1]
        if not without_spread:
            break
        seed = derive_seed(step.seed, "resample", attempt)
        fresh = _sample_and_score(parts, step.more(attempt, len(without_spread)), seed, clock)
        for place, group in zip(without_spread, fresh, strict=True):
            discarded.append(Outcome.of(groups[place]))
            groups[place] = group
    return discarded


@dataclass(frozen=True, slots=True)
class _Stored:
    """A step in a checkpoint, without its tokens.

    `discarded`: the number in the data of the problem of each discarded group, and whether each completion was right.
    `problems`: the number in the data and the id of each group's problem. `lengths`, `truncated` and `verdicts` have
    one entry for each completion.
    """

    number: Count
    age: Count
    discarded: list[tuple[Count, list[bool]]] | None
    problems: list[tuple[Count, str]]
    lengths: list[Count]
    truncated: list[bool]
    verdicts: list[Verdict]


class Generations:
    """The samples of coming steps, by step number."""

    def __init__(
        self,
        parts: StepParts,
        prompts: Sequence[Prompt],
        order: PromptOrder,
        *,
        seed: int,
        difficulty: Difficulty | None = None,
    ) -> None:
        """`prompts`: all prompts of the run, in the order of the data. `seed`: the run's."""
        self._difficulty = difficulty
        self._parts, self._prompts, self._order, self._seed = parts, prompts, order, seed
        self._steps: dict[int, StepSamples] = {}

    def take(self, number: int, *, clock: Stopwatch) -> StepSamples:
        """Return the samples of step `number`, and drop those of the steps before it.

        If it has none, sample it and the rest of its generation first. Raises GenerationError, RewardError.
        """
        if number not in self._steps:
            if self._difficulty is not None:
                self._difficulty.move()
            missing = self._missing(number)
            samples = sample_steps(self._parts, [self._prompts_of(step) for step in missing], clock=clock)
            self._steps |= dict(zip(missing, samples, strict=True))
        self._steps = {step: samples for step, samples in self._steps.items() if step >= number}
        return self._steps[number]

    def _missing(self, number: int) -> range:
        K = self._parts.rollout.steps_per_generation
        return range(number, min((number - 1) // K * K + K, self._order.total_steps) + 1)

    def _prompts_of(self, number: int) -> StepPrompts:
        asked = ALL if self._difficulty is None else self._difficulty.asked
        more = partial(self._order.more, number, asked=asked)
        return StepPrompts(self._order.step(number, asked), self._seed_of(number), more)

    def _seed_of(self, number: int) -> int:
        return derive_seed(self._seed, "sample", number)

    def drop(self) -> None:
        """Drop all samples, after their policy was abandoned."""
        self._steps.clear()

    def state_dict(self, *, after: int) -> dict[str, Any]:
        """Return the samples for a checkpoint at the end of step `after`; empty if none are left.

        Empty too if step `after + 1` begins the generation, as when that step failed: a resume samples it again.
        """
        left = {number: samples for number, samples in self._steps.items() if number > after}
        if not left or left[after + 1].age == 0:
            return {}
        place = {id(problem): number for number, (problem, _) in enumerate(self._prompts)}
        stored, rows = [], []
        for number, samples in left.items():
            completions = [completion for group in samples.groups for completion in group.completions]
            lengths = [len(completion.token_ids) for completion in completions]
            verdicts = [verdict for group in samples.groups for verdict in group.verdicts]
            problems = [(place[id(group.problem)], group.problem.id) for group in samples.groups]
            truncated = [completion.truncated for completion in completions]
            gone = None
            if samples.discarded is not None:
                gone = [(place[id(problem)], list(correct)) for problem, correct in samples.discarded]
            of_step = _Stored(number, samples.age, gone, problems, lengths, truncated, verdicts)
            stored.append(asdict(of_step))
            assert samples.old_NT is not None, "measured for every age above 0"
            for completion, length, old_T in zip(completions, lengths, samples.old_NT, strict=True):
                rows.append((completion.token_ids, completion.logprobs, old_T[:length].tolist()))
        tensors = {
            name: torch.tensor([value for row in rows for value in row[column]], dtype=dtype)
            for column, (name, dtype) in enumerate(_TENSORS.items())
        }
        return {"steps": json.dumps(stored), **tensors}

    def load_state_dict(self, state: dict[str, Any], *, after: int) -> None:
        """Load the `state_dict` from the end of step `after`.

        Raises ValueError, LookupError or TypeError for samples of another run and for values that would fail in a step.
        """
        self.drop()
        if not state:
            return
        stored = parse_json(state["steps"], list[_Stored])
        K = self._parts.rollout.steps_per_generation
        if [step.number for step in stored] != list(range(after + 1, after + 1 + len(stored))) or len(stored) >= K:
            raise ValueError(f"its samples are not for the steps after step {after}")
        lengths = [length for step in stored for length in step.lengths]
        tokens = sum(lengths)
        for name, dtype in _TENSORS.items():
            if state[name].dtype != dtype or state[name].shape != (tokens,):
                raise ValueError(f"its samples have {tokens} tokens, but {name} has another number or type")
        ids = state["token_ids"]
        if tokens and not 0 <= int(ids.min()) <= int(ids.max()) < self._parts.policy.vocabulary:
            raise ValueError("its samples have tokens outside the model's vocabulary")
        rows = zip(*(state[name].split(lengths) for name in _TENSORS), strict=True)
        for step in stored:
            self._steps[step.number] = self._samples(step, rows)

    def _samples(self, step: _Stored, rows: Iterator[tuple[Tensor, ...]]) -> StepSamples:
        G = self._parts.rollout.group_size
        N = len(step.problems) * G
        if not step.problems or len(step.problems) > self._parts.rollout.prompts_per_step:
            raise ValueError(f"its samples for step {step.number} have {len(step.problems)} prompts")
        if not len(step.lengths) == len(step.truncated) == len(step.verdicts) == N:
            raise ValueError(f"its samples for step {step.number} are not {N} completions")
        if max(step.lengths) > self._parts.rollout.max_completion_tokens:
            raise ValueError(f"its samples for step {step.number} are longer than rollout.max_completion_tokens")
        prompts = [self._prompts[number] for number, _ in step.problems]
        if [problem.id for problem, _ in prompts] != [name for _, name in step.problems]:
            raise ValueError(f"its samples for step {step.number} belong to problems that the data no longer has there")
        taken = [[values_T.tolist() for values_T in next(rows)] for _ in step.lengths]
        policy = self._parts.policy
        completions = [
            Completion(
                tuple(ids),
                tuple(logprobs),
                "length" if truncated else "stop",
                completion_text(policy.tokenizer, ids, policy.eos_token_ids),
            )
            for (ids, logprobs, _), truncated in zip(taken, step.truncated, strict=True)
        ]
        groups = [
            Group(problem, ids, tuple(completions[b * G : b * G + G]), tuple(step.verdicts[b * G : b * G + G]))
            for b, (problem, ids) in enumerate(prompts)
        ]
        old_NT = pad_rows([old for _, _, old in taken], value=0.0, dtype=torch.float32)
        gone = None
        if step.discarded is not None:
            gone = [Outcome(self._prompts[number][0], correct) for number, correct in step.discarded]
        return StepSamples(groups, self._seed_of(step.number), gone, step.age, old_NT)
