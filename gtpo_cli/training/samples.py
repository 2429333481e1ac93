"""Sample completions of a step with GTPO's values: samples/step-000050.jsonl, one completion a line, and a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from gtpo_cli.errors import CheckpointError
from gtpo_cli.runs.files import write_aside, writing_run
from gtpo_cli.training.step import StepRows
from gtpo_cli.types import Completion, Group, Verdict


def sample_rows(rows: StepRows) -> list[dict[str, Any]]:
    """Make one mapping for each completion.

    It has problem, text, rewards, advantage, <H>_i, delta, and for each token: id, log-probability, entropy, forward
    and backward mask (0/1), lambda, and c (times the weight of `rollout.importance_correction`, if on). The caller adds
    the tokens' texts.
    """
    made = []
    for row, (group, number, completion, verdict) in enumerate(_completions(rows)):
        length = len(completion.token_ids)

        def of_tokens(values_NT: Tensor, row: int = row, length: int = length) -> list[float]:
            return [round(value, 6) for value in values_NT[row, :length].tolist()]

        made.append(
            {
                "problem": group.problem.id,
                "question": group.problem.question,
                "gold": group.problem.gold,
                "completion": number,
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "reward": verdict.reward,
                "format": verdict.format_score,
                "accuracy": verdict.accuracy_score,
                "extracted": verdict.extracted,
                "plugins": dict(verdict.plugins),
                "advantage": float(rows.advantages_N[row]),
                "mean_entropy": float(rows.mean_entropy_N[row]),
                "kept": bool(rows.keep_N[row]),
                "token_ids": list(completion.token_ids),
                "logprobs": of_tokens(rows.logprobs_NT),
                "entropy": of_tokens(rows.entropy_NT),
                "forward": of_tokens(rows.forward_NT.int()),
                "backward": of_tokens(rows.backward_NT.int()),
                "lambda": of_tokens(rows.weights_NT),
                "coefficient": of_tokens(rows.coefficients_NT),
            }
        )
    return made


def sample_table(rows: StepRows, tokenizer: Any) -> list[dict[str, str | float | None]]:
    """Make a row for people to read for each completion of a step.

    It has the prompt as the model got it, the completion, its rewards, its advantage, and the reason why it was left
    out of training, if any.
    """
    made: list[dict[str, str | float | None]] = []
    for row, (group, _, completion, verdict) in enumerate(_completions(rows)):
        why = {
            "mean entropy over the threshold": bool(rows.filtered_N[row]),
            "truncated": not rows.included_N[row],
        }
        made.append(
            {
                "problem": group.problem.id,
                "prompt": tokenizer.decode(list(group.prompt_ids)),
                "gold": group.problem.gold,
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "answer": verdict.extracted,
                "reward": verdict.reward,
                **verdict.scores,
                "advantage": float(rows.advantages_N[row]),
                "mean_entropy": float(rows.mean_entropy_N[row]),
                "filtered": "; ".join(reason for reason, holds in why.items() if holds),
            }
        )
    return made


def _completions(rows: StepRows) -> Iterator[tuple[Group, int, Completion, Verdict]]:
    """Yield group, number within the group, completion and verdict of each row."""
    for group in rows.samples.groups:
        for number, (completion, verdict) in enumerate(zip(group.completions, group.verdicts, strict=True)):
            yield group, number, completion, verdict


def write_samples(folder: Path, step: int, rows: StepRows, tokenizer: Any) -> Path:
    """Write the step's completions, replacing a file from before an interruption.

    Raises CheckpointError if they cannot be written.
    """
    made = sample_rows(rows)
    for row in made:
        row["tokens"] = tokenizer.batch_decode([[token] for token in row["token_ids"]])
    target = folder / f"step-{step:06d}.jsonl"
    with writing_run(
        folder.parent,
        lambda why, remedy: CheckpointError(
            f"{target}: sample completions cannot be written ({why}); {remedy}, then continue with gtpo train --resume "
            f"{folder.parent}"
        ),
    ):
        folder.mkdir(exist_ok=True)
        write_aside(target, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made))
    return target
