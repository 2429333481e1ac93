"""A command imports what it needs and no more."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment

from gtpo_cli.cli.app import COMMANDS, import_command

ONE_STEP = ["train", "--recipe", "tiny_arithmetic", "--quiet", "--set", "training.max_steps=1"]
OTHER_ROOMS = {"tools", "pages"}
NOT_ASKED_FOR = {  # by the recipe tiny_arithmetic
    "data.benchmarks", "data.local", "data.reading", "evaluation.measure", "evaluation.store", "recipe.synonyms",
    "rewards.user_reward", "rewards.worker", "tracking.wandb", "training.held_out", "training.sft",
}  # fmt: skip


def imported(code: str, folder: Path) -> set[str]:
    """The modules that a program has imported when it ends."""
    code = f"import sys\n{code}\nprint('imported:', *sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("imported: ")[2].split())


def imported_by(arguments: list[str], folder: Path) -> set[str]:
    """The same of a command."""
    code = (
        f"sys.argv = ['gtpo', *{arguments!r}]\n"
        "from gtpo_cli.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code"
    )
    return imported(code, folder)


def rooms(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("gtpo_cli.")}


def test_help_imports_no_command_and_no_recipe(tmp_path: Path) -> None:
    modules = imported_by(["--help"], tmp_path)
    assert not {"pydantic", "yaml", "torch", "numpy"} & modules
    assert rooms(modules) == {"cli", "errors", "terminal", "text"}
    commands = {f"gtpo_cli.cli.{module}" for module, _ in COMMANDS.values()}
    assert not commands & modules
    (last,) = commands & imported_by(["train", "--help"], tmp_path)
    assert last == "gtpo_cli.cli.train"


def test_training_imports_neither_other_rooms_nor_what_its_recipe_does_not_ask_for(tmp_path: Path) -> None:
    modules = imported_by(ONE_STEP, tmp_path)
    assert "gtpo_cli.tasks.arithmetic" in modules
    assert not OTHER_ROOMS & rooms(modules)
    assert not {f"gtpo_cli.{name}" for name in NOT_ASKED_FOR} & modules
    assert not {"matplotlib", "datasets", "wandb", "math_verify"} & modules


def test_a_grading_worker_starts_without_pydantic(tmp_path: Path) -> None:
    assert not {"pydantic", "yaml", "torch", "sympy"} & imported("import gtpo_cli.rewards.worker", tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_paragraph_of_a_command_s_help(name: str) -> None:
    command = import_command(name)
    assert command.name == name
    assert " ".join(inspect.cleandoc(command.help).split("\n\n")[0].split()) == COMMANDS[name][1]


def test_a_plan_says_what_it_reads_before_it_imports_torch(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['gtpo', 'plan']\n"
    code += "from gtpo_cli.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "torch" in done.stderr
    assert done.stdout == (
        "planning tiny_arithmetic: reading the configuration and tokenizer of builtin:tiny, and the data\n"
    )
