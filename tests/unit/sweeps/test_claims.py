"""docs/claims.md: the arms and tests of round three do what its registration says, and its figures are those of the
files. Figures are computed again here; nothing of scripts/claims computes them."""

from __future__ import annotations

import csv
import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import analysis
import arms
import chains
import claim_runs
import estimates
import numpy as np
import pytest
import round_three
import second_subject
import torch
import write_page
from outcomes import sampled_scores
from scipy.stats import ttest_1samp

from gtpo_cli.evaluation.records import EvaluatedCompletion, EvaluatedProblem
from gtpo_cli.recipe.schema import ObjectiveRecipe
from gtpo_cli.training import step

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "docs" / "claims" / "round_three"

# -- the task ----------------------------------------------------------------------------------------------------------


def test_a_chain_by_hand() -> None:
    assert chains.worked("12+7-45+3") == ("12+7=19 19-45=-26 -26+3=-23", -23)


def test_no_question_stands_in_two_splits_and_a_larger_count_begins_with_a_smaller() -> None:
    found = {split: chains.questions(split, 3, 300) for split in ("train", "validation", "test")}
    assert len(set().union(*found.values())) == 900
    assert chains.questions("test", 3, 100) == found["test"][:100]
    assert all(len(re.findall(r"[+-]", question)) == 5 for question in chains.questions("test", 5, 50))


def test_demonstrations_are_right_and_have_their_faults_as_often_as_registered() -> None:
    rows = chains.demonstrations(random.Random(1), 4000)
    whole = [(question, text) for question, text in rows if text.endswith("</answer>") and "<answer>" in text]
    for question, text in whole:
        assert text.partition("<answer>")[2] == f"{chains.worked(question)[1]}</answer>"
    assert {chains.split_of(question) for question, _ in rows} == {"train"}
    assert sum("=" not in text for _, text in rows) / 4000 == pytest.approx(0.6, abs=0.03)
    assert sum(text.count(">") < 4 for _, text in rows) / 4000 == pytest.approx(0.1, abs=0.02)


# -- the arms ----------------------------------------------------------------------------------------------------------

MASK = torch.tensor([[[1, 1, 1, 1], [1, 1, 1, 0]]]).bool()
WEIGHTS = torch.tensor([[[2.0, 2.0, 1.0, 2.0], [0.0, 0.0, 1.0, 1.0]]])  # 1 at padding
A = torch.tensor([[1.0, -1.0]])


def test_the_controls_by_hand() -> None:
    generator = torch.Generator().manual_seed(1)
    even = arms.spread(WEIGHTS, MASK, A, generator)
    assert torch.allclose(even[MASK], torch.tensor([1.75] * 4 + [1 / 3] * 3))
    assert arms.positives_only(WEIGHTS, MASK, A, generator).tolist() == [[[2.0, 2.0, 1.0, 2.0], [0.0] * 4]]


def test_shuffled_weights_are_the_same_at_places_that_are_equally_likely() -> None:
    generator, places = torch.Generator().manual_seed(1), Counter()
    for _ in range(600):
        mixed = arms.shuffled(WEIGHTS, MASK, A, generator)
        assert sorted(mixed[0, 0].tolist()) == [1.0, 2.0, 2.0, 2.0]
        assert sorted(mixed[0, 1, :3].tolist()) == [0.0, 0.0, 1.0]
        places[int(mixed[0, 0].argmin()), int(mixed[0, 1, :3].argmax())] += 1
    assert len(places) == 12
    assert all(25 <= count <= 80 for count in places.values())  # 50 each


def test_a_control_is_in_force_in_the_step_and_afterwards_is_not() -> None:
    recipe = ObjectiveRecipe.model_validate({"name": "grpo", "conflict": {"enabled": True}})
    tokens = {
        "completion_ids_BGT": torch.tensor([[[5, 6, 7, 2], [5, 8, 2, 0]]]),
        "completion_mask_BGT": MASK,
        "rewards_BG": torch.tensor([[1.0, 0.0]]),
        "max_completion_tokens": 4,
    }
    own = step.group_terms(recipe, **tokens)
    assert own.weights_BGT[MASK].tolist() == [2, 1, 1, 2, 0, 1, 0]  # 5 at the start, 2 at the end
    with arms.in_force(arms.ARMS["uniform"], 1):
        found = step.group_terms(recipe, **tokens)
    assert torch.allclose(found.weights_BGT[MASK], torch.tensor([1.5] * 4 + [1 / 3] * 3))
    assert torch.equal(step.group_terms(recipe, **tokens).weights_BGT, own.weights_BGT)


# -- outcomes and tests ------------------------------------------------------------------------------------------------


def test_pass_and_majority_of_a_problem_by_hand() -> None:
    def completion(answer: str | None, correct: bool) -> EvaluatedCompletion:
        return EvaluatedCompletion("", 1, "stop", 0.0, answer, correct, True, True, True, False, {})

    answers = [completion("7", True)] * 16 + [completion("8", False)] * 24 + [completion(None, False)] * 24
    scores = sampled_scores([EvaluatedProblem("1", "q", "7", tuple(answers))])
    assert scores["pass@1"] == pytest.approx(0.25)
    assert scores["pass@4"] == pytest.approx(1 - (48 * 47 * 46 * 45) / (64 * 63 * 62 * 61))
    assert scores["pass@64"] == 1.0
    assert scores["maj@64"] == 0.0  # 24 votes for 8


def test_estimates_are_scipys_and_holms() -> None:
    sample = [0.1, 0.4, 0.2, 0.5]
    expected = ttest_1samp(sample, 0.0)
    low, high = expected.confidence_interval()
    found = estimates.mean(sample)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert estimates.p_value(sample) == pytest.approx(expected.pvalue)
    assert estimates.p_value([0.0, 0.0]) == 1.0
    assert estimates.holm([0.9, 0.01, 0.03, 0.02]) == pytest.approx([0.9, 0.04, 0.06, 0.06])


@pytest.mark.parametrize(
    ("sample", "word"),
    [
        ([0.10, 0.11, 0.12], "better"),
        ([-0.10, -0.11, -0.12], "worse"),
        ([0.010, 0.011, 0.012], "no more than the margin"),
        ([-0.1, 0.0, 0.1], "open"),
    ],
)
def test_verdicts(sample: list[float], word: str) -> None:
    assert estimates.verdict(estimates.mean(sample)) == word


def test_accuracy_at_matched_entropy_by_hand() -> None:
    row = {}
    for temperature, nats, accuracy in ((0.5, 0.1, 0.8), (0.7, 0.2, 0.7), (1.0, 0.4, 0.5), (1.3, 0.6, 0.2)):
        row |= {f"entropy t{temperature}": str(nats), f"accuracy t{temperature}": str(accuracy)}
    assert analysis.at_entropy(row, 0.3) == pytest.approx(0.6)
    assert analysis.at_entropy(row, 0.05) == pytest.approx(0.8)


def test_each_arm_takes_its_best_rate_and_of_equal_ones_the_lowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = {"grpo": (0.1, 0.3, 0.2, 0.0), "gtpo": (0.2, 0.5, 0.5, 0.1)}
    lines = ["arm,rate,greedy 3"]
    for arm, values in accuracies.items():
        for rate, value in zip(round_three.RATES, values, strict=True):
            lines += [f"{arm},{rate},{value - 0.05}", f"{arm},{rate},{value + 0.05}"]
    (tmp_path / "tuning.csv").write_text("\n".join(lines))
    monkeypatch.setattr(round_three, "RECORDS", tmp_path)
    assert round_three.chosen_rates() == {"grpo": "5e-5", "gtpo": "5e-5"}


def test_every_registered_run_is_one_of_its_own() -> None:
    planned = round_three.tuning() + [run for study in round_three.comparisons().values() for run in study]
    assert len({run.key for run in planned}) == len(planned) == 72 + 56 + 56 + 32 + 16
    assert not {run.seed for run in round_three.tuning()} & set(round_three.SEEDS)
    real = second_subject.real_runs()
    assert len({run.key for run in real}) == len(real) == 12
    assert [run.seed for run in real] == [1] * 4 + [2] * 4 + [3] * 4  # seed by seed


def test_a_run_that_is_recorded_is_not_made_again(tmp_path: Path) -> None:
    run = claim_runs.Run("tuning", "grpo", "1e-4", 1, tunes=True)
    line = {"study": "tuning", "arm": "grpo", "rate": "1e-4", "seed": 1, "steps": 100, "generation": 1}
    record = tmp_path / "tuning.csv"
    claim_runs.append(record, [line])
    claim_runs.make_all([run], tmp_path / "build", record)
    assert not (tmp_path / "build").exists()


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


def of_real(arm: str, column: str) -> np.ndarray:
    return by_seed("real", arm, [column], seeds=second_subject.REAL_SEEDS)


def test_the_second_subject(page: str, tables: str) -> None:
    section = tables.partition("## The second subject")[2].partition("\n## ")[0]
    columns = ("greedy", "pass@16", "pass@1", "maj@16")
    for arm in second_subject.REAL_ARMS:
        for column, cell in zip(columns, cells_of(section, arms.ARMS[arm].words), strict=False):
            sample = of_real(arm, column)
            low, high = interval(sample)
            assert cell == f"{sample.mean():.1f} ± {(high - low) / 2:.1f}"
    for more, less in itertools.combinations(second_subject.REAL_ARMS, 2):
        for column in columns:
            low, high = interval(of_real(more, column) - of_real(less, column))
            assert low < 0 < high
            assert max(-low, high) > 2
    text = " ".join(page.split())
    (start,) = rows("real_start")
    ends = {column: [of_real(arm, column).mean() for arm in second_subject.REAL_ARMS] for column in columns}
    greedy, sampled = ends["greedy"], ends["pass@1"]
    left = f"where SFT had left the model ({100 * float(start['greedy']):.0f} %)"
    assert f"end at {min(greedy):.0f} to {max(greedy):.0f} %, {left}" in text
    before = 100 * float(start["pass@1"])
    assert f"rise from {before:.0f} to between {min(sampled):.0f} and {max(sampled):.0f} %" in text
    entropies = [of_real(arm, "entropy").mean() / 100 for arm in second_subject.REAL_ARMS]
    reach = ends["pass@16"]
    falls = f"from {100 * float(start['pass@16']):.0f} to between {min(reach):.0f} and {max(reach):.0f} %"
    assert f"pass@16 falls {falls}, and the entropy from {float(start['entropy']):.2f} to about 0.1" in text
    assert 0.08 < min(entropies) < max(entropies) < 0.12


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
