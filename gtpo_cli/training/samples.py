"""Sample completions of a step with GTPO's values: samples/step-000050.jsonl, one completion a line, and a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from gtpo_cli.errors import CheckpointError
from gtpo_cli.files import write_aside, writing_run
from gtpo_cli.recipe import Recipe
from gtpo_cli.training.step import StepResult


def sample_rows(result: StepResult) -> list[dict[str, Any]]:
    """Make one mapping for each completion.

    It has problem, text, rewards, advantage, <H>_i, delta, and for each token: id, log-probability, entropy, forward
    and backward mask (0/1), lambda, and c (times the weight of `rollout.importance_correction`, if on). The caller adds
    the tokens' texts.
    """
    rows = []
    for b, group in enumerate(result.groups):
        for g, (completion, verdict) in enumerate(zip(group.completions, group.verdicts, strict=True)):
            length = int(result.batch.lengths_BG[b, g])

            def of_tokens(values_BGT: Tensor, b: int = b, g: int = g, length: int = length) -> list[float]:
                return [round(value, 6) for value in values_BGT[b, g, :length].tolist()]

            rows.append(
                {
                    "problem": group.problem.id,
                    "question": group.problem.question,
                    "gold": group.problem.gold,
                    "completion": g,
                    "text": completion.text,
                    "finish_reason": completion.finish_reason,
                    "reward": verdict.reward,
                    "format": verdict.format_score,
                    "accuracy": verdict.accuracy_score,
                    "extracted": verdict.extracted,
                    "plugins": dict(verdict.plugins),
                    "advantage": float(result.advantages_BG[b, g]),
                    "mean_entropy": float(result.mean_entropy_BG[b, g]),
                    "kept": bool(result.keep_BG[b, g]),
                    "token_ids": list(completion.token_ids),
                    "logprobs": of_tokens(result.logprobs_BGT),
                    "entropy": of_tokens(result.entropy_BGT),
                    "forward": of_tokens(result.spans.forward_BGT.int()),
                    "backward": of_tokens(result.spans.backward_BGT.int()),
                    "lambda": of_tokens(result.weights_BGT),
                    "coefficient": of_tokens(result.coefficients_BGT),
                }
            )
    return rows


def sample_table(result: StepResult, recipe: Recipe, tokenizer: Any) -> list[dict[str, str | float | None]]:
    """Make a row for people to read for each completion of a step.

    It has the prompt as the model got it, the completion, its rewards, its advantage, and the reason why it was left
    out of training, if any.
    """
    rows: list[dict[str, str | float | None]] = []
    for b, group in enumerate(result.groups):
        prompt = tokenizer.decode(list(group.prompt_ids))
        for g, (completion, verdict) in enumerate(zip(group.completions, group.verdicts, strict=True)):
            why = {
                "mean entropy over the threshold": bool(result.filtered_BG[b, g]),
                "truncated": recipe.rollout.mask_truncated and completion.truncated,
            }
            rows.append(
                {
                    "problem": group.problem.id,
                    "prompt": prompt,
                    "gold": group.problem.gold,
                    "text": completion.text,
                    "finish_reason": completion.finish_reason,
                    "answer": verdict.extracted,
                    "reward": verdict.reward,
                    **verdict.scores,
                    "advantage": float(result.advantages_BG[b, g]),
                    "mean_entropy": float(result.mean_entropy_BG[b, g]),
                    "filtered": "; ".join(reason for reason, holds in why.items() if holds),
                }
            )
    return rows


def write_samples(folder: Path, step: int, result: StepResult, tokenizer: Any) -> Path:
    """Write the step's completions, replacing a file from before an interruption.

    Raises CheckpointError if they cannot be written.
    """
    rows = sample_rows(result)
    for row in rows:
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
        write_aside(target, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return target
