"""docs/claims.md: the arms and tests of round three do what its registration says, and its figures are those of the
files. Figures are computed again here; nothing of scripts/claims computes them."""

from __future__ import annotations

import csv
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import analysis
import arms
import chains
import estimates
import numpy as np
import pytest
import round_three
import runs
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


def test_a_run_that_is_recorded_is_not_made_again(tmp_path: Path) -> None:
    run = runs.Run("tuning", "grpo", "1e-4", 1, tunes=True)
    line = {"study": "tuning", "arm": "grpo", "rate": "1e-4", "seed": 1, "steps": 100, "generation": 1}
    record = tmp_path / "tuning.csv"
    runs.append(record, [line])
    runs.make_all([run], tmp_path / "build", record)
    assert not (tmp_path / "build").exists()


# -- the page ----------------------------------------------------------------------------------------------------------


def rows(study: str) -> list[dict[str, str]]:
    with (DATA / f"{study}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def by_seed(study: str, arm: str, columns: Sequence[str]) -> np.ndarray:
    """The mean of these columns in each seed that has all seven arms."""
    count = Counter(row["seed"] for row in rows(study))
    found = {r["seed"]: fmean(float(r[c]) for c in columns) for r in rows(study) if r["arm"] == arm}
    return np.array([found[seed] for seed in sorted(found) if count[seed] == 7])


COLUMNS = (["greedy 3"], ["greedy 4", "greedy 5"], ["pass@64 3"], ["pass@64 4", "pass@64 5"])


def line_of(page: str, *beginning: str) -> list[str]:
    """The cells of the table's row that begins so."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if tuple(cells[: len(beginning)]) == beginning:
            return cells[len(beginning) :]
    raise AssertionError(f"no row {beginning}")


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")


def test_the_tables_are_what_the_script_writes(page: str) -> None:
    assert page.partition(write_page.MARKER)[2].strip() == write_page.tables().strip()


def test_means_of_the_arms(page: str) -> None:
    short = page.partition("after 100 steps |")[2].partition("\n\n")[0]
    for arm in round_three.COMPARED:
        cells = line_of(short, arms.ARMS[arm].words)
        for columns, cell in zip(COLUMNS, cells, strict=False):
            sample = by_seed("short", arm, columns)
            low, high = ttest_1samp(sample, 0.0).confidence_interval()
            assert cell == f"{100 * sample.mean():.1f} ± {50 * (high - low):.1f}"


def test_differences(page: str) -> None:
    asked = page.partition("## The registered questions")[2]
    for more, less in (("gtpo", "grpo"), ("correction", "shuffled"), ("uniform", "grpo")):
        pair = f"{arms.ARMS[more].words} - {arms.ARMS[less].words}"
        (question,) = (words for name, words in write_page.ASKED.items() if (more, less) in analysis.QUESTIONS[name])
        cells = line_of(asked, question, pair, "100")
        for columns, cell in zip(COLUMNS, cells, strict=True):
            sample = by_seed("short", more, columns) - by_seed("short", less, columns)
            low, high = ttest_1samp(sample, 0.0).confidence_interval()
            assert cell.startswith(f"{100 * sample.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) ")
