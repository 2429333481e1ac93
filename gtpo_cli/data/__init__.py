"""Problems and prompts: benchmarks from the hub or from files, the built-in arithmetic task, the prompt's tokens."""

from gtpo_cli.data.arithmetic import arithmetic_problems
from gtpo_cli.data.benchmarks import gold_check, load_problems
from gtpo_cli.data.gold import last_boxed
from gtpo_cli.data.local import DroppedRow, summarise_dropped
from gtpo_cli.data.preparation import Prepared, PromptOrder, prepare, training_prompts, usable_prompts
from gtpo_cli.data.prompts import (
    Prompt,
    PromptEncoder,
    completion_of,
    encode_prompts,
    reference_completion,
    wrap_solution,
)
from gtpo_cli.data.reading import LoadedProblems

__all__ = [
    "DroppedRow",
    "LoadedProblems",
    "Prepared",
    "Prompt",
    "PromptEncoder",
    "PromptOrder",
    "arithmetic_problems",
    "completion_of",
    "encode_prompts",
    "gold_check",
    "last_boxed",
    "load_problems",
    "prepare",
    "reference_completion",
    "summarise_dropped",
    "training_prompts",
    "usable_prompts",
    "wrap_solution",
]
