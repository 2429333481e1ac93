"""What one generation sampled for the steps to come (`rollout.steps_per_generation`), in memory and in checkpoints.

The steps of a run are cut into generations of K by their number alone: 1 to K, K + 1 to 2 K, and so on, the last one
shorter where the run ends. Where samples are missing in the middle of one (a rollback dropped them, the run's end
moved, sampling failed), the rest of it is sampled with the weights as they are then.

In a checkpoint a completion takes 12 bytes a token (id, log-probability of the sampler, ln pi_old) and a few hundred
bytes for its verdict; there are at most (K - 1) B G completions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.data import Prompt
from gtpo_cli.files import Count, Finite, parse_json
from gtpo_cli.models import Policy
from gtpo_cli.objective.batch import pad_rows
from gtpo_cli.recipe.schema import RolloutRecipe
from gtpo_cli.training.step import StepSamples
from gtpo_cli.types import Completion, Group, Verdict

# One number a token, all completions one behind the other.
_TENSORS = {"token_ids": torch.int32, "logprobs": torch.float32, "old_logprobs": torch.float32}


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a checkpoint says of a step beside its tokens. `problems`: of each group its problem's number in the data
    and its id. `lengths`, `truncated`, `verdicts`: of each completion."""

    number: Count
    age: Count
    resampled_share: Finite | None
    problems: list[tuple[Count, str]]
    lengths: list[Count]
    truncated: list[bool]
    verdicts: list[Verdict]


class SamplesAhead:
    """The samples of coming steps, by the step's number."""

    def __init__(self, rollout: RolloutRecipe, prompts: Sequence[Prompt], policy: Policy) -> None:
        """`prompts`: of the run, in the order of the data."""
        self._rollout, self._prompts, self._policy = rollout, prompts, policy
        self._steps: dict[int, StepSamples] = {}

    def missing(self, number: int, *, total_steps: int) -> range:
        """The steps to sample for now, so that step `number` can be made: it and the rest of its generation; none where
        its samples are there."""
        if number in self._steps:
            return range(0)
        K = self._rollout.steps_per_generation
        last = min((number - 1) // K * K + K, total_steps)
        return range(number, last + 1)

    def add(self, numbers: Sequence[int], samples: Sequence[StepSamples]) -> None:
        self._steps |= dict(zip(numbers, samples, strict=True))

    def take(self, number: int) -> StepSamples:
        """The samples of step `number`, which is made now."""
        return self._steps.pop(number)

    def drop(self) -> None:
        """Forget all of them: they are of a policy that was left."""
        self._steps.clear()

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; empty where nothing is left."""
        if not self._steps:
            return {}
        place = {id(problem): number for number, (problem, _) in enumerate(self._prompts)}
        stored, rows = [], []
        for number, samples in self._steps.items():
            completions = [completion for group in samples.groups for completion in group.completions]
            lengths = [len(completion.token_ids) for completion in completions]
            verdicts = [verdict for group in samples.groups for verdict in group.verdicts]
            problems = [(place[id(group.problem)], group.problem.id) for group in samples.groups]
            truncated = [completion.truncated for completion in completions]
            of_step = _Stored(number, samples.age, samples.resampled_share, problems, lengths, truncated, verdicts)
            stored.append(asdict(of_step))
            assert samples.old_logprobs_BGT is not None, "measured where steps are sampled ahead"
            old_NT = samples.old_logprobs_BGT.flatten(0, 1)
            for completion, length, old_T in zip(completions, lengths, old_NT, strict=True):
                rows.append((completion.token_ids, completion.logprobs, old_T[:length].tolist()))
        tensors = {
            name: torch.tensor([value for row in rows for value in row[column]], dtype=dtype)
            for column, (name, dtype) in enumerate(_TENSORS.items())
        }
        return {"steps": json.dumps(stored), **tensors}

    def load_state_dict(self, state: dict[str, Any], *, after: int) -> None:
        """Take what `state_dict` gave when step `after` was finished. Raises ValueError, LookupError or TypeError for
        what is not of this run, and for what would fail in a step."""
        self.drop()
        if not state:
            return
        stored = parse_json(state["steps"], list[_Stored])
        K = self._rollout.steps_per_generation
        if [step.number for step in stored] != list(range(after + 1, after + 1 + len(stored))) or len(stored) >= K:
            raise ValueError(f"its samples are not of the steps after step {after}")
        lengths = [length for step in stored for length in step.lengths]
        tokens = sum(lengths)
        for name, dtype in _TENSORS.items():
            if state[name].dtype != dtype or state[name].shape != (tokens,):
                raise ValueError(f"its samples have {tokens} tokens, and {name} of another number or type")
        ids = state["token_ids"]
        if tokens and not 0 <= int(ids.min()) <= int(ids.max()) < self._policy.vocabulary:
            raise ValueError("its samples have tokens that the model does not know")
        rows = zip(*(state[name].split(lengths) for name in _TENSORS), strict=True)
        for step in stored:
            self._steps[step.number] = self._samples(step, rows)

    def _samples(self, step: _Stored, rows: Iterator[tuple[Tensor, ...]]) -> StepSamples:
        G = self._rollout.group_size
        N = len(step.problems) * G
        if not step.problems or len(step.problems) > self._rollout.prompts_per_step:
            raise ValueError(f"its samples for step {step.number} are of {len(step.problems)} prompts")
        if not len(step.lengths) == len(step.truncated) == len(step.verdicts) == N:
            raise ValueError(f"its samples for step {step.number} are not {N} completions")
        if max(step.lengths) > self._rollout.max_completion_tokens:
            raise ValueError(f"its samples for step {step.number} are longer than rollout.max_completion_tokens")
        prompts = [self._prompts[number] for number, _ in step.problems]
        if [problem.id for problem, _ in prompts] != [name for _, name in step.problems]:
            raise ValueError(f"its samples for step {step.number} are of other problems than the data has there now")
        taken = [[values_T.tolist() for values_T in next(rows)] for _ in step.lengths]
        texts = self._policy.tokenizer.batch_decode([ids for ids, _, _ in taken], skip_special_tokens=True)
        completions = [
            Completion(tuple(ids), tuple(logprobs), "length" if truncated else "stop", text)
            for (ids, logprobs, _), truncated, text in zip(taken, step.truncated, texts, strict=True)
        ]
        groups = [
            Group(problem, ids, tuple(completions[b * G : b * G + G]), tuple(step.verdicts[b * G : b * G + G]))
            for b, (problem, ids) in enumerate(prompts)
        ]
        old_NT = pad_rows([old for _, _, old in taken], value=0.0, dtype=torch.float32)
        return StepSamples(groups, step.resampled_share, step.age, old_NT.view(len(prompts), G, -1))
