"""Print the command that starts verl with a recipe: `python scripts/verl_command.py RECIPE [--set ...] [--gpus N]`.

Writes what verl's processes read into `<output_dir>/<run_name>` (or --out): the problems as Parquet, and the resolved
recipe. On several machines that folder must be the same on all. Needs no verl; docs/verl.md has the mapping.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gtpo_cli.errors import DataError, GtpoError
from gtpo_cli.integrations import verl_config
from gtpo_cli.integrations.verl_data import write_dataset
from gtpo_cli.integrations.verl_rules import Plan
from gtpo_cli.models import load_tokenizer
from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.recipe import dump_recipe, load_recipe


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="a recipe file, or the name of a shipped one")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the recipe")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of the machine (trainer.n_gpus_per_node)")
    parser.add_argument("--out", type=Path, help="folder for what verl reads and writes")
    chosen = parser.parse_args(arguments)
    try:
        print(prepare(chosen.recipe, chosen.set, gpus=chosen.gpus, out=chosen.out))
    except GtpoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(name: str, overrides: list[str], *, gpus: int, out: Path | None) -> str:
    """Write the folder; the command. Raises GtpoError."""
    recipe = load_recipe(name, overrides)
    tokenizer, context = load_tokenizer(recipe)
    folder = out or Path(recipe.output_dir) / (recipe.run_name or f"{Path(name).stem}-verl")
    model_path = resolve_name(recipe.model.name)
    if Path(model_path).exists():  # else a hub id
        model_path = str(Path(model_path).resolve())
    plan = Plan(recipe, model_path, folder.resolve(), context, gpus)
    verl_config.check(plan)
    count = write_dataset(recipe, tokenizer, plan.data_file, max_prompt_tokens=plan.max_prompt_tokens, say=_note)
    if count < recipe.rollout.prompts_per_step:
        raise DataError(
            f"rollout.prompts_per_step: {recipe.rollout.prompts_per_step}, but there are {count} problems, and verl "
            "makes no smaller step; lower it"
        )
    plan.recipe_file.write_text(dump_recipe(recipe), encoding="utf-8")
    _note(f"{count} problems: {plan.data_file}")
    return verl_config.command(plan)


def _note(line: str) -> None:
    print(f"# {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
