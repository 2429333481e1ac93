"""gtpo probe-entropy"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from gtpo_cli.cli.options import (
    DEFAULT_RECIPE,
    JsonOption,
    RecipeOption,
    SetOption,
    TrustOption,
    TrustRunOption,
    as_typed,
)
from gtpo_cli.cli.printing import count_progress, print_json, say, suggest
from gtpo_cli.errors import ended_with
from gtpo_cli.recipe import Recipe, load_recipe, overridden_keys
from gtpo_cli.runs.folder import RUNS, RunFolder, Trust, latest_run
from gtpo_cli.text import counted

if TYPE_CHECKING:
    from gtpo_cli.evaluation.probe import EntropyProbe
    from gtpo_cli.policy import Policy
    from gtpo_cli.types import Verdict

_BARS = 12
_BAR_WIDTH = 40
_RARELY_RIGHT = 0.1  # docs/claims/earlier_rounds.md has settings at 1 to 7 % and from 12 % on
_MUCH_LEFT_OUT = 0.2  # docs/claims/earlier_rounds.md has no milder filter to compare


def probe_entropy(
    recipe: RecipeOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
    trust_remote_code: TrustOption = False,
    trust_run_code: TrustRunOption = False,
) -> None:
    """Measure the initial entropy <H>_ini of the untrained model, which decides about the entropy filter.

    And how often it is right at first: training learns from completions of which some are right.

    Without --recipe: the latest run's recipe, else the built-in one.
    """
    from gtpo_cli.evaluation.probe import right_at_first

    loaded, name = choose_recipe(recipe, set_ or [], trust=Trust(trust_remote_code, trust_run_code))
    _, measured = probe(loaded, keep=overridden_keys(set_ or []))
    verdicts, words = right_at_first(loaded.rewards, measured)
    if as_json:
        print_json(_document(name, loaded, measured, verdicts))
        return
    _print(name, loaded, measured, verdicts, words)
    found = f"objective.initial_entropy={measured.initial_entropy:.6f}"
    suggest("train", "--recipe", name, *as_typed([*(set_ or []), *unnamed(loaded), found]))


def probe(
    recipe: Recipe, *, n: int = 1, keep: Collection[str] = (), what: str = "<H>_ini"
) -> tuple[Policy, EntropyProbe]:
    """The untrained policy, and n completions of each prompt of `objective.probe` sampled from it; `keep`: as in
    `for_measuring`; `what` stands at the progress."""
    from gtpo_cli.evaluation.probe import probe_entropy as measure
    from gtpo_cli.machine.ready import resolve
    from gtpo_cli.policy.sampler import load_sampler
    from gtpo_cli.training.setup import set_up
    from gtpo_cli.training.start import weights_for

    job = resolve(recipe, measures=keep)
    policy = set_up(job, say=say, trains=False, start=weights_for(recipe.model)).policy
    sampler, prompts = load_sampler(policy, job), job.data.prompts[: recipe.objective.probe.num_prompts]
    with ended_with(lambda: " during the measurement: nothing of it is kept"), count_progress(what) as progress:
        return policy, measure(policy, sampler, prompts, job.recipe.rollout, recipe.seed, n=n, progress=progress)


def unnamed(recipe: Recipe) -> list[str]:
    """What a new run by this recipe needs where it names a run that is there already."""
    is_run = RunFolder(Path(recipe.output_dir) / (recipe.run_name or "")).recipe_file.is_file()
    return ["run_name=null"] if is_run else []


def choose_recipe(recipe: str | None, overrides: list[str], *, trust: Trust) -> tuple[Recipe, str]:
    """The recipe named, else the latest run's, else the built-in one; and what it is called."""
    if recipe is None and (latest := latest_run(RUNS)) is not None:
        return latest.recipe_to_run(overrides, trust=trust), str(latest.recipe_file)
    recipe = recipe or DEFAULT_RECIPE
    return load_recipe(recipe, overrides), recipe


def _document(name: str, recipe: Recipe, measured: EntropyProbe, verdicts: list[Verdict]) -> dict[str, object]:
    from gtpo_cli.objective import LN_2, filter_is_on

    return {
        "recipe": name,
        "model": recipe.model.before_training,
        "initial_entropy": measured.initial_entropy,
        "interval_95": [measured.interval.low, measured.interval.high],
        "ln_2": LN_2,
        "filter": recipe.objective.filter.enabled,
        "filter_on": filter_is_on(measured.initial_entropy, recipe.objective.filter.enabled),
        "prompts": len(measured.by_prompt),
        "mean_tokens": measured.mean_tokens,
        "accuracy": fmean(verdict.correct for verdict in verdicts),
        "strict_format": fmean(verdict.strict_format for verdict in verdicts),
        "truncated_share": measured.truncated_share,
        "above_threshold_share": _left_out(recipe, measured),
        "entropies": measured.by_prompt,
    }


def _print(name: str, recipe: Recipe, measured: EntropyProbe, verdicts: list[Verdict], words: str) -> None:
    from gtpo_cli.evaluation.probe import undecided
    from gtpo_cli.objective import LN_2, filter_is_on

    print(f"recipe {name}, model {recipe.model.before_training}")
    print(
        f"<H>_ini = {measured.initial_entropy:.4f} nats   {measured.interval_words}   "
        f"({counted(len(measured.by_prompt), 'prompt')}, {measured.mean_tokens:.0f} tokens a completion)"
    )
    for line in _histogram([value for values in measured.by_prompt for value in values]):
        print(line)
    print(words)
    if recipe.rewards.accuracy.weight > 0 and not recipe.rewards.plugins:
        print(_of_the_right(fmean(verdict.correct for verdict in verdicts)))
    mode = recipe.objective.filter.enabled
    is_on = filter_is_on(measured.initial_entropy, mode)
    why = "by the paper's rule" if mode == "auto" else f"because objective.filter.enabled is {mode}"
    print(f"ln 2 = {LN_2:.4f}: the entropy filter will be {'on' if is_on else 'off'} {why}")
    left_out = _left_out(recipe, measured)
    if is_on and left_out >= _MUCH_LEFT_OUT:
        print(
            f"it would leave out {100 * left_out:.0f} % of these completions. A filter that left out a quarter to a "
            "third at first neither helped nor harmed reliably. One that left out three quarters or more ended lower "
            "than none in 11 of 12 runs (docs/claims/earlier_rounds.md). objective.filter.enabled=never switches it off"
        )
    if doubt := undecided(measured, mode):
        print(doubt)
    print("to skip the probe, put this into the recipe:")
    print(f"  objective: {{initial_entropy: {measured.initial_entropy:.6f}}}")


def _of_the_right(share: float) -> str:
    if share == 0.0:
        return "where no completion is ever right there is nothing to learn from: easier problems, or SFT first"
    if share < _RARELY_RIGHT:
        return (
            "where 1 to 7 % were right at first, the seed mattered more than the method: run several seeds "
            "(docs/claims/earlier_rounds.md)"
        )
    return (
        "where 12 to 49 % were right at first, GTPO taught nothing that GRPO did not, and the learning rate mattered "
        "more (docs/claims.md)"
    )


def _left_out(recipe: Recipe, measured: EntropyProbe) -> float:
    """The share of completions above the filter's threshold."""
    threshold = recipe.objective.filter.threshold
    return fmean(entropy > threshold for values in measured.by_prompt for entropy in values)


def _histogram(values: list[float]) -> list[str]:
    """Lines of a text histogram of <H>_i, from 0 to the largest value; the bin that holds ln 2 is marked."""
    top = max(max(values), 1e-9)
    width = top / _BARS
    counts = [0] * _BARS
    for value in values:
        counts[min(int(value / width), _BARS - 1)] += 1
    most = max(counts)
    lines = []
    for index, count in enumerate(counts):
        bar = "#" * math.ceil(count / most * _BAR_WIDTH)
        mark = "  <- ln 2" if index * width <= math.log(2) < (index + 1) * width else ""
        lines.append(f"  {index * width:6.3f} to {(index + 1) * width:6.3f}  {count:4d}  {bar}{mark}")
    return lines
