"""The commands: where each one lives, and its line in `gtpo --help`.

A command's module is imported when the command is called, so a command loads no other command's libraries. A line is
the first paragraph of the command's own help (tests/unit/cli/test_imports.py compares them).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

COMMANDS = {  # name: (the module in cli/, which has a function or group of the same name; the line)
    "init": (
        "init",
        "Write a recipe for your model, data and GPU: the paper's setting, made smaller until it fits by gtpo plan.",
    ),
    "train": ("train", "Train a model as a recipe says; without one, the built-in model on arithmetic."),
    "eval": (
        "evaluate",
        "Measure a trained model on problems it has not seen: accuracy, pass@k, maj@k, format, entropy, length.",
    ),
    "compare": (
        "compare",
        "Is B better than A, and by how much? Evaluated runs side by side on the problems they share.",
    ),
    "report": (
        "report",
        "One HTML file about one or more runs: curves, benchmark table, recipes, samples. It needs no network.",
    ),
    "inspect": (
        "inspect",
        "A training step as GTPO saw it: each completion's tokens coloured by their weight lambda, and why.",
    ),
    "generate": (
        "generate",
        "Ask a model and watch it answer: streamed text, the answer as the rewards read it, and with --gold what it "
        "earns.",
    ),
    "export": (
        "export",
        "Write a trained model for others to load: as an adapter, merged into its base, or as GGUF.",
    ),
    "try-reward": (
        "try_reward",
        "Is the reward alive? A few completions of the untrained model, what each earns, and the spread in each group.",
    ),
    "probe-entropy": (
        "probe_entropy",
        "Measure the initial entropy <H>_ini of the untrained model, which decides about the entropy filter.",
    ),
    "sweep": (
        "sweep",
        "Named variants of a recipe times seeds, and what their differences are worth: every figure of the paper.",
    ),
    "plan": ("plan", "Steps, tokens, GPU memory by part, what fits, and an estimate of the hours. Loads no weights."),
    "doctor": (
        "doctor",
        "Can training start on this machine? Software, GPU, engines, hub, wandb, disk; each finding with its remedy.",
    ),
    "recipes": ("recipes", "List, show, copy and check recipes."),
}


def import_command(name: str) -> Any:
    """The command with its options, from its module."""
    module, _ = COMMANDS[name]
    found = getattr(import_module(f"gtpo_cli.cli.{module}"), module)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        found = alone
    return typer.main.get_command(found)
