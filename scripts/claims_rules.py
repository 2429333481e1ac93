"""The rules of docs/claims.md's registration: from the numbers in docs/claims/*.csv to figures and verdicts.

Nothing is decided here by hand; scripts/write_claims.py takes the numbers over and writes the page.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from gtpo_cli.estimators import sign_flip_test
from gtpo_cli.recipe.schema import LN_2

DATA = Path(__file__).resolve().parent.parent / "docs" / "claims"
MARGINS = {"accuracy": 0.02, "test accuracy": 0.02, "entropy": 0.05, "entropy peak": 0.05, "length": 1.0}
SHARE_MARGIN = 0.05
SEEDS_THAT_COUNT = 4
ORDER = "entropy_before_kl.csv"  # of the runs with a KL term that pass ln 2: when each is half way
INITIAL = "initial_entropy.csv"  # <H>_ini of every run, at its sampling temperature
BASE_ACCURACY = {"weak": 0.06, "tiny": 0.35}  # as registered
WEAK_SWEEPS = ("entropy_search", "learning_rates_weak")

Values = dict[str, dict[int, float]]  # variant -> seed -> value


@dataclass(frozen=True)
class Finding:
    """A claim's figures in words, and its verdict."""

    figures: str
    verdict: str


def values(sweep: str, figure: str) -> Values:
    """{variant: {seed: value}}; runs without the figure are missing."""
    found: Values = {}
    with (DATA / f"{sweep}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row[figure]:
                found.setdefault(row["variant"], {})[int(row["seed"])] = float(row[figure])
    return found


def differences(sweep: str, figure: str, more: str, less: str) -> list[float]:
    """more - less, by seed."""
    table = values(sweep, figure)
    return [table[more][seed] - table[less][seed] for seed in table[more] if seed in table[less]]


def compare(sweep: str, figure: str, more: str, less: str) -> Finding:
    """Does `more` have more of the figure than `less`, by the registered test?"""
    found = differences(sweep, figure, more, less)
    margin, mean = MARGINS.get(figure, SHARE_MARGIN), fmean(found)
    if all(value > 0 for value in found) and mean >= margin:
        verdict = "reproduced"
    elif all(value < 0 for value in found) and -mean >= margin:
        verdict = "opposite"
    else:
        verdict = "not reproduced"
    up = sum(value > 0 for value in found)
    words = (
        f"{figure} `{more}` {average(sweep, figure, more)}, `{less}` {average(sweep, figure, less)}: {mean:+.3f} "
        f"({up} of {len(found)}, p {sign_flip_test(found):.3f})"
    )
    return Finding(words, verdict)


def average(sweep: str, figure: str, variant: str) -> str:
    return f"{fmean(values(sweep, figure)[variant].values()):.3f}"


def counts(sweep: str, figure: str, variant: str) -> tuple[int, int]:
    """(seeds in which it happens, seeds)."""
    happened = values(sweep, figure)[variant].values()
    return sum(value == 1.0 for value in happened), len(happened)


def happens_more(sweep: str, figure: str, more: str, less: str) -> Finding:
    """Does it happen in at least four more seeds of five?"""
    (a, n), (b, m) = counts(sweep, figure, more), counts(sweep, figure, less)
    apart, enough = a - b, SEEDS_THAT_COUNT
    verdict = "reproduced" if apart >= enough else "opposite" if apart <= -enough else "not reproduced"
    return Finding(f"{figure}: `{more}` {a} of {n} seeds, `{less}` {b} of {m}", verdict)


def every_seed_above_half(sweep: str, figure: str, variant: str) -> Finding:
    found = list(values(sweep, figure)[variant].values())
    above = sum(value > 0.5 for value in found)
    verdict = "reproduced" if above == len(found) else "opposite" if above == 0 else "not reproduced"
    return Finding(f"{figure}: {fmean(found):.2f} on average ({min(found):.2f} to {max(found):.2f})", verdict)


def all_of(*findings: Finding) -> Finding:
    """Reproduced where every part is; opposite where every part is; else not reproduced."""
    verdicts = {finding.verdict for finding in findings}
    verdict = verdicts.pop() if len(verdicts) == 1 else "not reproduced"
    return Finding("; ".join(finding.figures for finding in findings), verdict)


def any_of(*findings: Finding) -> Finding:
    verdicts = [finding.verdict for finding in findings]
    verdict = next((word for word in ("reproduced", "opposite") if word in verdicts), "not reproduced")
    return Finding("; ".join(finding.figures for finding in findings), verdict)


# -- the claims --------------------------------------------------------------------------------------------------------


def forgets_to_stop() -> Finding:
    hot = happens_more("fig5a_kl", "forgets to stop", "grpo_beta0", "gtpo")
    others = [
        happens_more("learning_rates", "forgets to stop", f"grpo_{rate}", f"gtpo_{rate}") for rate in ("5e-4", "2e-3")
    ]
    return any_of(others[0], Finding(f"at 1e-3 {hot.figures}", hot.verdict), others[1])


def correction_prevents_it() -> Finding:
    untouched = max(values("fig3_conflict", "starts pushed down")[v][s] for v in ("gtpo", "conflict_only")
                    for s in values("fig3_conflict", "starts pushed down")[v])  # fmt: skip
    spared = Finding(
        f"starts pushed down with the correction: at most {untouched:.3f}",
        "reproduced" if untouched == 0 else "not reproduced",
    )
    return all_of(
        happens_more("fig3_conflict", "forgets to stop", "without_conflict", "gtpo"),
        happens_more("fig3_conflict", "forgets to stop", "grpo", "conflict_only"),
        spared,
    )


def grpo_variants() -> Iterator[tuple[str, str]]:
    """Every GRPO variant of the search and of the learning rates."""
    for sweep in ("entropy_search", "learning_rates", "learning_rates_weak"):
        yield from ((sweep, v) for v in values(sweep, "entropy peak") if not v.startswith("gtpo"))


def initial_entropies(sweep: str, variant: str) -> list[float]:
    """<H>_ini of the variant's runs, nats."""
    with (DATA / INITIAL).open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["sweep"], row["variant"]) == (sweep, variant)]
    return [float(row["initial entropy"]) for row in rows]


def collapse_passes_ln2() -> Finding:
    collapsed, single, started_above, highest = [], [], [], (0.0, "")
    for sweep, variant in grpo_variants():
        above, seeds = counts(sweep, "passes ln 2", variant)
        where = f"{sweep}/{variant} ({above} of {seeds} seeds)"
        if max(initial_entropies(sweep, variant)) >= LN_2:  # nothing to pass: the base is there already
            started_above.append(where)
            continue
        peaks = values(sweep, "entropy peak")[variant].values()
        highest = max(highest, (max(peaks), f"{sweep}/{variant}"))
        base = BASE_ACCURACY["weak" if sweep in WEAK_SWEEPS else "tiny"]
        if 2 * above > seeds and fmean(values(sweep, "accuracy")[variant].values()) < base:
            collapsed.append(where)
        elif above:
            single.append(where)
    parts = {
        "collapsed above ln 2 in most seeds": collapsed,
        "above in fewer seeds": single,
        "left out, since the base starts above": started_above,
    }
    words = f"highest entropy of 15 steps: {highest[0]:.2f} nats ({highest[1]})"
    words += "".join(f"; {what}: {', '.join(which) or 'none'}" for what, which in parts.items())
    return Finding(words, "reproduced" if collapsed else "not reproduced")


def entropy_before_kl() -> Finding:
    with (DATA / ORDER).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return Finding("no run with a KL term passes ln 2", "not testable here")
    first = [int(row["entropy step"]) < int(row["KL step"]) for row in rows]
    later = [int(row["entropy step"]) > int(row["KL step"]) for row in rows]
    verdict = "reproduced" if all(first) else "opposite" if all(later) else "not reproduced"
    return Finding(f"entropy is half way before KL in {sum(first)} of {len(rows)} runs that pass ln 2", verdict)


def filter_prevents() -> Finding:
    above, _ = counts("fig4a_gamma", "passes ln 2", "no_filter")
    if above:
        return happens_more("fig4a_gamma", "passes ln 2", "no_filter", "gamma0.1")
    return compare("fig4a_gamma", "entropy peak", "no_filter", "gamma0.1")


CLAIMS: dict[str, tuple[str, Callable[[], Finding]]] = {
    "C1": ("fig2_methods", lambda: every_seed_above_half("fig2_methods", "groups push starts down", "grpo_beta0")),
    "C2": ("fig2_methods", lambda: every_seed_above_half("fig2_methods", "groups push ends down", "grpo_beta0")),
    "C3": ("learning_rates, fig5a_kl", forgets_to_stop),
    "C4": ("fig3_conflict", correction_prevents_it),
    "C5": ("entropy_search, learning_rates, learning_rates_weak", collapse_passes_ln2),
    "C6": ("fig5a_kl, fig2_methods", entropy_before_kl),
    "C7": ("fig4a_gamma", filter_prevents),
    "C8": (
        "fig4a_gamma",
        lambda: all_of(
            compare("fig4a_gamma", "entropy", "gamma1e-6", "gamma0.1"),
            compare("fig4a_gamma", "accuracy", "gamma0.1", "gamma1e-6"),
        ),
    ),
    "C9": ("fig4b_thresholds", lambda: compare("fig4b_thresholds", "accuracy", "ln2", "threshold2.0")),
    "C10": (
        "fig4c_only_negative",
        lambda: all_of(
            compare("fig4c_only_negative", "entropy", "gtpo", "negative0.7"),
            compare("fig4c_only_negative", "accuracy", "gtpo", "negative0.7"),
        ),
    ),
    "C11": (
        "fig4d_entropy_control",
        lambda: all_of(
            compare("fig4d_entropy_control", "accuracy", "grpo_entropy", "grpo"),
            compare("fig4d_entropy_control", "accuracy", "gtpo", "grpo_entropy"),
        ),
    ),
    "C12": ("fig5b_group_size", lambda: compare("fig5b_group_size", "accuracy", "gtpo_g12", "gtpo_g8")),
    "C13": (
        "fig2_methods, fig5a_kl",
        lambda: all_of(
            *(
                compare("fig2_methods", "test accuracy", "gtpo", other)
                for other in ("grpo_beta0", "grpo_beta1e-6", "grpo_beta0.04", "sft")
            ),
            *(
                compare("fig5a_kl", "test accuracy", "gtpo", other)
                for other in ("grpo_beta0", "grpo_beta1e-6", "grpo_beta0.04")
            ),
        ),
    ),
}
