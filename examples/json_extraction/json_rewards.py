"""The reward of this task: how much of the JSON is right. A reward is a function; the recipe names it."""

import json

from gtpo_cli.rewards import Tags, extract_answer
from gtpo_cli.types import Completion, Problem

TAGS = Tags(reasoning=None, answer="json")


def fields(problem: Problem, completion: Completion) -> float:
    """0 where the answer is no JSON object; else 1, and 3 for each of the three fields that is right."""
    answer = extract_answer(completion.text, tags=TAGS)
    try:
        given = json.loads(answer or "")
    except (ValueError, RecursionError):  # no JSON; brackets nested thousands deep
        return 0.0
    if not isinstance(given, dict):
        return 0.0
    gold = json.loads(problem.gold)
    right = sum(1 for key, value in gold.items() if given.get(key) == value)
    return 1.0 + 3.0 * right
