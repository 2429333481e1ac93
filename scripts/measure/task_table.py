"""Write docs/task_table.md: what every task of reasoning-gym asks of a run, by default configuration (ten minutes).

    python scripts/measure/task_table.py             # all tasks
    python scripts/measure/task_table.py gcd lcm     # print the rows of these alone

It makes 100 problems of each task, or as many as a minute of processor time allows, and asks the verifier about its own
answers, an empty one and "zzz" for the first eight, as a run does at its start.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from gtpo_cli.errors import GtpoError
from gtpo_cli.recipe.data import GYM
from gtpo_cli.recipe.rewards import AccuracyRewardRecipe
from gtpo_cli.rewards import EqualityWorkers
from gtpo_cli.rewards.score import NONSENSE, TRIED, check_verifier
from gtpo_cli.tasks import gym
from gtpo_cli.tasks.making import task_problems
from gtpo_cli.types import STEADY, Problem

PAGE = Path(__file__).resolve().parents[2] / "docs/task_table.md"
MADE, MOST_SECONDS = 100, 60.0
HEAD = (
    "task", "levels", "CPU seconds for 100", "question, characters", "own answer", "empty answer", '"zzz"',
    "most frequent answer",
)  # fmt: skip
INTRODUCTION = """\
# Which tasks of reasoning-gym are there, and what are they like?

Written by `scripts/measure/task_table.py` with reasoning-gym {version}, for each task's default configuration.

- Levels: of the library's curriculum, for `data.curriculum`.
- CPU seconds: for 100 problems on one core of {processor}. Where a minute did not suffice, the time is estimated from
  the problems that were made.
- Question: the median length in characters.
- Own answer, empty answer, "zzz": the verifier's mean score for each, over the first eight problems. A verifier that
  raises an exception gives 0.
- Most frequent answer: the share of the 100 problems whose answer it is. Whoever always gives it has that accuracy, so
  compare a model's accuracy with it. Tasks with several right answers can be easier to guess than it says.

"""


def row(name: str, workers: EqualityWorkers) -> tuple[list[str], str | None]:
    """The cells of a task, and why a run does not take it, if so."""
    try:
        levels = max(map(len, gym.levels(name).values()), default=0)
        seconds, answers, lengths = measured(name)
        problems = task_problems(f"{GYM}{name}", {}, "train", 1, TRIED)
    except GtpoError:  # it has no default configuration
        return [name, *[""] * (len(HEAD) - 1)], "needs `data.config`"
    golds = [problem.gold for problem in problems]
    own = score(problems, golds, workers) if all(golds) else None
    nonsense = [score(problems, [text] * TRIED, workers) for text in NONSENSE]
    refused = None
    try:
        check_verifier(f"{GYM}{name}", problems, AccuracyRewardRecipe(), workers)
    except GtpoError as error:
        refused = "pays for nonsense" if "nonsense" in str(error) else "does not take its own answer"
    most = max(Counter(answers).values()) / len(answers)
    return [
        name, str(levels or ""), f"{seconds:.2g}", f"{statistics.median(lengths):.0f}",
        "none" if own is None else f"{own:.2f}", *(f"{paid:.2f}" for paid in nonsense),
        "" if own is None else f"{most:.0%}",
    ], refused  # fmt: skip


def measured(name: str) -> tuple[float, list[str], list[int]]:
    """CPU seconds for 100 problems, and the answers and lengths of the questions that were made."""
    task = gym.GymTask(name, {})
    started, answers, lengths = time.process_time(), list[str](), list[int]()
    for problem in islice(task.problems("train", 1), MADE):
        answers.append(str(problem["answer"]))
        lengths.append(len(problem["question"]))
        if time.process_time() - started > MOST_SECONDS:
            break
    return (time.process_time() - started) * MADE / len(answers), answers, lengths


def score(problems: Sequence[Problem], answers: Sequence[str], workers: EqualityWorkers) -> float:
    pairs = [("", answer, None, problem.entry) for problem, answer in zip(problems, answers, strict=True)]
    return statistics.fmean(grade.score for grade in workers.equal_many(pairs))


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))


def main() -> None:
    names = sys.argv[1:] or gym.names()
    rows, exceptions = [], []
    with EqualityWorkers(1) as workers:
        for name in names:
            cells, why = row(name, workers)
            rows.append(cells)
            exceptions += [f"`{name}` ({why})"] if why else []
            print(" | ".join(cells), why or "", flush=True)
    if sys.argv[1:]:
        return
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows))
    said = INTRODUCTION.format(version=version("reasoning-gym"), processor=processor())
    taken = f"A run takes {len(rows) - len(exceptions)} of the {len(rows)} tasks as they are. It does not take"
    PAGE.write_text(f"{said}{taken}\n{' and '.join(exceptions)}: see `docs/tasks.md`.\n\n{table}\n", encoding="utf-8")


if __name__ == "__main__":
    if os.environ.items() >= STEADY.items():
        main()
    else:  # some tasks draw from sets of texts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | STEADY)
