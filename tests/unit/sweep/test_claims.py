"""docs/claims.md: the arms and tests of round three do what its registration says, and its figures are those of the
files. Figures are computed again here; nothing of scripts/claims computes them."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import arms
import estimates
import numpy as np
import pytest
import round_three
import torch
import write_page
from scipy.stats import ttest_1samp

from gtpo_cli.estimators import holm
from gtpo_cli.objective import Tokens

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "docs" / "claims" / "round_three"

# -- the task ----------------------------------------------------------------------------------------------------------


# -- the arms ----------------------------------------------------------------------------------------------------------


def test_only_right_completions() -> None:
    mask = torch.tensor([[[1, 1, 1, 1], [1, 1, 1, 0]]]).bool()
    tokens = Tokens(mask.long(), mask, torch.tensor([[1.0, -1.0]]), mask, mask, torch.zeros(mask.shape))
    assert arms.positives_only(tokens).tolist() == [[[True] * 4, [False] * 4]]


# -- outcomes and tests ------------------------------------------------------------------------------------------------


def test_estimates_are_scipys_and_holms() -> None:
    sample = [0.1, 0.4, 0.2, 0.5]
    expected = ttest_1samp(sample, 0.0)
    low, high = expected.confidence_interval()
    found = estimates.mean(sample)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert estimates.p_value(sample) == pytest.approx(expected.pvalue)
    assert estimates.p_value([0.0, 0.0]) == 1.0
    assert holm([0.9, 0.01, 0.03, 0.02]) == pytest.approx([0.9, 0.04, 0.06, 0.06])
    assert holm([]) == []


# -- the pages ---------------------------------------------------------------------------------------------------------


def rows(study: str) -> list[dict[str, str]]:
    with (DATA / f"{study}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def by_seed(
    study: str, arm: str, columns: Sequence[str], *, generation: str = "1", seeds: Sequence[int] = range(1, 9)
) -> np.ndarray:
    """The mean of these columns, in percent, for each of the seeds."""
    found = {
        row["seed"]: 100 * fmean(float(row[column]) for column in columns)
        for row in rows(study)
        if (row["arm"], row["generation"]) == (arm, generation)
    }
    assert sorted(found) == [str(seed) for seed in seeds]
    return np.array([found[seed] for seed in sorted(found)])


def interval(sample: np.ndarray) -> tuple[float, float]:
    return tuple(ttest_1samp(sample, 0.0).confidence_interval())


COLUMNS = (["greedy 3"], ["greedy 4", "greedy 5"], ["pass@64 3"], ["pass@64 4", "pass@64 5"])


def cells_of(page: str, *beginning: str) -> list[str]:
    """The cells of the first table row that begins so."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if tuple(cells[: len(beginning)]) == beginning:
            return cells[len(beginning) :]
    raise AssertionError(f"no row {beginning}")


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tables() -> str:
    return (ROOT / "docs" / "claims" / "round_three_tables.md").read_text(encoding="utf-8")


def test_the_tables_are_what_the_script_writes(page: str, tables: str) -> None:
    assert tables == write_page.tables()
    assert page.partition(write_page.START)[2].partition(write_page.END)[0].strip() == write_page.table_of_arms("long")


@pytest.mark.parametrize(("study", "steps"), [("short", 100), ("long", 400)])
def test_means_of_the_arms(tables: str, study: str, steps: int) -> None:
    table = tables.partition(f"after {steps} steps |")[2].partition("\n\n")[0]
    for arm in round_three.COMPARED:
        cells = cells_of(table, arms.ARMS[arm].words)
        for columns, cell in zip(COLUMNS, cells, strict=False):
            sample = by_seed(study, arm, columns)
            low, high = interval(sample)
            assert cell == f"{sample.mean():.1f} ± {(high - low) / 2:.1f}"


@pytest.mark.parametrize(
    ("name", "more", "less"),
    [
        ("GTPO - GRPO", ("short", "gtpo", "1"), ("short", "grpo", "1")),
        ("conflict correction - same weights, random tokens", ("short", "correction", "1"), ("short", "shuffled", "1")),
        ("same weight, spread evenly - GRPO", ("short", "uniform", "1"), ("short", "grpo", "1")),
        ("GRPO, K = 16 - GRPO", ("age", "grpo", "16"), ("short", "grpo", "1")),
        ("GTPO - SFT", ("short", "gtpo", "1"), ("paper", "sft", "1")),
    ],
)
def test_differences(tables: str, name: str, more: tuple[str, str, str], less: tuple[str, str, str]) -> None:
    (line,) = (line for line in tables.splitlines() if f"| {name} | 100 |" in line)
    cells = [cell.strip() for cell in line.strip("|").split("|")][3:]
    for columns, cell in zip(COLUMNS, cells, strict=True):
        sample = by_seed(*more[:2], columns, generation=more[2]) - by_seed(*less[:2], columns, generation=less[2])
        low, high = interval(sample)
        shown = [float(number) for number in re.findall(r"[+-]\d+\.\d", cell)]
        assert shown == pytest.approx([sample.mean(), low, high], abs=0.0501)


def test_figures_in_the_words_of_the_page(page: str) -> None:
    text = " ".join(page.split())
    (base,) = rows("base")
    greedy = {arm: by_seed("long", arm, ["greedy 3"]) for arm in round_three.COMPARED}
    before = 100 * float(base["greedy 3"])
    assert f"right for {before:.0f} % of the test problems before training and for 79 % after 400 steps" in text
    assert {f"{greedy[arm].mean():.0f}" for arm in ("gtpo", "grpo")} == {"79"}
    controls = [greedy[arm] - greedy["correction"] for arm in ("uniform", "shuffled")]
    assert all(0 < sample.mean() < 1 and interval(sample)[1] < 2 for sample in controls)
    five = [by_seed("long", arm, ["pass@64 5"]).mean() for arm in round_three.COMPARED]
    before = 100 * float(base["pass@64 5"])
    assert f"right for {before:.0f} % before training and {min(five):.0f} to {max(five):.0f} % after it" in text
    for study in ("short", "long"):
        sampled, entropy = (
            by_seed(study, "gtpo", [column]) - by_seed(study, "grpo", [column])
            for column in ("pass@1 3", "entropy t1.0")
        )
        assert 0.5 < sampled.mean() < 1  # about a point
        assert interval(sampled)[0] > 0
        assert interval(entropy)[1] < 0  # less random
    sft = by_seed("short", "gtpo", ["greedy 3"]) - by_seed("paper", "sft", ["greedy 3"])
    longer = by_seed("short", "gtpo", COLUMNS[3]) - by_seed("paper", "sft", COLUMNS[3])
    assert f"{-sft.mean():.0f} points above GTPO greedily, and {longer.mean():.0f} points below it" in text
    for arm in ("grpo", "gtpo"):
        for columns in COLUMNS[:2]:
            for k in ("4", "16"):
                older = by_seed("age", arm, columns, generation=k) - by_seed("short", arm, columns)
                assert -2 < interval(older)[0] < interval(older)[1] < 2
        older = by_seed("age", arm, ["pass@1 3"], generation="16") - by_seed("short", arm, ["pass@1 3"])
        assert -2 < older.mean() < -1
    with_kl = [by_seed("short", "gtpo", columns) - by_seed("paper", "grpo_kl", columns) for columns in COLUMNS[:2]]
    assert all(-2 < interval(sample)[0] < interval(sample)[1] < 2 for sample in with_kl)
    rule = [
        interval(by_seed(study, "correction", columns) - by_seed(study, control, columns))
        for study in ("short", "long")
        for control in ("uniform", "shuffled")
        for columns in COLUMNS
    ]
    assert len(rule) == 16
    assert sum(-2 < low and high < 2 for low, high in rule) == 15
    assert "15 do" in text
    means = round_three.tuning_means()
    spread = [100 * (max(means[arm].values()) - min(means[arm].values())) for arm in round_three.COMPARED]
    best = [100 * max(means[arm].values()) for arm in round_three.COMPARED]
    assert f"lie {min(spread):.0f} to {max(spread):.0f} points apart" in text
    assert f"of the seven arms {max(best) - min(best):.1f} points" in text
    forgot = [row for study in ("short", "long") for row in rows(study) if row["forgets to stop"] != "0.0"]
    assert not forgot
