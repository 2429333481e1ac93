"""GTPO and GRPO at the learning rates that tuning chose, and at equal ones, as far as the recorded runs go."""

from __future__ import annotations

from claims_design import FAMILIES
from claims_estimates import mean
from claims_tests import OUTCOME, differences, rates, values

AT_TRAINING = "accuracy"
# At GTPO's rate GRPO is this variant of another study, run for run: GTPO without its three parts, and GSPO with one
# update a batch.
_GRPO_AT_GTPOS_RATE = {
    ("tiny", "t1.8"): ("parts_tiny", "t1.8.no_conflict_filter_entropy"),
    ("json", "t1.5"): ("methods_json", "t1.5.gspo"),
}


def unequal() -> dict[tuple[str, str], tuple[str, str]]:
    """{(family, setting): (GRPO's rate, GTPO's rate)} where they differ."""
    chosen, _ = rates()
    pairs = {(f, s): (chosen[f, s, "grpo"], chosen[f, s, "gtpo"]) for f, settings in FAMILIES.items() for s in settings}
    return {cell: pair for cell, pair in pairs.items() if pair[0] != pair[1]}


def at_equal_rates(family: str, setting: str, figure: str = OUTCOME, method: str = "gtpo") -> dict[int, float] | None:
    """{seed: the method minus GRPO}, both at GTPO's rate; None where one of them was not compared at that rate."""
    chosen, _ = rates()
    if chosen[family, setting, method] != chosen[family, setting, "gtpo"]:
        return None
    runs = values(f"path_{family}", figure)
    less = runs[f"{setting}.grpo"]
    if (family, setting) in unequal():
        if (family, setting) not in _GRPO_AT_GTPOS_RATE:
            return None
        study, variant = _GRPO_AT_GTPOS_RATE[family, setting]
        less = values(study, figure)[variant]
    more = runs[f"{setting}.{method}"]
    return {seed: more[seed] - less[seed] for seed in less}


def table() -> str:
    """Every setting in which the two rates differ."""
    lines = [
        "## Learning rates",
        "",
        "GTPO minus GRPO where tuning chose different rates: at those rates, and both at GTPO's rate. Test accuracy at",
        "temperature 1, and in brackets accuracy at the temperature of training; means over seeds, the same on both",
        "sides (three) where GRPO was compared at both rates. Elsewhere only the seed that chose the rates ran at",
        "GTPO's rate (`json`: on another base). In all other settings of the paths both ran at 3e-4.",
        "`docs/claims/tables.md` has every rate.",
        "",
        "| | rate of GRPO | rate of GTPO | at these rates | both at GTPO's rate |",
        "|---|---|---|---|---|",
    ]
    for (family, setting), (of_grpo, of_gtpo) in unequal().items():
        tuned, equal = [], []
        for figure in (OUTCOME, AT_TRAINING):
            apart = at_equal_rates(family, setting, figure)
            runs = values(f"path_{family}", figure)
            more, less = runs[f"{setting}.gtpo"], runs[f"{setting}.grpo"]
            tuned.append(mean([more[seed] - less[seed] for seed in apart or more]).estimate)
            equal.append(mean([*apart.values()]).estimate if apart else _tuning(family, setting, of_gtpo, figure))
        n = "" if at_equal_rates(family, setting) else ", one seed"
        cells = (f"{test:+.3f} ({warm:+.3f})" for test, warm in (tuned, equal))
        lines.append(f"| `{family}` {setting} | {of_grpo} | {of_gtpo} | {' | '.join(cells)}{n} |")
    return "\n".join(lines)


def _tuning(family: str, setting: str, rate: str, figure: str) -> float:
    """GTPO minus GRPO at one rate, of the seed that chose the rates."""
    runs = values(f"tune_{family}", figure)
    (apart,) = differences(runs[f"{setting}.gtpo-{rate}"], runs[f"{setting}.grpo-{rate}"])
    return apart
