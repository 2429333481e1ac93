"""docs/claims.md: the design's runs can be made, and its tests weigh them as docs/claims/registration.md says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import claims_design
import claims_tests
import numpy as np
import pytest
import write_claims
import yaml
from scipy.stats import linregress, ttest_1samp
from scipy.stats import t as student

from gtpo_cli.estimators import Interval
from gtpo_cli.sweeps.spec import Sweep, load_sweep

RATES = {
    (family, setting, method): "3e-4"
    for family, settings in claims_design.FAMILIES.items()
    for setting in settings
    for method in claims_design.METHODS
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the tests read from, empty."""
    monkeypatch.setattr(claims_tests, "DATA", tmp_path)
    return tmp_path


def write(folder: Path, study: str, runs: dict[str, list[float]], figure: str = "test accuracy") -> None:
    lines = [f"variant,seed,{figure}"]
    lines += [f"{name},{seed},{value}" for name, row in runs.items() for seed, value in enumerate(row, start=1)]
    (folder / f"{study}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sweep]:
    found, folder = {}, tmp_path_factory.mktemp("sweeps")
    for name, sweep in (claims_design.tuning() | claims_design.comparisons(RATES)).items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(sweep))
        found[name] = load_sweep(str(folder / f"{name}.yaml"))
    return found


def test_every_run_of_the_design_is_a_recipe_and_no_two_are_the_same(sweeps: dict[str, Sweep]) -> None:
    assert sum(len(sweep.runs) for name, sweep in sweeps.items() if name.startswith("tune_")) == 291
    assert sum(len(sweep.runs) for name, sweep in sweeps.items() if not name.startswith("tune_")) == 554
    alike = Counter(
        run.recipe.model_copy(update={"run_name": None, "output_dir": ""}).model_dump_json()
        for sweep in sweeps.values()
        for run in sweep.runs
    )
    assert [count for count in alike.values() if count > 1] == []


def test_a_seed_that_tunes_is_not_compared(sweeps: dict[str, Sweep]) -> None:
    seeds = {name: {run.seed for run in sweep.runs} for name, sweep in sweeps.items()}
    tuned = set().union(*(found for name, found in seeds.items() if name.startswith("tune_")))
    compared = set().union(*(found for name, found in seeds.items() if not name.startswith("tune_")))
    assert tuned.isdisjoint(compared | {900, 901})
    assert compared.isdisjoint({900, 901})  # the pilots'


def test_methods_differ_by_the_correction_and_settings_by_the_base_or_the_temperature(sweeps: dict[str, Sweep]) -> None:
    runs = {run.key: run.recipe for run in sweeps["methods_tiny"].runs}
    for method in claims_design.PLAIN[1:]:
        plain, corrected = runs[f"t1.6.{method}-1"], runs[f"t1.6.{method}_conflict-1"]
        assert (plain.objective.conflict.enabled, corrected.objective.conflict.enabled) == (False, True)
        switched = plain.objective.model_copy(update={"conflict": corrected.objective.conflict})
        assert switched == corrected.objective
    paths = {run.key: run.recipe for run in sweeps["path_words"].runs}
    warm, cold = paths["w100_t1.3.gtpo-2"], paths["w100.gtpo-2"]
    assert (warm.rollout.temperature, cold.rollout.temperature) == (1.3, 1.0)
    assert warm.model == cold.model
    assert warm.model.lora is None
    assert warm.evaluation.temperature == 1.0


def test_a_setting_takes_the_best_rate_of_itself_and_its_neighbours_and_the_lowest_of_those_that_are_close() -> None:
    grpo = {"t1.0": (0.80, 0.90, 0.70), "t1.3": (0.70, 0.80, 0.85), "t1.6": (0.40, 0.30, 0.31)}
    rows = [
        ("tiny", f"{setting}.grpo-{rate}", accuracy)
        for setting, row in grpo.items()
        for rate, accuracy in zip(claims_design.RATES, row, strict=True)
    ]
    rows += [("json", f"t1.5.dr_grpo_conflict-{rate}", 0.5) for rate in claims_design.RATES]
    rows += [("json", "t1.5.dr_grpo_conflict-6e-4", 0.54)]  # a second seed: 0.52 on average
    tuned = claims_design.tuned_accuracy(rows)
    assert tuned["json", "t1.5", "dr_grpo_conflict"] == pytest.approx({"1.5e-4": 0.5, "3e-4": 0.5, "6e-4": 0.52})
    assert claims_design.chosen_rates(tuned) == {
        ("tiny", "t1.0", "grpo"): "3e-4",  # 0.75, 0.85, 0.775
        ("tiny", "t1.3", "grpo"): "3e-4",  # 0.633, 0.667, 0.62
        ("tiny", "t1.6", "grpo"): "6e-4",  # 0.55, 0.55, 0.58
        ("json", "t1.5", "dr_grpo_conflict"): "6e-4",
    }
    close = [(family, variant, 0.85 if "6e-4" in variant else 0.845) for family, variant, _ in rows]
    assert set(claims_design.chosen_rates(claims_design.tuned_accuracy(close)).values()) == {"1.5e-4"}


def test_a_mean_has_students_interval() -> None:
    sample = [0.1, 0.3, 0.2, 0.6]
    expected = ttest_1samp(sample, 0.0).confidence_interval()
    assert claims_tests.mean(sample) == pytest.approx((0.3, expected.low, expected.high))


def test_a_slope_is_that_of_least_squares() -> None:
    x, y = [0.1, 0.2, 0.4, 0.7], [0.0, 0.3, 0.2, 0.9]
    one = linregress(x, y)
    half = student.ppf(0.975, 2) * one.stderr
    found = claims_tests.slope({"a": list(zip(x, y, strict=True))})
    assert found == pytest.approx((one.slope, one.slope - half, one.slope + half))


def test_a_slope_over_groups_gives_each_an_intercept() -> None:
    groups = {"a": [(0.0, 1.0), (1.0, 1.4), (2.0, 2.1)], "b": [(3.0, -5.0), (5.0, -4.2)]}
    rows = [(x, float(name == "a"), float(name == "b")) for name, points in groups.items() for x, _ in points]
    design, y = np.array(rows), np.array([y for points in groups.values() for _, y in points])
    solved, *_ = np.linalg.lstsq(design, y, rcond=None)
    variance = np.sum((y - design @ solved) ** 2) / (5 - 3) * np.linalg.inv(design.T @ design)[0, 0]
    half = student.ppf(0.975, 2) * variance**0.5
    found = claims_tests.slope(groups)
    assert found == pytest.approx((solved[0], solved[0] - half, solved[0] + half))


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (Interval(0.05, 0.01, 0.09), "better"),
        (Interval(-0.05, -0.09, -0.01), "worse"),
        (Interval(0.015, 0.001, 0.029), "open"),  # above 0, but less than the margin, and perhaps more
        (Interval(0.01, 0.001, 0.019), "no more than the margin"),
        (Interval(0.05, -0.01, 0.11), "open"),
    ],
)
def test_verdicts(found: Interval, word: str) -> None:
    assert claims_tests.verdict(found) == word


def test_the_benefit_along_a_path(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for family in claims_tests.ARITHMETIC:
        settings = list(claims_design.FAMILIES[family])
        runs = {f"{s}.gtpo": [0.5 + 0.1 * i, 0.5 + 0.1 * i] for i, s in enumerate(settings)}
        runs |= {f"{s}.grpo": [0.5, 0.5] for s in settings}
        write(data, f"path_{family}", runs)
    entropies = ["family,setting,initial entropy"]
    for family in claims_tests.ARITHMETIC:
        entropies += [f"{family},{s},{0.2 * i}" for i, s in enumerate(claims_design.FAMILIES[family])]
    (data / claims_tests.INITIAL).write_text("\n".join(entropies) + "\n")
    everything, tiny, _ = claims_tests.grows("gtpo", "grpo")
    assert everything.found.estimate == pytest.approx(0.5)  # 0.1 of accuracy for 0.2 nats
    assert (everything.count, everything.verdict) == (5 + 5 + 3 + 3, "grows")
    assert tiny.count == 5
    harder = {f: {s: -2.0 * i for i, s in enumerate(claims_design.FAMILIES[f])} for f in claims_tests.ARITHMETIC}
    falling, *_ = claims_tests.grows("gtpo", "grpo", on=lambda: harder)
    assert (falling.found.estimate, falling.verdict) == (pytest.approx(-0.05), "falls")
    monkeypatch.setattr(claims_tests, "FAMILIES", {"tiny": claims_design.FAMILIES["tiny"]})
    (over_all,) = claims_tests.over_all("gtpo", "grpo")
    assert over_all.found.estimate == pytest.approx(0.2)
    assert over_all.count == 5


def test_where_the_filter_acts(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_tests, "FAMILIES", {"tiny": dict.fromkeys(("a", "b", "c"))})
    lines = ["variant,seed,filtered,accuracy at first,accuracy,test accuracy"]
    lines += ["a.gtpo,1,0.02,0.1,0.5,0.9", "a.gtpo,2,0.02,0.1,0.5,0.8"]  # acts
    lines += ["b.gtpo,1,0.001,0.1,0.5,0.9", "b.gtpo,2,0.001,0.1,0.5,0.9"]  # too little
    lines += ["c.gtpo,1,0.2,0.1,0.5,0.9", "c.gtpo,2,0.2,0.1,0.05,0.9"]  # one seed does not learn
    (data / "path_tiny.csv").write_text("\n".join(lines) + "\n")
    write(data, "thresholds_tiny", {"a.never": [0.7, 0.8]})
    assert claims_tests.filter_acts() == {("tiny", "a"): pytest.approx(0.02)}
    write(data, "path_tiny", {f"{s}.grpo": [0.1, 0.3] for s in "abc"}, "accuracy at first")
    assert claims_tests.first_accuracies() == {"tiny": pytest.approx(dict.fromkeys("abc", 0.2))}
    (data / "path_tiny.csv").write_text("\n".join(lines) + "\n")
    (only,) = claims_tests.with_filter()
    assert (only.count, only.found.estimate) == (2, pytest.approx(0.1))


def test_the_effect_of_each_part_is_over_the_combinations_of_the_others(data: Path) -> None:
    """0.1 + 0.4 with the conflict correction - 0.2 with the filter + 0 with the entropy term, + 0.04 if all are on."""
    runs = {}
    for out in ([], ["conflict"], ["filter"], ["entropy"], ["conflict", "filter"], ["conflict", "entropy"],
                ["filter", "entropy"], ["conflict", "filter", "entropy"]):  # fmt: skip
        value = 0.1 + 0.4 * ("conflict" not in out) - 0.2 * ("filter" not in out) + 0.04 * (not out)
        runs[f"t1.8.{'no_' + '_'.join(out) if out else 'gtpo'}"] = [value]
    write(data, "path_tiny", {"t1.8.gtpo": runs.pop("t1.8.gtpo")})
    write(data, "parts_tiny", runs)
    found = [finding.found.estimate for finding in claims_tests.parts("tiny", "t1.8")]
    assert found == pytest.approx([0.41, -0.19, 0.01])


def test_lost_end_tokens_are_counted_over_matched_runs(data: Path) -> None:
    runs = {name: [0.0, 0.0] for name in claims_design.comparisons(RATES)["end_token"]["variants"]}
    for name in runs:
        if name.startswith("presence.") and ".1.2e-3." in name and name.endswith(".grpo"):
            runs[name] = [1.0, 1.0]
    write(data, "end_token", runs, "forgets to stop")
    found = {(shares.low, shares.high): shares for shares in claims_tests.end_token()}
    rate = found["6e-4", "1.2e-3"]
    assert (rate.pairs, rate.at_low, rate.at_high) == (24, 0, 6)  # 12 variants at a rate, two seeds
    reward = found["accuracy", "presence"]
    assert (reward.pairs, reward.at_low, reward.at_high) == (16, 0, 6)
    assert reward.p_value == pytest.approx(2 / 2**6)
    corrected = found["grpo", "grpo_conflict"]
    assert (corrected.pairs, corrected.at_low, corrected.at_high) == (12, 2, 0)  # groups of 8 only
    assert found["g4", "g16"].p_value == 1.0


def test_the_whole_page_and_its_figure_from_runs_that_are_all_there(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GTPO 0.1 above GRPO everywhere, the correction 0.05 above each method, and what differs by no more than seeds."""
    studies = claims_design.tuning() | claims_design.comparisons(RATES)
    for study, sweep in studies.items():
        lines = [",".join(["variant", "seed", *sweep["figures"]])]
        for number, variant in enumerate(sweep["variants"]):
            for seed in sweep["seeds"]:
                value = 0.5 + 0.1 * variant.endswith(".gtpo") + 0.05 * variant.endswith("_conflict") + 0.001 * seed
                last = value - 0.0001 * number
                row = {
                    "accuracy at first": 0.1 + 0.001 * number,
                    "filtered": 0.02,
                    "test accuracy": value,
                    "accuracy": last,
                }
                lines.append(",".join([variant, str(seed), *(str(row.get(name, 0.0)) for name in sweep["figures"])]))
        (data / f"{study}.csv").write_text("\n".join(lines) + "\n")
    cells = [(f, s, 0.1 * (1 + i)) for f, of in claims_design.FAMILIES.items() for i, s in enumerate(of)]
    rows = [f"{family},{setting},{nats}" for family, setting, nats in cells]
    (data / claims_tests.INITIAL).write_text("\n".join(["family,setting,initial entropy", *rows]) + "\n")
    monkeypatch.setattr(write_claims, "DATA", data)
    monkeypatch.setattr(write_claims, "FIGURE", data / "benefit.png")
    page, tables = write_claims.results(), write_claims.tables()
    for question in write_claims.QUESTIONS:
        assert f"| {question.name} | {question.text} | " in page
        assert f"| {question.name} | {question.text} | " in tables
    assert "| Q4 | GTPO over GRPO with the correction | +0.050 (+0.050 to +0.050): **better** |" in page
    every = " +0.100 **better**; ".join(f"`{family}`" for family in claims_design.FAMILIES)
    assert f"| Q3a | GTPO over GRPO | {every} +0.100 **better** |" in page
    assert "| Q10 | runs that forget to stop | 8 open |" in page
    assert "| Q3a | GTPO over GRPO | `tiny` | 5 | +0.100 (+0.100 to +0.100) | **better** |" in tables
    corrected = "4 methods, `tiny` | 4 | +0.050 (+0.050 to +0.050) | **better** |"
    assert f"| Q9a | the correction on each method | {corrected}" in tables
    plain, with_it = "0.502 (0.502) at 1.5e-4", "0.552 (0.552) at 1.5e-4"
    assert f"| grpo | {plain} | {with_it} | {plain} | {with_it} |" in page
    write_claims.draw()
    assert (data / "benefit.png").read_bytes().startswith(b"\x89PNG")
