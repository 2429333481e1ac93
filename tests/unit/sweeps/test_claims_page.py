"""Every figure in docs/claims.md, docs/start.md and `gtpo probe-entropy`, computed again from docs/claims/*.csv.

Nothing of scripts/claims/claims_*.py computes here: a slip there does not repeat itself.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import claims_estimates
import numpy as np
import pytest
import write_claims
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from gtpo_cli.cli.probe_entropy import _of_the_right

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "docs" / "claims"
RATES = ("1.5e-4", "3e-4", "6e-4")
PATHS = {
    "tiny": ["t1.0", "t1.3", "t1.6", "t1.8", "t2.0"],
    "words": ["w25", "w50", "w75", "w100", "w100_t1.3"],
    "qwen2": ["t1.0", "t1.6", "t2.0"],
    "mistral": ["t1.0", "t1.6", "t2.0"],
    "json": ["t1.0", "t1.5", "t2.0"],
}
TEST, WARM = "test accuracy", "accuracy"


def rows(study: str) -> list[dict[str, str]]:
    with (DATA / f"{study}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def runs(study: str, figure: str = TEST) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows(study):
        found[row["variant"]][row["seed"]] = float(row[figure])
    return found


def minus(more: dict[str, float], less: dict[str, float]) -> list[float]:
    return [more[seed] - less[seed] for seed in more if seed in less]


def benefit(family: str, setting: str, figure: str = TEST, more: str = "gtpo", less: str = "grpo") -> list[float]:
    found = runs(f"path_{family}", figure)
    return minus(found[f"{setting}.{more}"], found[f"{setting}.{less}"])


def interval(sample: Sequence[float]) -> tuple[float, float]:
    found = ttest_1samp(sample, 0.0).confidence_interval()
    return found.low, found.high


def shown(sample: Sequence[float]) -> str:
    low, high = interval(sample)
    return f"{fmean(sample):+.3f} ({low:+.3f} to {high:+.3f})"


def span(numbers: Iterable[float], form: str = "+.3f") -> str:
    found = sorted(numbers)
    return f"{found[0]:{form}} to {found[-1]:{form}}"


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def page() -> str:
    return words((ROOT / "docs" / "claims.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def start() -> str:
    return words((ROOT / "docs" / "start.md").read_text(encoding="utf-8"))


def cells(low: float, high: float) -> list[tuple[str, str]]:
    """Settings whose share right at first, of GRPO, lies in [low, high)."""
    return [(f, s) for f, path in PATHS.items() for s in path if low <= at_first(f, s) < high]


def at_first(family: str, setting: str) -> float:
    return fmean(runs(f"path_{family}", "accuracy at first")[f"{setting}.grpo"].values())


def chosen(family: str, setting: str, method: str) -> str:
    """The registered rule: the best mean over the setting and its neighbours, the lowest of those within 0.01."""
    tried: dict[str, list[float]] = defaultdict(list)
    studies = [f"tune_{family}"] + [f"tune_again_{family}"] * (family in ("tiny", "json"))
    place = PATHS[family].index(setting)
    near = PATHS[family][max(0, place - 1) : place + 2]
    means = {}
    for rate in RATES:
        names = [f"{other}.{method}-{rate}" for other in near]
        for study in studies:
            for row in rows(study):
                if row["variant"] in names:
                    tried[rate, row["variant"]].append(float(row[TEST]))
        means[rate] = fmean(fmean(v) for (of, _), v in tried.items() if of == rate)
    return next(rate for rate in RATES if means[rate] >= max(means.values()) - 0.01)


def at_equal_rates(setting: tuple[str, str], figure: str, method: str = "gtpo") -> list[float]:
    """GSPO at 3e-4 is GRPO at 3e-4; in the other three settings both ran at 3e-4 anyway."""
    if setting != ("json", "t1.5"):
        return benefit(*setting, figure, more=method)
    return minus(runs("path_json", figure)[f"t1.5.{method}"], runs("methods_json", figure)["t1.5.gspo"])


def test_the_pages_are_what_the_script_writes() -> None:
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == write_claims.page()
    assert (DATA / "tables.md").read_text(encoding="utf-8") == write_claims.tables()


def test_identical_trainings_are_counted_once(page: str, start: str) -> None:
    studies = [file.stem for file in DATA.glob("*.csv") if file.stem != "initial_entropy"]
    trained = [
        (study, tuple(v for name, v in row.items() if name not in ("variant", TEST)))
        for study in studies
        for row in rows(study)
    ]
    different = {run for _, run in trained}
    others = {run for study, run in trained if not study.startswith("greedy_")}
    greedy = sum(study.startswith("greedy_") and run in others for study, run in trained)
    total, repeated = len(trained), len(trained) - len(different)
    assert f"**{len(different)} of the {total} runs are different.** {repeated} rows have the seed" in page
    assert f"{greedy} of them test a training greedily" in page
    assert f"In the other {repeated - greedy} two variants are one computation" in page
    path = {run for study, run in trained if study == "path_tiny"}
    again = sum(study == "greedy_tiny" and run not in path for study, run in trained)
    assert f"{again} of them round differently" in page
    assert f"the {len(different)} different runs" in start
    assert f"{total} of a quarter of a minute, {len(different)} of them different" in (ROOT / "Makefile").read_text()
    registered = (DATA / "tables.md").read_text(encoding="utf-8").partition("## The paths")[0]
    assert "t2.0.never = 1.5 = 2.0 = 2.5 |" in registered
    assert "`prefix` = `all_prefix` |" in registered


def test_round_one_counts_the_runs_that_sweeps_share() -> None:
    figures = ("seed", "accuracy", "test accuracy", "strict format", "length", "entropy")
    studies = [rows(f"round_one/{file.stem}") for file in (DATA / "round_one").glob("*.csv")]
    found = [
        tuple(row[name] for name in figures)
        for study in studies
        if study and {"variant", TEST} <= study[0].keys() and "seed" in study[0]
        for row in study
    ]
    text = words((DATA / "round_one.md").read_text(encoding="utf-8"))
    assert f"({len(found)} rows)" in text
    assert f"{len(set(found))} of them are different: sweeps share variants" in text
    fig3, fig5a = (
        {row["seed"]: row for row in rows(f"round_one/{name}") if row["variant"] == variant}
        for name, variant in (("fig3_conflict", "grpo"), ("fig5a_kl", "grpo_beta0"))
    )
    assert all(fig3[seed][name] == fig5a[seed][name] for seed in fig3 for name in figures)


def test_learning_rates_stand_beside_every_difference(page: str) -> None:
    tables = (DATA / "tables.md").read_text(encoding="utf-8")
    unequal = {}
    for family, path in PATHS.items():
        for setting in path:
            three = [chosen(family, setting, method) for method in ("grpo", "grpo_conflict", "gtpo")]
            row = f"| `{family}` {setting} | {runs_entropy(family, setting):.3f} | {at_first(family, setting):.3f} |"
            assert f"{row} {', '.join(three)} |" in tables
            if three[0] != three[2]:
                unequal[family, setting] = three[0], three[2]
                assert float(three[2]) == 2 * float(three[0])
            else:
                assert three[0] == "3e-4"
    assert f"In {len(unequal)} of the {sum(map(len, PATHS.values()))} settings GRPO ran at half of GTPO's rate" in page
    other = {
        ("tiny", "t1.8"): ("parts_tiny", "t1.8.no_conflict_filter_entropy"),
        ("json", "t1.5"): ("methods_json", "t1.5.gspo"),
    }
    for (family, setting), (of_grpo, of_gtpo) in unequal.items():
        figures = []
        for figure in (TEST, WARM):
            path = runs(f"path_{family}", figure)
            more, less = path[f"{setting}.gtpo"], path[f"{setting}.grpo"]
            if (family, setting) in other:
                study, variant = other[family, setting]
                equal = runs(study, figure)[variant]
                figures.append((fmean(minus(equal and {s: more[s] for s in equal}, less)), fmean(minus(more, equal))))
            else:
                tune = runs(f"tune_{family}", figure)
                one = minus(tune[f"{setting}.gtpo-{of_gtpo}"], tune[f"{setting}.grpo-{of_gtpo}"])
                assert len(one) == 1
                figures.append((fmean(minus(more, less)), one[0]))
        (tuned, equal_rate), (tuned_warm, equal_warm) = figures
        row = f"| `{family}` {setting} | {of_grpo} | {of_gtpo} | {tuned:+.3f} ({tuned_warm:+.3f}) |"
        assert f"{row} {equal_rate:+.3f} ({equal_warm:+.3f})" in page
    for method in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo"):
        for family, setting in (("tiny", "t1.6"), ("json", "t1.5")):
            found = runs(f"path_{family}") | runs(f"methods_{family}")
            for name in (method, f"{method}_conflict"):
                mean = fmean(found[f"{setting}.{name}"].values())
                assert re.search(
                    rf"\| {method} \|.* {mean:.3f} \([0-9.]+\) at {re.escape(chosen(family, setting, name))} ", page
                )


def runs_entropy(family: str, setting: str) -> float:
    return next(
        float(row["initial entropy"])
        for row in rows("initial_entropy")
        if (row["family"], row["setting"]) == (family, setting)
    )


def test_where_a_model_is_seldom_right(page: str, start: str) -> None:
    four = cells(0.1, 0.2)
    warm, cold = ([at_equal_rates(cell, figure) for cell in four] for figure in (WARM, TEST))
    alone = [fmean(at_equal_rates(cell, WARM, "grpo_conflict")) for cell in four]
    share = span((100 * at_first(*cell) for cell in four), ".0f")
    assert f"**Where {share} % of completions were right at first ({len(four)} settings)" in page
    above = [sum(interval(sample)[0] > 0 for sample in of) for of in (warm, cold)]
    assert (
        f"difference there is {span(map(fmean, warm))}, with {above[0]} of 4 intervals above 0. At temperature 1 it is "
        f"{span(map(fmean, cold))}, with {above[1]} of 4 intervals above 0." in page
    )
    assert f"For JSON the tuned rates gave {fmean(benefit('json', 't1.5', WARM)):+.3f}" in page
    assert f"GRPO with the correction ends {span(alone)} above GRPO there" in page
    lower = [-fmean(at_equal_rates(cell, "entropy")) for cell in four]
    assert f"GTPO's entropy ends {span(lower, '.3f')} nats lower" in page
    tested = {family: runs(f"greedy_{family}") for family in ("tiny", "qwen2", "mistral")}
    greedy = [fmean(minus(found["t1.6.gtpo"], found["t1.6.grpo"])) for found in tested.values()]
    ends = [fmean(found[f"t1.6.{m}"].values()) for found in tested.values() for m in ("grpo", "gtpo")]
    assert (
        f"greedy tests of 3 of these settings differ by {span(greedy)}. Both methods reach {span(ends, '.2f')}" in page
    )
    assert f"right in {share} % ended" in start
    assert f"{span(map(fmean, warm), '.2f')} higher with GTPO than with GRPO, and {span(alone, '.2f')} higher" in start
    assert f"where {share} % were right at first" in _of_the_right(0.15)


def test_where_a_model_is_often_or_rarely_right(page: str) -> None:
    often, rare = cells(0.2, 1.0), cells(0.0, 0.1)
    means = [fmean(benefit(*cell)) for cell in often]
    warm = [benefit(*cell, WARM) for cell in often]
    above, below = (sum(sign * interval(s)[sign < 0] > 0 for s in warm) for sign in (1, -1))
    w100 = benefit("words", "w100")
    assert (
        f"({len(often)} settings), no benefit shows.** The differences at temperature 1 are {span(means)}, on" in page
    )
    assert f"on average {shown(means)}. At the temperature of training they are {span(map(fmean, warm))}, with" in page
    assert (
        f"with {above} of {len(often)} intervals above 0 (`w75`, where GTPO had twice GRPO's rate) and {below} b"
        in page
    )
    assert interval(benefit("words", "w75", WARM))[0] > 0
    assert f"{shown(w100)}, in {sum(d < 0 for d in w100)} of {len(w100)} seeds" in page
    assert all(at_first(*cell) < 1 / 15 for cell in rare)
    spread = max(
        max(by_seed.values()) - min(by_seed.values())
        for family, setting in rare
        for name, by_seed in runs(f"path_{family}").items()
        if name.startswith(f"{setting}.")
    )
    assert f"({len(rare)} settings), single seeds decide.** Two seeds of one method" in page
    assert f"end up to {spread:.2f} apart" in page
    assert f"{span(fmean(benefit(*cell)) for cell in rare)} at temperature 1, and" in page
    assert f"{span(fmean(benefit(*cell, WARM)) for cell in rare)} at the temperature of training. In `json`" in page
    json = runs("path_json")
    nothing = [sum(end < 0.01 for end in json[f"t2.0.{name}"].values()) for name in ("grpo", "gtpo")]
    assert f"{nothing[0]} of 3 runs of GRPO and {nothing[1]} of 3 of GTPO learn nothing" in page
    filtered = runs("path_json", "filtered")["t2.0.gtpo"].values()
    assert f"the filter takes {span((100 * share for share in filtered), '.0f')} %" in page
    greedy = runs("greedy_tiny")
    t18 = minus(greedy["t1.8.gtpo"], greedy["t1.8.grpo"])
    assert f"below GRPO in {sum(d < 0 for d in t18)} of 4 seeds, {shown(t18)}" in page
    for low, high, said in ((0.0, 0.1, 0.05), (0.2, 1.0, 0.3)):
        share = span((100 * at_first(*cell) for cell in cells(low, high)), ".0f")
        assert f"where {share} % were right at first" in _of_the_right(said)
        assert f"| {share} %" in page


def slope(points: list[tuple[str, float, float]]) -> tuple[float, float, float]:
    groups = sorted({family for family, *_ in points})
    design = np.array([[x, *(float(family == g) for g in groups)] for family, x, _ in points])
    y = np.array([y for *_, y in points])
    solved, *_ = np.linalg.lstsq(design, y, rcond=None)
    left = len(y) - design.shape[1]
    error = (np.sum((y - design @ solved) ** 2) / left * np.linalg.inv(design.T @ design)[0, 0]) ** 0.5
    half = student.ppf(0.975, left) * error
    return solved[0], solved[0] - half, solved[0] + half


def test_what_decides_is_open(page: str) -> None:
    every = [(f, s, fmean(benefit(f, s))) for f, path in PATHS.items() for s in path]
    share = [(f, at_first(f, s), y) for f, s, y in every]
    arithmetic = [point for point in share if point[0] != "json"]
    nats = [(f, runs_entropy(f, s), y) for f, s, y in every if f != "json"]
    said = ["{:+.3f} ({:+.3f} to {:+.3f})".format(*slope(points)) for points in (nats, arithmetic, share)]
    assert f"changes by {said[0]} per nat, and by {said[1]} from never right to always" in page
    reaching = sum(slope([p for p in arithmetic if p is not out])[2] >= 0 for out in arithmetic)
    assert f"one of {reaching} of the {len(arithmetic)} settings is left out, and with the three of `json` the" in page
    assert f"the slope is {said[2]}" in page


def test_the_correction_and_the_parts(page: str) -> None:
    means = [fmean(benefit(f, s, less="grpo_conflict")) for f, path in PATHS.items() for s in path]
    assert f"conflict correction alone**, {shown(means)}, nor" in page
    methods = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo")
    over, apart = [], {}
    for family, setting in (("tiny", "t1.6"), ("json", "t1.5")):
        found = runs(f"path_{family}") | runs(f"methods_{family}")
        for method in methods:
            with_it = found[f"{setting}.{method}_conflict"]
            over.append(interval(minus(found[f"{setting}.gtpo"], with_it)))
            apart[family, method] = minus(with_it, found[f"{setting}.{method}"])
    holding = sum(low <= 0 <= high for low, high in over)
    assert f"({holding} of {len(over)} intervals hold 0)" in page
    tiny, json = ([fmean(apart[f, m]) for m in ("grpo", "dr_grpo", "dapo", "cispo")] for f in ("tiny", "json"))
    assert f"changes accuracy by {shown(tiny)} on arithmetic, all at equal rates, and {shown(json)} on JSON" in page
    assert f"CISPO, {shown(apart['json', 'cispo'])}, and GSPO" in page
    assert f"at the higher rate, {shown(apart['json', 'gspo'])}" in page
    doubled = [
        m
        for m in ("grpo", "dr_grpo", "dapo", "cispo")
        if float(chosen("json", "t1.5", f"{m}_conflict")) == 2 * float(chosen("json", "t1.5", m))
    ]
    assert len(doubled) == 3
    effects = [
        main_effect(f, s, part)
        for f, s in (("tiny", "t1.8"), ("words", "w100"))
        for part in ("conflict", "filter", "entropy")
    ]
    assert not any(interval(effect)[0] > 0 for effect in effects)
    assert "none of GTPO's three parts has a main effect above 0" in page


def main_effect(family: str, setting: str, part: str) -> list[float]:
    names = ("conflict", "filter", "entropy")
    found = runs(f"parts_{family}")
    found[f"{setting}.no_"] = runs(f"path_{family}")[f"{setting}.gtpo"]

    def without(*out: str) -> dict[str, float]:
        return found[f"{setting}.no_{'_'.join(name for name in names if name in out)}"]

    one, two = (name for name in names if name != part)
    return [fmean(minus(without(*out), without(*out, part))) for out in ((), (one,), (two,), (one, two))]


def test_the_filter(page: str, start: str) -> None:
    three = ("tiny", "qwen2", "mistral")
    whole = {family: runs(f"path_{family}")["t2.0.gtpo"] for family in three}
    other = {family: runs(f"thresholds_{family}") for family in three}
    w100 = minus(runs("path_words")["w100.gtpo"], runs("parts_words")["w100.no_filter"])
    settings = [*(fmean(minus(whole[f], other[f]["t2.0.never"])) for f in three), fmean(w100)]
    first = [fmean(runs(f"path_{f}", "filtered at first")["t2.0.gtpo"].values()) for f in three]
    first.append(fmean(runs("path_words", "filtered at first")["w100.gtpo"].values()))
    assert f"leaves out {span((100 * s for s in first), '.0f')} % of the first completions and accuracy rises" in page
    assert f"it changes accuracy by {shown(settings)}. In one of them, `w100`, its main effect is " in page
    assert f"`w100`, its main effect is {shown(main_effect('words', 'w100', 'filter'))}." in page
    on, off = runs("thresholds_words")["w100_t1.3.always0.7"], runs("path_words")["w100_t1.3.gtpo"]
    strict = runs("thresholds_words", "filtered at first")["w100_t1.3.always0.7"].values()
    assert f"left out {span((100 * s for s in strict), '.0f')} % at first and changed" in page
    assert f"changed accuracy by {shown(minus(on, off))}" in page
    half, one, never = (
        [d for f in three for d in minus(other[f][f"t2.0.{name}"], whole[f])] for name in ("0.5", "1.0", "never")
    )
    nearly = [s for f in three for s in runs(f"thresholds_{f}", "filtered at first")["t2.0.0.5"].values()]
    assert f"It left out {span((100 * s for s in nearly), '.0f')} % of the first" in page
    assert f"lower in {sum(d < 0 for d in half)} of {len(half)} runs ({fmean(half):+.3f})" in page
    for family in three:
        low, high = interval(minus(other[family]["t2.0.0.5"], whole[family]))
        assert low < 0 < high  # each of the three settings alone is open
        low, high = interval(minus(other[family]["t2.0.never"], whole[family]))
        assert low < 0 < high
    assert len(never) == 9
    assert f"threshold 1.0 ({fmean(one):+.3f}, lower in {sum(d < 0 for d in one)} of {len(one)})" in page
    assert set(runs("thresholds_tiny", "filtered")["t2.0.1.5"].values()) == {0.0}
    much = [*minus(on, off), *(d for f in three for d in minus(other[f]["t2.0.0.5"], other[f]["t2.0.never"]))]
    lower = f"{sum(d < 0 for d in much)} of {len(much)} runs"
    assert min([*strict, *nearly]) > 0.75
    assert f"three quarters or more | {lower} ended lower with it than without" in page
    assert f"ended lower than none in {lower}" in start
    probe = words((ROOT / "gtpo_cli" / "cli" / "probe_entropy.py").read_text(encoding="utf-8"))
    assert f"ended lower than none in {lower}" in probe


def test_spans_and_the_lost_end_token(page: str) -> None:
    tiny, words50 = runs("spans_tiny"), runs("spans_words")
    of_tiny, of_words = runs("path_tiny")["t1.6.gtpo"], runs("path_words")["w50.gtpo"]
    for name in ("all", "prefix"):
        pairs = [*minus(tiny[f"t1.6.{name}"], of_tiny), *minus(words50[f"w50.{name}"], of_words)]
        assert re.search(rf"`(span|alignment): {name}` changes (accuracy|it) by {re.escape(shown(pairs))}", page)
    assert tiny["t1.6.prefix"] == tiny["t1.6.all_prefix"]
    ended, gtpo = fmean(tiny["t1.6.all"].values()), fmean(of_tiny[seed] for seed in tiny["t1.6.all"])
    assert f"it ended at {ended:.2f} where GTPO ended at {gtpo:.2f}, lower in 3 of 3 seeds" in page
    assert all(d < 0 for d in minus(tiny["t1.6.all"], of_tiny))
    forgot: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    hot = []
    for row in rows("end_token"):
        key = row["variant"].split(".")[0], row["variant"].rsplit(".", 1)[1]
        forgot[key] += int(float(row["forgets to stop"]))
        count[key] += 1
        hot += [float(row[TEST])] if ".1.2e-3." in row["variant"] else []
    said = {key: f"{forgot[key]} of {count[key]}" for key in count}
    assert (
        f"{said['presence', 'grpo']} runs of GRPO with that reward forgot to stop, {said['strict', 'grpo']} with the "
        f"strict format and {said['accuracy', 'grpo']} with right answers alone (p = {2 / 2**8:.3f}; "
        f"{8 * 2 / 2**8:.2f} when corrected for the 8 tests" in page
    )
    assert forgot["presence", "grpo"] == 8  # as many pairs differ, all the same way: p = 2 / 2**8
    assert f"With the correction {said['presence', 'grpo_conflict']} forgot" in page
    eight = [
        float(r["forgets to stop"]) for r in rows("end_token") if re.match(r"presence\.g8\..*\.grpo$", r["variant"])
    ]
    assert f"only {sum(eight):.0f} of {len(eight)} did without it" in page
    assert max(hot) < 0.14
    assert "At 1.2e-3 every run of the study ends below 0.14" in page
    outside = [
        (file.stem, row["variant"])
        for file in DATA.glob("*.csv")
        if file.stem not in ("initial_entropy", "end_token")
        for row in rows(file.stem)
        if float(row["forgets to stop"])
    ]
    assert f"Outside the study {len(outside)} runs forgot, all at `json` t2.0" in page
    assert all(study.endswith("_json") and variant.startswith("t2.0.") for study, variant in outside)


def test_the_number_of_tests_is_stated_and_corrected_for(page: str) -> None:
    registered = (DATA / "tables.md").read_text(encoding="utf-8").partition("## The paths")[0]
    found = re.findall(r"\| [+-]\d\.\d+ \(([+-]\d\.\d+) to ([+-]\d\.\d+)\) \|", registered)
    p_values = [float(p) for p in re.findall(r"runs, p (\d\.\d+) \|", registered)]
    missing = sum(float(low) > 0 or float(high) < 0 for low, high in found) + sum(p < 0.05 for p in p_values)
    lines = len(found) + len(p_values)
    assert (
        f"Of the {lines} registered lines in `docs/claims/tables.md` {missing} miss 0. About {lines / 20:.0f}" in page
    )
    assert f"have {lines} intervals and shares" in words((DATA / "registration.md").read_text(encoding="utf-8"))
    smallest = min(line.p_value for question in write_claims.QUESTIONS for line in question.ask())
    always = minus(runs("thresholds_words")["w100_t1.3.always0.7"], runs("path_words")["w100_t1.3.gtpo"])
    assert smallest == pytest.approx(ttest_1samp(always, 0.0).pvalue)
    assert smallest * lines > 0.05
    assert "After Holm's correction for all of them none does." in page


def test_p_values_and_holms_correction() -> None:
    sample = [0.1, 0.3, 0.2, 0.6]
    assert claims_estimates.p_value(claims_estimates.mean(sample), 3) == pytest.approx(ttest_1samp(sample, 0).pvalue)
    # 4 x 0.01; 3 x 0.02; 2 x 0.03 = 0.06, no less than the one before; 0.9
    assert claims_estimates.holm([0.9, 0.01, 0.03, 0.02]) == pytest.approx([0.9, 0.04, 0.06, 0.06])
    assert claims_estimates.holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])


def test_a_commit_that_a_page_names_is_in_the_repository() -> None:
    git = [shutil.which("git") or "true", "-C", str(ROOT)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        pytest.skip("no history here")
    named = {
        (page.name, commit)
        for page in (ROOT / "docs").rglob("*.md")
        for commit in re.findall(
            r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7}\b", page.read_text(encoding="utf-8")
        )
    }
    assert ("registration.md", "f416da0") in named
    absent = [
        pair for pair in named if subprocess.run([*git, "cat-file", "-e", pair[1]], capture_output=True).returncode
    ]
    assert absent == []
