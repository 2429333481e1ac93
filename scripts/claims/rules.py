"""The bench: rules for tokens and completions beside GRPO. Stopped or killed, it goes on where it was.

    python scripts/claims/rules.py           # base, screen, final, same_rate (make claims)
    python scripts/claims/rules.py screen    # every rule at every rate, two seeds
    python scripts/claims/rules.py base      # the model before training
    python scripts/claims/rules.py same_rate # GRPO at the rate of GTPO, without which rate and rule are one
    python scripts/claims/rules.py hot       # the finalists at a rate that is too high
    python scripts/claims/rules.py check     # two runs again, against the record (make claims-check)
    python scripts/claims/rules.py levels    # pilot: the model before training on problems that nothing else uses
    python scripts/claims/rules.py pilot RATE STEPS [SEED]    # GRPO with a seed of its own (901); nothing is recorded

docs/claims/rules_registration.md says in words what is here in code. A run that is done is a line of
docs/claims/rules/<study>.csv.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from claim_runs import Run, append, make_all, read, train_anew, written
from outcomes import GREEDY, Subject, accuracy, sampled_scores

from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.load import load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import Checkpoint, choose_checkpoint
from gtpo_cli.tasks.making import task_problems
from gtpo_cli.tracking import read_metrics
from gtpo_cli.types import Problem

ROOT = Path(__file__).resolve().parents[2]
BUILD, RECORDS = ROOT / "build" / "claims", ROOT / "docs" / "claims" / "rules"
RECIPE = ROOT / "recipes" / "sweeps" / "base" / "tiny_steps.yaml"

# beside the levels of training (RECIPE): harder ones, of which training has no problem
HARDER: dict[str, dict[str, Any]] = {
    "reasoning_gym/chain_sum": {"min_terms": 5, "max_terms": 6, "max_digits": 2},
    "reasoning_gym/products": {"min_terms": 3, "max_terms": 3, "max_digits": 2},
    "reasoning_gym/gcd": {"min_value": 1001, "max_value": 9999},
}
# problems of a level: for outcomes (greedily, and the first of them 64 times), to choose rates, and to choose levels
ASKED, SAMPLED, VALIDATION, PILOT = 500, 40, 300, 60

_RULE, _CONTROL, _ADVANTAGES = (
    "objective.token_weights.rule", "objective.token_weights.control", "objective.advantages.rule",
)  # fmt: skip
TOKEN_RULES = ("conflict", "top_entropy", "clip_cov", "entropy_advantage", "entropy_credit", "sequence_entropy_credit")
ARMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "gtpo": {"objective.name": "gtpo", "optimizer.betas": [0.9, 0.95]},
    **{rule: {_RULE: rule} for rule in TOKEN_RULES},
    **{rule: {_ADVANTAGES: rule} for rule in ("quantile", "maximum_likelihood")},
    "w_reinforce": {_ADVANTAGES: "reinforce"},
    "negative_only": {_ADVANTAGES: "reinforce", "objective.advantages.config": "{positive: 0}"},
}
CONTROLS = ("even", "random")
CONTROLLED = {"gtpo", *TOKEN_RULES} - {"sequence_entropy_credit"}  # its controls would equal it
RATES, STEPS = ("5e-5", "1e-4", "2e-4"), 100
SAME_RATE = "5e-5"  # GTPO's in `final`; amendment 8
HOT = "15e-4"  # GRPO loses its format there in two of four pilots; amendment 9
SCREEN_SEEDS, SEEDS = (101, 102), (1, 2, 3, 4, 5, 6, 7, 8)
FINALISTS = 4  # rules, beside GRPO and GTPO
CHECKED, TOLERANCE = ("grpo", "gtpo"), 0.03  # what `check` makes again, and by how much a share may differ


class Level(NamedTuple):
    """Problems of a task, and how the columns of their outcomes end."""

    words: str
    task: str
    config: dict[str, Any]

    def problems(self) -> tuple[list[Problem], list[Problem], list[Problem]]:
        """Those for outcomes, for validation and for pilots. They are shuffled, because a test asks no question twice
        and so begins with the short ones."""
        found = list(task_problems(self.task, self.config, "test", 0, ASKED + VALIDATION + PILOT))
        random.Random(0).shuffle(found)
        return found[:ASKED], found[ASKED:-PILOT], found[-PILOT:]


def levels() -> tuple[list[Level], list[Level]]:
    """Those of training, and the harder ones."""
    trained: dict[str, Any] = dict(load_recipe(RECIPE).data.config)
    names = {task: task.rpartition("/")[2] for task in HARDER}
    return (
        [Level(name, task, trained[task]) for task, name in names.items()],
        [Level(f"harder {name}", task, HARDER[task]) for task, name in names.items()],
    )


def settings_of(arm: str) -> dict[str, Any]:
    """A control is named by its rule: conflict_even, conflict_random."""
    rule, _, control = arm.rpartition("_")
    return ARMS[arm] if arm in ARMS else ARMS[rule] | {_CONTROL: control}


def recipe_of(run: Run) -> Recipe:
    settings = {
        "objective.name": "grpo", "output_dir": BUILD / "runs", "run_name": run.key, "seed": run.seed,
        "training.max_steps": run.steps, "training.save_every": run.steps, "training.eval_every": None,
        "training.keep_best": None, "training.guard.action": "warn", "rewards.format.weight": 0.0,
        "optimizer.learning_rate": float(run.rate), **settings_of(run.arm),
    }  # fmt: skip
    return load_recipe(RECIPE, [f"{key}={written(value)}" for key, value in settings.items()])


def make(run: Run, build: Path) -> dict[str, Any]:
    """The figures of a run: accuracy on validation problems in `screen` and `hot`, else all outcomes."""
    recipe = recipe_of(run)
    folder = train_anew(run, recipe, build)
    measure = validation if run.study in ("screen", "hot") else outcomes
    row = asdict(run) | measure(recipe, choose_checkpoint(folder, "last"))
    last = read_metrics(folder.metrics_file)[-max(1, run.steps // 10) :]
    for name in ("entropy/mean", "completions/length_mean", "train/strict_format_rate"):
        row[name] = fmean(step[name] for step in last)
    return row


def validation(recipe: Recipe, checkpoint: Checkpoint | None) -> dict[str, float]:
    """Greedy accuracy by task on problems that no outcome uses."""
    found = {}
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        subject = Subject(recipe, checkpoint, scorer)
        for level in levels()[0]:
            _, problems, _ = level.problems()
            found[f"greedy {level.words}"] = accuracy(subject.answers(problems, samples=1, temperature=GREEDY))
    return found | {"greedy": fmean(found.values())}


def outcomes(recipe: Recipe, checkpoint: Checkpoint | None) -> dict[str, float]:
    """Every registered outcome of a model."""
    found: dict[str, float] = {}
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        subject = Subject(recipe, checkpoint, scorer)
        for level in chain(*levels()):
            problems, _, _ = level.problems()
            found[f"greedy {level.words}"] = accuracy(subject.answers(problems, samples=1, temperature=GREEDY))
            sampled = subject.answers(problems[:SAMPLED], samples=64, temperature=1.0)
            found |= {f"{name} {level.words}": value for name, value in sampled_scores(sampled).items()}
            found[f"format {level.words}"] = fmean(c.strict_format for p in sampled for c in p.completions)
    return found


def print_levels() -> None:
    """The model before training, on problems that nothing else uses."""
    recipe = recipe_of(Run("base", "grpo", "1e-4", 1, STEPS))
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        subject = Subject(recipe, None, scorer)
        for level in chain(*levels()):
            _, _, problems = level.problems()
            greedy = accuracy(subject.answers(problems, samples=1, temperature=GREEDY))
            sampled = sampled_scores(subject.answers(problems, samples=64, temperature=1.0))
            tries = "  ".join(f"{name} {sampled[name]:.3f}" for name in ("pass@1", "pass@64"))
            print(f"{level.words:<17} {tries}  greedy {greedy:.3f}")


def screen() -> list[Run]:
    """Every rule at every rate, with seeds that are not used again."""
    return [Run("screen", arm, rate, seed, STEPS) for seed, rate, arm in product(SCREEN_SEEDS, RATES, ARMS)]


def chosen_rates() -> dict[str, tuple[str, float]]:
    """For each arm the rate with the best mean accuracy over tasks, the lowest of equal ones, and that mean."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read(RECORDS / "screen.csv"):
        found[row["arm"]][row["rate"]].append(float(row["greedy"]))
    means = {arm: {rate: fmean(by_rate[rate]) for rate in RATES} for arm, by_rate in found.items()}
    best = {arm: max(RATES, key=lambda rate: of_arm[rate]) for arm, of_arm in means.items()}
    return {arm: (rate, means[arm][rate]) for arm, rate in best.items()}


def finalists() -> dict[str, str]:
    """Each arm that gets all seeds, with its rate: GRPO, GTPO, the best rules, and the controls of those that weigh
    tokens, at the rate of their rule."""
    rates = chosen_rates()
    others = sorted((arm for arm in rates if arm not in ("grpo", "gtpo")), key=lambda arm: -rates[arm][1])
    arms = {arm: rates[arm][0] for arm in ("grpo", "gtpo", *others[:FINALISTS])}
    return arms | {f"{arm}_{control}": arms[arm] for arm in arms if arm in CONTROLLED for control in CONTROLS}


def final() -> list[Run]:
    """Seed by seed, so that whole seeds can be compared whenever it stops."""
    return [Run("final", arm, rate, seed, STEPS) for seed, (arm, rate) in product(SEEDS, finalists().items())]


def same_rate() -> list[Run]:
    """GRPO at a rate that is not its best, with the seeds of `final`."""
    return [Run("same_rate", "grpo", SAME_RATE, seed, STEPS) for seed in SEEDS]


def hot() -> list[Run]:
    """The finalists without their controls, at a rate that is too high."""
    return [Run("hot", arm, HOT, seed, STEPS) for seed, arm in product(SEEDS, finalists()) if arm in ARMS]


def check() -> int:
    """Make two runs of the screen again; the exit code is 1 where a share differs by more than TOLERANCE."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "screen.csv"
        make_all([Run("screen", arm, "1e-4", SCREEN_SEEDS[0], STEPS) for arm in CHECKED], BUILD, record, make)
        again = read(record)
    recorded = {(row["arm"], row["rate"], row["seed"]): row for row in read(RECORDS / "screen.csv")}
    worst = 0.0
    for row in again:
        before = recorded[row["arm"], row["rate"], row["seed"]]
        for name in (name for name in row if name.startswith("greedy") or name.endswith("_rate")):
            worst = max(worst, abs(float(before[name]) - float(row[name])))
            print(f"{row['arm']:<6} {name:<26} recorded {before[name]:<8} now {row[name]}")
    print(f"largest difference of a share: {worst:.4f} (at most {TOLERANCE})")
    return 0 if worst <= TOLERANCE else 1


STUDIES = {"screen": screen, "final": final, "same_rate": same_rate, "hot": hot}


def main() -> int:
    RECORDS.mkdir(exist_ok=True)
    asked = sys.argv[1:] or ["base", "screen", "final", "same_rate"]
    if asked == ["check"]:
        return check()
    if asked == ["levels"]:
        print_levels()
        return 0
    if asked[0] == "pilot":
        rate, steps, seed = (*asked[1:], "901")[:3]
        row = make(Run("pilot", "grpo", rate, int(seed), int(steps)), BUILD)
        print("\n".join(f"{name:<24} {value}" for name, value in row.items()))
        return 0
    for study in asked:
        if study == "base":
            if not (RECORDS / "base.csv").exists():
                append(RECORDS / "base.csv", outcomes(recipe_of(Run("base", "grpo", "1e-4", 1, STEPS)), None))
            continue
        make_all(STUDIES[study](), BUILD, RECORDS / f"{study}.csv", make)
    return 0


if __name__ == "__main__":
    sys.exit(main())
