"""gtpo try-reward"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from gtpo_cli.cli.options import JsonOption, RecipeOption, SetOption, TrustOption, TrustRunOption, as_typed
from gtpo_cli.cli.printing import print_answer, print_json, print_line, print_verdict, suggest
from gtpo_cli.cli.probe_entropy import choose_recipe, probe, unnamed
from gtpo_cli.recipe import Recipe, overridden_keys
from gtpo_cli.runs.folder import Trust
from gtpo_cli.text import counted
from gtpo_cli.types import Completion, Group

_NO_SPREAD = "no spread: nothing to learn from"


def try_reward(
    recipe: RecipeOption = None,
    n: Annotated[
        int | None, typer.Option("--n", min=2, help="Completions of each prompt; default: rollout.group_size.")
    ] = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, metavar="N", help="The first N prompts of the data.")] = 2,
    set_: SetOption = None,
    as_json: JsonOption = False,
    trust_remote_code: TrustOption = False,
    trust_run_code: TrustRunOption = False,
) -> None:
    """Test the reward on a few completions of the untrained model: what each earns, and the spread in each group.

    Training learns only from reward differences between completions of one prompt. Your own rewards are included.
    Without --recipe, it uses the latest run's recipe, or else the built-in one.
    """
    from gtpo_cli.rewards import Scorer

    chosen, name = choose_recipe(recipe, set_ or [], trust=Trust(trust_remote_code, trust_run_code))
    completions = n or max(2, chosen.rollout.group_size)
    loaded = chosen.with_values({"objective.probe.num_prompts": prompts})
    policy, measured = probe(loaded, n=completions, keep=overridden_keys(set_ or []), what="completions")
    with Scorer(loaded.rewards, longest=loaded.rollout.max_completion_tokens) as scorer:
        groups = scorer.score_groups(measured.groups)
    texts = [policy.tokenizer.decode(group.prompt_ids) for group in groups]
    if as_json:
        print_json(_document(name, loaded, groups, texts))
        return
    print(
        f"recipe {name}, model {loaded.model.before_training}; temperature {loaded.rollout.temperature:g}, "
        f"{completions} completions of each of {counted(len(groups), 'prompt')}"
    )
    for number, (group, text) in enumerate(zip(groups, texts, strict=True), start=1):
        print(f"\n== prompt {number} of {len(groups)}: {group.problem.id}\n{text}")
        _print_group(group, loaded, context=policy.max_seq_length)
    same, times = ["--recipe", name, *as_typed(set_)], [] if n is None else ["--n", str(n)]
    alive = sum(len({v.reward for v in group.verdicts}) > 1 for group in groups)
    print(f"\ngroups with a spread: {alive} of {len(groups)}")
    if alive:
        suggest("train", *same, *as_typed(unnamed(loaded)))
        return
    from gtpo_cli.training.guard import remedies

    right = fmean(verdict.correct for group in groups for verdict in group.verdicts)
    print(remedies(right, measured.truncated_share))
    suggest("try-reward", *same, *times, "--prompts", str(10 * prompts))


def _print_group(group: Group, recipe: Recipe, *, context: int) -> None:
    size = len(group.completions)
    for number, (completion, verdict) in enumerate(zip(group.completions, group.verdicts, strict=True), start=1):
        print(f"-- completion {number} of {size}\n{completion.text}")
        print_answer(
            completion, recipe, opened=group.problem.opened, most=recipe.rollout.max_completion_tokens,
            limit="rollout.max_completion_tokens", context=context,
        )  # fmt: skip
        print_verdict(group.problem, verdict, recipe.rewards)
    mean, std = spread(group)
    alike = len({completion.text for completion in group.completions}) == 1
    words = f"{_NO_SPREAD}{' (all texts are the same)' if alike else ''}" if std == 0 else f"std {std:.3g}"
    print_line("spread", f"of the {size} rewards: mean {mean:.3g}, {words}")


def spread(group: Group) -> tuple[float, float]:
    """Return the mean and the standard deviation (divisor n - 1, as in advantages) of a group's rewards."""
    rewards = [verdict.reward for verdict in group.verdicts]
    return fmean(rewards), 0.0 if len(set(rewards)) == 1 else stdev(rewards)


def _document(name: str, recipe: Recipe, groups: Sequence[Group], texts: Sequence[str]) -> dict[str, Any]:
    return {
        "recipe": name,
        "model": recipe.model.before_training,
        "groups": [
            {
                "problem": group.problem.id,
                "gold": group.problem.gold,
                "prompt": text,
                **dict(zip(("mean", "std"), spread(group), strict=True)),
                "completions": [_completion(*pair) for pair in zip(group.completions, group.verdicts, strict=True)],
            }
            for group, text in zip(groups, texts, strict=True)
        ],
    }


def _completion(completion: Completion, verdict: Any) -> dict[str, Any]:
    return {
        "text": completion.text,
        "tokens": len(completion.token_ids),
        "truncated": completion.truncated,
        "extracted": verdict.extracted,
        "correct": verdict.correct,
        "strict_format": verdict.strict_format,
        "reward": verdict.reward,
        "rewards": verdict.scores,
    }
