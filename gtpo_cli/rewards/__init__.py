"""Rewards of completions. Importing this is cheap, since computer algebra runs in worker processes."""

from gtpo_cli.rewards.equality import EqualityWorkers, answers_equal, gold_is_usable
from gtpo_cli.rewards.extract import extract_answer, format_reward, is_strict_format
from gtpo_cli.rewards.score import Scorer, accuracy_reward, check_rewards, try_rewards
from gtpo_cli.types import Tags

__all__ = [
    "EqualityWorkers",
    "Scorer",
    "Tags",
    "accuracy_reward",
    "answers_equal",
    "check_rewards",
    "extract_answer",
    "format_reward",
    "gold_is_usable",
    "is_strict_format",
    "try_rewards",
]
