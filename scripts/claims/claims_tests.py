"""The tests of docs/claims/registration.md: from the figures in docs/claims/*.csv to intervals and verdicts.

Nothing is decided here by hand, and nothing is read but those files. write_claims.py makes the page of it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from claims_design import FAMILIES, MIDDLE, PLAIN, SAME, SHARPENED, Cell, chosen_rates, tuned_accuracy, tuning
from claims_estimates import mean, p_value, slope, verdict

from gtpo_cli.estimators import Interval, sign_flip_test

DATA = Path(__file__).resolve().parents[2] / "docs" / "claims"
OUTCOME = "test accuracy"
INITIAL = "initial_entropy.csv"
ARITHMETIC = tuple(family for family in FAMILIES if family != "json")

BySeed = Mapping[int, float]
Predictor = Mapping[str, Mapping[str, float]]  # family, setting


def values(study: str, figure: str = OUTCOME) -> dict[str, dict[int, float]]:
    """{variant: {seed: value}} of a study's runs."""
    found: dict[str, dict[int, float]] = {}
    for row in _rows(f"{study}.csv"):
        found.setdefault(row["variant"], {})[int(row["seed"])] = float(row[figure])
    return found


def initial_entropies() -> dict[str, dict[str, float]]:
    """{family: {setting: <H>_ini}}, nats: means over the seeds' measurements."""
    found: dict[str, dict[str, float]] = {}
    for row in _rows(INITIAL):
        found.setdefault(row["family"], {})[row["setting"]] = float(row["initial entropy"])
    return found


def trainings() -> dict[str, list[tuple[str, ...]]]:
    """{study: of each run its seed and every figure but the test's}: two that are equal are one training."""
    return {
        file.stem: [
            tuple(value for name, value in row.items() if name not in ("variant", OUTCOME)) for row in _rows(file.name)
        ]
        for file in sorted(DATA.glob("*.csv"))
        if file.name != INITIAL
    }


def _alike(study: str) -> dict[str, list[str]]:
    """{variant: itself and the later ones whose runs have the same figures, the test's too}."""
    records: dict[str, list[tuple[str, ...]]] = {}
    for row in _rows(f"{study}.csv"):
        records.setdefault(row["variant"], []).append(tuple(row[name] for name in row if name != "variant"))
    found: dict[str, list[str]] = {}
    for variant, record in records.items():
        first = next((other for other in found if records[other] == record), variant)
        found.setdefault(first, []).append(variant)
    return found


def _rows(name: str) -> Iterable[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def rates() -> tuple[dict[Cell, str], dict[Cell, dict[str, float]]]:
    """{(family, setting, method): the learning rate that tuning chose}, and the test accuracies that it chose by."""
    tuned = tuned_accuracy(
        (study.rsplit("_", 1)[1], row["variant"], float(row[OUTCOME]))
        for study in tuning()
        for row in _rows(f"{study}.csv")
    )
    return chosen_rates(tuned), tuned


def differences(more: BySeed, less: BySeed) -> list[float]:
    """more - less, of the seeds that both have."""
    return [more[seed] - less[seed] for seed in more if seed in less]


# -- the questions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """A comparison: of what, on how many differences or means its interval rests, p of its test, and the verdict.

    `is_overall`: it answers its question, and those behind it are its parts.
    """

    what: str
    count: int
    found: Interval
    p_value: float
    verdict: str
    is_overall: bool = False


def _found(what: str, sample: Sequence[float], *, is_overall: bool = False) -> Finding:
    found = mean(sample)
    return Finding(what, len(sample), found, p_value(found, len(sample) - 1), verdict(found), is_overall)


def benefits(family: str, more: str, less: str, figure: str = OUTCOME) -> dict[str, list[float]]:
    """{setting: differences by seed} along a family's path."""
    runs = values(f"path_{family}", figure)
    return {setting: differences(runs[f"{setting}.{more}"], runs[f"{setting}.{less}"]) for setting in FAMILIES[family]}


def first_accuracies() -> dict[str, dict[str, float]]:
    """{family: {setting: accuracy of GRPO's first tenth of the steps}}, at the temperature of training."""
    found: dict[str, dict[str, float]] = {}
    for family, settings in FAMILIES.items():
        runs = values(f"path_{family}", "accuracy at first")
        found[family] = {setting: fmean(runs[f"{setting}.grpo"].values()) for setting in settings}
    return found


def grows(
    more: str, less: str, figure: str = OUTCOME, *, on: Callable[[], Predictor] = initial_entropies
) -> list[Finding]:
    """Q1, Q2: the slope of the benefit on initial entropy, or on what `on` gives: over the arithmetic families, and in
    each way by itself."""
    predictor, findings = on(), []
    for what, families in (("all", ARITHMETIC), ("`tiny` warmer", ("tiny",)), ("`words` wider", ("words",))):
        groups = {
            family: [(predictor[family][s], fmean(d)) for s, d in benefits(family, more, less, figure).items()]
            for family in families
        }
        found = slope(groups)
        word = "grows" if found.low > 0 else "falls" if found.high < 0 else "open"
        count = sum(map(len, groups.values()))
        p = p_value(found, count - len(groups) - 1)
        findings.append(Finding(what, count, found, p, word, is_overall=what == "all"))
    return findings


def by_family(more: str, less: str, figure: str = OUTCOME) -> list[Finding]:
    """Q3: the mean over a family's settings."""
    return [
        _found(f"`{family}`", [fmean(d) for d in benefits(family, more, less, figure).values()]) for family in FAMILIES
    ]


def over_all(more: str, less: str, figure: str = OUTCOME) -> list[Finding]:
    """Q4: the mean over all settings."""
    means = [fmean(d) for family in FAMILIES for d in benefits(family, more, less, figure).values()]
    return [_found("all settings", means, is_overall=True)]


def _variant(family: str, name: str) -> dict[int, float] | None:
    """Test accuracy by seed of GTPO or a variant of it, from whichever study has it; None where none was run."""
    for study in ("path", "thresholds", "parts", "spans"):
        if (DATA / f"{study}_{family}.csv").exists() and name in (runs := values(f"{study}_{family}")):
            return runs[name]
    return None


def filter_acts() -> dict[tuple[str, str], float]:
    """Q5: {(family, setting): mean share that GTPO filters} where that is 1 % and accuracy rises in every seed."""
    found = {}
    for family, settings in FAMILIES.items():
        filtered, first, last = (values(f"path_{family}", f) for f in ("filtered", "accuracy at first", "accuracy"))
        for setting in settings:
            run, share = f"{setting}.gtpo", fmean(filtered[f"{setting}.gtpo"].values())
            if share >= 0.01 and all(last[run][seed] > first[run][seed] for seed in last[run]):
                found[family, setting] = share
    return found


def with_filter() -> list[Finding]:
    """Q5: GTPO against GTPO without filter, where it acts and both were run."""
    findings, means = [], []
    for (family, setting), share in filter_acts().items():
        whole = _variant(family, f"{setting}.gtpo")
        without = _variant(family, f"{setting}.never") or _variant(family, f"{setting}.no_filter")
        if whole is not None and without is not None:
            apart = differences(whole, without)
            means.append(fmean(apart))
            findings.append(_found(f"`{family}` {setting}, {100 * share:.0f} % filtered", apart))
    return [_found("over these settings", means, is_overall=True), *findings] if len(means) > 1 else findings


def thresholds(families: Iterable[str]) -> list[Finding]:
    """Q6: each threshold against GTPO as it is, in its one setting; thresholds whose runs are the same in one line."""
    findings = []
    for family in families:
        runs = values(f"thresholds_{family}")
        for variant, same in _alike(f"thresholds_{family}").items():
            setting = next(s for s in FAMILIES[family] if variant.startswith(f"{s}."))
            whole = _variant(family, f"{setting}.gtpo") or {}
            names = " = ".join([variant, *(other.removeprefix(f"{setting}.") for other in same[1:])])
            findings.append(_found(f"`{family}` {names}", differences(runs[variant], whole)))
    return findings


def spans() -> list[Finding]:
    """Q7: the pairs of both settings together; variants whose runs are the same in one line."""
    settings = {"tiny": "t1.6", "words": "w50"}
    findings = []
    for same in _alike("spans_tiny").values():
        names = [name.removeprefix("t1.6.") for name in same]
        pairs = [
            apart
            for family, setting in settings.items()
            for apart in differences(
                _variant(family, f"{setting}.{names[0]}") or {}, _variant(family, f"{setting}.gtpo") or {}
            )
        ]
        findings.append(_found(" = ".join(f"`{name}`" for name in names), pairs))
    return findings


PARTS = ("conflict", "filter", "entropy")


def parts(family: str, setting: str) -> list[Finding]:
    """Q8: the main effect of each part: with minus without it, at each of the four combinations of the others."""

    def runs(out: Iterable[str]) -> dict[int, float]:
        gone = "_".join(part for part in PARTS if part in out)
        return _variant(family, f"{setting}.{'no_' + gone if gone else 'gtpo'}") or {}

    findings = []
    for part in PARTS:
        others = [other for other in PARTS if other != part]
        combinations = [set(), {others[0]}, {others[1]}, set(others)]
        pairs = [fmean(differences(runs(out), runs(out | {part}))) for out in combinations]
        findings.append(_found(f"{part}, `{family}` {setting}", pairs))
    return findings


def methods(family: str, figure: str = OUTCOME, *, twice: bool = False) -> dict[str, dict[int, float]]:
    """{method: values by seed} of all methods, in the setting where all were run; `twice`: with two updates a batch."""
    start = f"{MIDDLE[family]}."
    studies = ("twice",) if twice else ("path", "methods")
    runs = {name: by_seed for study in studies for name, by_seed in values(f"{study}_{family}", figure).items()}
    return {name.removeprefix(start): by_seed for name, by_seed in runs.items() if name.startswith(start)}


def _at(family: str, more: str, less: str) -> str:
    """The learning rates of two methods, where all were run."""
    chosen, _ = rates()
    of_more, of_less = (chosen[family, MIDDLE[family], method] for method in (more, less))
    return f"at {of_more}" if of_more == of_less else f"{of_more} against {of_less}"


def corrected(families: Iterable[str] = MIDDLE, *, twice: bool = False) -> list[Finding]:
    """Q9: each method with the correction against without it; first the mean over the methods that are not the same."""
    findings = []
    for family in families:
        runs = methods(family, twice=twice)
        apart = {method: differences(runs[f"{method}_conflict"], runs[method]) for method in PLAIN}
        at = {method: _at(family, f"{method}_conflict", method) for method in PLAIN}
        differ = PLAIN if twice else [method for method in PLAIN if method not in SAME]
        unequal = sum("against" in at[method] for method in differ)
        also = f", {unequal} of them at another rate" if unequal else ""
        findings.append(_found(f"{len(differ)} methods, `{family}`{also}", [fmean(apart[method]) for method in differ]))
        findings += [_found(f"{method}, `{family}`, {at[method]}", d) for method, d in apart.items()]
    return findings


def gtpo_against(families: Iterable[str] = MIDDLE, *, with_correction: bool = False) -> list[Finding]:
    """Q9: GTPO against each method as its paper has it; looked at: against each with the correction."""
    findings = []
    for family in families:
        runs = methods(family)
        for method in PLAIN:
            other = f"{method}_conflict" if with_correction else method
            what = f"{method}, `{family}`, {_at(family, 'gtpo', other)}"
            findings.append(_found(what, differences(runs["gtpo"], runs[other])))
    return findings


def greedily(more: str, less: str) -> list[Finding]:
    """Looked at: the benefit in some settings at temperature 1, and where the test samples nothing."""
    findings = []
    for family, settings in SHARPENED.items():
        sampled, runs = benefits(family, more, less), values(f"greedy_{family}")
        for setting in settings:
            greedy = differences(runs[f"{setting}.{more}"], runs[f"{setting}.{less}"])
            findings.append(_found(f"`{family}` {setting}, temperature 1", sampled[setting]))
            findings.append(_found(f"`{family}` {setting}, greedy", greedy))
    return findings


@dataclass(frozen=True)
class Shares:
    """Q10: two levels of a factor: at each, how many of the matched runs forgot to stop; p of the sign-flip test."""

    low: str
    high: str
    pairs: int
    at_low: int
    at_high: int
    p_value: float

    @property
    def is_apart(self) -> bool:
        return self.p_value < 0.05


_LEVELS = (
    (2, "6e-4", "1.2e-3"), (0, "accuracy", "strict"), (0, "accuracy", "presence"), (0, "strict", "presence"),
    (1, "g4", "g8"), (1, "g8", "g16"), (1, "g4", "g16"), (3, "grpo", "grpo_conflict"),
)  # fmt: skip


def end_token() -> list[Shares]:
    """Q10: by factor, over pairs of runs that are equal in all else, the seed too."""
    runs: dict[tuple[str, ...], float] = {}
    for variant, by_seed in values("end_token", "forgets to stop").items():
        settings, method = variant.rsplit(".", 1)
        for seed, happened in by_seed.items():
            runs[(*settings.split(".", 2), method, str(seed))] = happened
    found = []
    for place, low, high in _LEVELS:
        pairs = [
            (happened, runs[other])
            for run, happened in runs.items()
            if run[place] == low and (other := (*run[:place], high, *run[place + 1 :])) in runs
        ]
        at_low, at_high = (int(sum(pair[i] for pair in pairs)) for i in (0, 1))
        found.append(Shares(low, high, len(pairs), at_low, at_high, sign_flip_test([b - a for a, b in pairs])))
    return found
