"""Problems and prompts: benchmarks from the hub or files, the built-in tasks, the tokens of prompts."""

from gtpo_cli.data.order import PromptOrder
from gtpo_cli.data.preparation import Prepared, prepare, usable_prompts
from gtpo_cli.data.problems import DroppedRow, LoadedProblems, gold_check, load_problems, summarise_dropped
from gtpo_cli.data.prompts import Prompt, PromptEncoder, completion_of, completion_text, encode_prompts, wrap_solution

__all__ = [
    "DroppedRow",
    "LoadedProblems",
    "Prepared",
    "Prompt",
    "PromptEncoder",
    "PromptOrder",
    "completion_of",
    "completion_text",
    "encode_prompts",
    "gold_check",
    "load_problems",
    "prepare",
    "summarise_dropped",
    "usable_prompts",
    "wrap_solution",
]
