"""gtpo probe-entropy"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from gtpo_cli.cli.options import (
    DEFAULT_RECIPE,
    RUNS,
    JsonOption,
    RecipeOption,
    SetOption,
    TrustOption,
    TrustRunOption,
    as_typed,
)
from gtpo_cli.cli.printing import print_json, say, suggest
from gtpo_cli.cli.progress import count_progress
from gtpo_cli.errors import ended_with
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.run_folder import RunFolder, Trust, latest_run

if TYPE_CHECKING:
    from gtpo_cli.evaluation.probe import EntropyProbe
    from gtpo_cli.types import Verdict

_BARS = 12
_BAR_WIDTH = 40
# Right at first in docs/claims.md: 1 to 7 % below the first bound, 12 to 17 % between, 22 to 49 % above.
_RARELY_RIGHT = 0.1
_SELDOM_RIGHT = 0.2
_MUCH_LEFT_OUT = 0.2  # below it nothing was compared with no filter


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
    from gtpo_cli.evaluation.probe import probe_entropy as probe
    from gtpo_cli.generation import load_sampler
    from gtpo_cli.planning.readiness import check_ready
    from gtpo_cli.training.setup import set_up
    from gtpo_cli.training.start import weights_for

    loaded, name = _choose_recipe(recipe, set_ or [], trust=Trust(trust_remote_code, trust_run_code))
    check_ready(loaded)
    setup = set_up(loaded, say=say, start=weights_for(loaded.model))
    sampler = load_sampler(setup.policy, loaded)
    with ended_with(lambda: " during the measurement: nothing of it is kept"), count_progress("<H>_ini") as progress:
        measured = probe(setup.policy, sampler, setup.data.prompts, loaded, progress=progress)
    verdicts = _score(loaded, measured)
    if as_json:
        print_json(_document(name, loaded, measured, verdicts))
        return
    _print(name, loaded, measured, verdicts)
    found = f"objective.initial_entropy={measured.initial_entropy:.6f}"
    is_run = RunFolder(Path(loaded.output_dir) / (loaded.run_name or "")).recipe_file.is_file()
    unnamed = ["run_name=null"] if is_run else []
    suggest("train", "--recipe", name, *as_typed([*(set_ or []), *unnamed, found]))


def _choose_recipe(recipe: str | None, overrides: list[str], *, trust: Trust) -> tuple[Recipe, str]:
    if recipe is None and (latest := latest_run(RUNS)) is not None:
        return latest.recipe_to_run(overrides, trust=trust), str(latest.recipe_file)
    recipe = recipe or DEFAULT_RECIPE
    return load_recipe(recipe, overrides), recipe


def _score(recipe: Recipe, measured: EntropyProbe) -> list[Verdict]:
    """Of format and accuracy alone: rewards of the user's own may cost money."""
    from gtpo_cli.rewards import Scorer

    with Scorer(recipe.rewards.model_copy(update={"plugins": ()})) as scorer:
        return [verdict for group in scorer.score_groups(measured.groups) for verdict in group.verdicts]


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
        "completions_per_prompt": recipe.objective.probe.completions_per_prompt,
        "mean_tokens": measured.mean_tokens,
        "accuracy": fmean(verdict.correct for verdict in verdicts),
        "strict_format": fmean(verdict.strict_format for verdict in verdicts),
        "truncated_share": measured.truncated_share,
        "above_threshold_share": _left_out(recipe, measured),
        "entropies": [list(values) for values in measured.by_prompt],
    }


def _print(name: str, recipe: Recipe, measured: EntropyProbe, verdicts: list[Verdict]) -> None:
    from gtpo_cli.objective import LN_2, filter_is_on

    low, high = measured.interval.low, measured.interval.high
    print(f"recipe {name}, model {recipe.model.before_training}")
    print(
        f"<H>_ini = {measured.initial_entropy:.4f} nats   95 % interval {low:.4f} to {high:.4f}   "
        f"({len(measured.by_prompt)} prompts, {measured.mean_tokens:.0f} tokens a completion)"
    )
    for line in _histogram([value for values in measured.by_prompt for value in values]):
        print(line)
    right, formed = sum(v.correct for v in verdicts), sum(v.strict_format for v in verdicts)
    print(f"right at first: {right} of {len(verdicts)} completions; in strict format: {formed}")
    if recipe.rewards.accuracy.weight > 0 and not recipe.rewards.plugins:
        print(_of_the_right(right / len(verdicts)))
    mode = recipe.objective.filter.enabled
    is_on = filter_is_on(measured.initial_entropy, mode)
    why = "by the paper's rule" if mode == "auto" else f"because objective.filter.enabled is {mode}"
    print(f"ln 2 = {LN_2:.4f}: the entropy filter will be {'on' if is_on else 'off'} {why}")
    left_out = _left_out(recipe, measured)
    if is_on and left_out >= _MUCH_LEFT_OUT:
        print(
            f"it would leave out {100 * left_out:.0f} % of these completions. In docs/claims.md a filter that left "
            "out a quarter to a third at first neither helped nor harmed for sure; one that left out three quarters or "
            "more ended lower than none in 11 of 12 runs: objective.filter.enabled=never switches it off"
        )
    if mode == "auto" and low <= LN_2 <= high:
        print("the interval holds ln 2: decide with objective.filter.enabled, or raise objective.probe.num_prompts")
    print("to skip the probe, put this into the recipe:")
    print(f"  objective: {{initial_entropy: {measured.initial_entropy:.6f}}}")


def _of_the_right(share: float) -> str:
    if share == 0.0:
        return "where no completion is ever right there is nothing to learn from: easier problems, or SFT first"
    if share < _RARELY_RIGHT:
        return "where 1 to 7 % were right at first, single seeds decided (docs/claims.md): compare several"
    if share < _SELDOM_RIGHT:
        return (
            "where 12 to 17 % were right at first, GTPO, and GRPO with its conflict correction, ended above GRPO at "
            "the temperature of training, and alike when asked greedily (docs/claims.md)"
        )
    return "where 22 to 49 % were right at first, no benefit of GTPO over GRPO showed (docs/claims.md)"


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
