"""Print the lines below a completion: the extracted answer, its length, its verdict and reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtpo_cli.recipe import Recipe
from gtpo_cli.text import counted
from gtpo_cli.types import Completion, Problem, Verdict

if TYPE_CHECKING:
    from gtpo_cli.recipe.rewards import RewardsRecipe


def print_answer(completion: Completion, recipe: Recipe, *, most: int, limit: str, context: int) -> None:
    """Print the extracted answer and the length. `most` is the limit on its tokens, set by the option or key `limit`;
    `context` is the limit on prompt and answer together."""
    from gtpo_cli.rewards import extract_answer
    from gtpo_cli.rewards.extract import NO_ANSWER, tag_texts

    form = recipe.rewards.format
    answer = extract_answer(completion.text, mode=form.mode, tags=form.tags)
    if answer is None:
        count = {4: "four", 2: "two"}[len(tag_texts(form.tags))]
        missing = f"none: the {count} tags do not appear exactly once each and in order"
        answer = missing if form.mode == "strict" else NO_ANSWER
    print_line("answer", answer)
    if not completion.truncated:
        end = "ended by itself"
    elif len(completion.token_ids) == most:
        end = f"truncated: it reached {limit}"
    else:
        end = f"truncated: prompt and answer fill the context of {context} tokens"
    print_line("length", f"{counted(len(completion.token_ids), 'token')}, {end}")


def print_verdict(problem: Problem, verdict: Verdict, rewards: RewardsRecipe) -> None:
    """Print whether it is right, and the reward with its terms."""
    from gtpo_cli.tracking import reward_words

    late = " (the comparison ran out of time or memory)" if verdict.timed_out else ""
    word = "correct" if verdict.accuracy_score else "wrong"
    print_line("verdict", f"{word}, the gold answer is {problem.gold}{late}")
    terms = (
        f"{reward_words(name)} {verdict.scores[name]:g}" + ("" if weight == 1.0 else f" x {weight:g}")
        for name, weight in rewards.weights.items()
    )
    print_line("reward", f"{verdict.reward:g} = {' + '.join(terms)}")


def print_line(word: str, text: str) -> None:
    """Print a line below a completion."""
    print(f"  {word:<8} {text}")
