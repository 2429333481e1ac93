"""Problems and prompts: benchmarks from the hub or from files, the built-in arithmetic task, the prompt's tokens."""

from gtpo_cli.data.arithmetic import arithmetic_problems, demonstration, imperfect_demonstrations
from gtpo_cli.data.benchmarks import LoadedProblems, gold_check, load_problems
from gtpo_cli.data.gold import last_boxed
from gtpo_cli.data.local import DroppedRow, summarise_dropped
from gtpo_cli.data.prompts import PromptEncoder, encode_prompts, said_count, token_ids, wrap_solution

__all__ = [
    "DroppedRow",
    "LoadedProblems",
    "PromptEncoder",
    "arithmetic_problems",
    "demonstration",
    "encode_prompts",
    "gold_check",
    "imperfect_demonstrations",
    "last_boxed",
    "load_problems",
    "said_count",
    "summarise_dropped",
    "token_ids",
    "wrap_solution",
]
