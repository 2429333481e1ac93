"""gtpo tasks"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gtpo_cli.cli.options import DEFAULT_RECIPE, TASKS_RECIPE, JsonOption, SetOption, as_typed
from gtpo_cli.cli.printing import print_json, print_table, suggest
from gtpo_cli.errors import RecipeError, install
from gtpo_cli.recipe import Recipe, build_recipe, dump_recipe, load_recipe, overridden_keys
from gtpo_cli.recipe.data import BUILT_IN, GYM, is_task
from gtpo_cli.text import counted, one_line

if TYPE_CHECKING:
    from gtpo_cli.recipe.data import SourceRecipe


def tasks(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A task, to see what it asks.", autocompletion=lambda: _names())
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", metavar="FILE|NAME", help="Ask its model the task's first problems, and score them."),
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, max=100, metavar="N", help="Problems that are shown.")] = 2,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks that make their problems; show one's questions, answers and configuration.

    Tasks of reasoning-gym need `pip install '.[tasks]'` in gtpo's checkout. A class of your own is FILE.py:CLASS
    (docs/tasks.md). With --recipe, the model of this recipe answers the first problems of the task: how many are right,
    and how hard the task is for it. --set data.config='{max_terms: 4}' changes the task.
    """
    if name is None:
        _list(as_json=as_json)
        return
    from gtpo_cli.data import load_problems
    from gtpo_cli.data.problems import any_gold

    loaded, asked = _with_task(recipe or DEFAULT_RECIPE, name, set_ or [])
    if not is_task(loaded.data.benchmark):
        raise RecipeError(f"{name}: is a table of problems, not a task; gtpo tasks lists the tasks")
    some = loaded.data.model_copy(update={"limit": n})
    shown = load_problems(some, seed=loaded.seed, is_usable=any_gold).problems
    facts = _facts(loaded.data)
    scores = None if recipe is None else _first_scores(loaded, overridden_keys(set_ or []))
    if as_json:
        problems = [{"question": problem.question, "answer": problem.gold or None} for problem in shown]
        print_json({"task": name, **facts, "problems": problems} | ({} if scores is None else {"first_scores": scores}))
        return
    print(f"{name}: {facts['about']}" if facts["about"] else name)
    if facts["keys"]:
        rows = [(key, str(default)) for key, default in facts["keys"].items()]
        print_table(("data.config", "value"), rows)
    for what, values in facts["levels"].items():
        print(f"levels of {what}: {', '.join(map(str, values))}")
    for problem in shown:
        print(
            f"\n== {problem.id}\n{problem.question}\n-- answer\n{problem.gold or '(none: any that its score() takes)'}"
        )
    if scores is not None:
        print(
            "\n{model} at first, {completions} of the first {problems}: {accuracy:.1%} right, score {score:.2f}, "
            "in the format {format_rate:.1%}".format(**scores)
        )
    print()
    if recipe is None:
        suggest("tasks", name, "--recipe", TASKS_RECIPE, *as_typed(set_))
    elif asked is not None:
        suggest("train", "--recipe", recipe, *as_typed(asked))


def _with_task(recipe: str, name: str, changes: list[str]) -> tuple[Recipe, list[str] | None]:
    """Return a recipe with this task as its only data, and the overrides for that; None if it is made from a recipe of
    a mixture, whose configuration of the task holds."""
    from gtpo_cli.recipe.yaml_text import parse_yaml

    whole = load_recipe(recipe)
    if not whole.data.mixture:
        asked = [f"data.benchmark={name}", *changes]
        return load_recipe(recipe, asked), asked
    part = {"benchmark": name, "mixture": {}, "config": whole.data.config.get(name, {})}
    alone = whole.model_copy(update={"data": whole.data.model_copy(update=part)})
    return build_recipe(parse_yaml(dump_recipe(alone)), changes, where=recipe), None


def _list(*, as_json: bool) -> None:
    from gtpo_cli.tasks import gym

    found = dict(BUILT_IN)
    if gym.version() is not None:
        found |= {f"{GYM}{name}": gym.about(name) for name in gym.names()}
    if as_json:
        print_json({"tasks": [{"name": name, "about": about} for name, about in found.items()]})
        return
    print_table(("task", "what it asks"), [(name, one_line(about, most=90)) for name, about in found.items()])
    if gym.version() is None:
        print(f"\nA hundred more come with reasoning-gym: {install('tasks')}")
    suggest("tasks", next(reversed(found)))


def _facts(source: SourceRecipe) -> dict[str, Any]:
    """What is known of a task without its problems: a line about it, its keys with their defaults, its levels."""
    from gtpo_cli.tasks import gym

    if not source.benchmark.startswith(GYM):
        return {"about": BUILT_IN.get(source.benchmark, ""), "keys": {}, "levels": {}}
    name = source.benchmark.removeprefix(GYM)
    return {"about": gym.about(name), "keys": gym.defaults(name) | source.config, "levels": gym.levels(name)}


def _first_scores(recipe: Recipe, keep: Sequence[str]) -> dict[str, Any]:
    from gtpo_cli.cli.probe_entropy import probe
    from gtpo_cli.rewards import Scorer

    _, measured = probe(recipe, n=recipe.rollout.group_size, keep=keep, what="completions")
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        verdicts = [verdict for group in scorer.score_groups(measured.groups) for verdict in group.verdicts]
    return {
        "model": recipe.model.before_training,
        "completions": counted(len(verdicts), "completion"),
        "problems": counted(len(measured.groups), "problem"),
        "accuracy": fmean(verdict.correct for verdict in verdicts),
        "score": fmean(verdict.correct if verdict.score is None else verdict.score for verdict in verdicts),
        "format_rate": fmean(verdict.complete_format for verdict in verdicts),
    }


def _names() -> list[str]:
    from gtpo_cli.tasks import gym

    return [*BUILT_IN, *(f"{GYM}{name}" for name in (gym.names() if gym.version() else ()))]
