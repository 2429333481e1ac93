"""The report: figures in it against the run folder, self-contained, escaped, deterministic; charts and tables."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from stored_runs import run_at, store

from gtpo_cli.errors import EvaluationError
from gtpo_cli.evaluation.store import COLUMNS, OWN_REWARD
from gtpo_cli.pages.figures import chart_files
from gtpo_cli.pages.run_charts import evaluation_charts, running_mean, training_charts
from gtpo_cli.pages.run_record import RunRecord, read_run
from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.tools.report.comparison import unlike
from gtpo_cli.tools.report.page import before_and_after, render, write_report
from gtpo_cli.tools.report.tables import benchmark_table, csv_text, markdown, other_scores_table

ROWS = [
    {
        "step": step,
        "train/accuracy_rate": step / 60,
        "train/strict_format_rate": 0.5,
        "train/format_rate": 0.5,
        "entropy/mean": 0.2 if step != 7 else float("nan"),
        "entropy/filtered_share": 0.0,
        "conflict/share": 0.3,
        "completions/length_mean": 30.0,
    }
    | ({"eval/arithmetic/accuracy_rate": 0.4} if step % 20 == 0 else {})
    for step in range(1, 61)
]
HOSTILE = "<script>alert(1)</script>&"


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    with Scorer(RewardsRecipe()) as scorer:
        yield scorer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, scorer: Scorer) -> list[RunRecord]:
    folder = tmp_path_factory.mktemp("runs")
    gtpo = run_at(folder / "gtpo_1", ROWS)
    store(gtpo, scorer, ["000", "100", "000", "011"], subject="base")
    store(gtpo, scorer, ["111", "110", "100", "011"], text=HOSTILE)
    grpo = run_at(folder / "grpo", [row | {"policy/kl": 0.1} for row in ROWS], objective={"name": "grpo"})
    store(grpo, scorer, ["000", "100", "000", "011"], subject="base")
    store(grpo, scorer, ["101", "010", "000", "111"], temperature=0.6)
    sft = run_at(folder / "sft", [{"step": n, "optim/loss": 5 / n} for n in range(1, 31)], objective={"name": "sft"})
    return [read_run(run) for run in (gtpo, grpo, sft)]


class Reader(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data + " "


@pytest.fixture(scope="module")
def page(runs: list[RunRecord]) -> str:
    return render(runs, [*training_charts(runs), *evaluation_charts(runs)])


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_the_page_loads_nothing_and_runs_one_script_that_it_names_by_its_hash(page: str, reader: Reader) -> None:
    loading = [
        value
        for _, attributes in reader.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "data", "action") and not (value or "").startswith("#")
    ]
    assert loading == []
    scripts = [attributes.get("type") for tag, attributes in reader.tags if tag == "script"]
    assert scripts == ["application/json"] * page.count("<figure id=") + [None]
    (text,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:" in page
    assert "The MIT License (MIT)" in text
    assert "Copyright (c) 2022 Leon Sorokin" in text
    assert "//github.com" not in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_the_page_carries_the_values_of_its_curves(runs: list[RunRecord], page: str) -> None:
    blocks = dict(re.findall(r'<figure id="(\w+)">.*?<script type="application/json">(.*?)</script>', page, re.DOTALL))
    charts = {name: json.loads(block) for name, block in blocks.items()}
    assert list(charts) == [chart.name for chart in (*training_charts(runs), *evaluation_charts(runs))]
    accuracy = charts["accuracy"]
    assert (accuracy["x"], accuracy["unit"], accuracy["level"]) == ("step", None, None)
    assert [(one["label"], one["colour"], one["dash"]) for one in accuracy["series"]] == [
        ("gtpo_1", "#1A80BB", ""), ("grpo", "#D55E00", "6 3"),
    ]  # fmt: skip
    line, test = accuracy["series"][0]["parts"]
    assert line["x"] == list(range(1, 61))
    assert line["columns"] == [
        {"name": "value", "kind": "line", "values": [float(f"{row['train/accuracy_rate']:.5g}") for row in ROWS]}
    ]
    dots = {"name": "arithmetic test", "kind": "dots", "values": [0.4] * 3}
    assert (test["x"], test["columns"]) == ([20, 40, 60], [dots])
    entropy = charts["entropy"]
    assert entropy["level"] == [pytest.approx(math.log(2)), "ln 2"]
    assert entropy["series"][0]["parts"][0]["columns"][0]["values"][5:8] == [0.2, None, 0.2]  # NaN is no JSON
    gtpo = charts["arithmetic_pass_at_k"]["series"][1]["parts"]
    scores = runs[0].evaluations[1].results.scores
    assert [part["x"] for part in gtpo] == [[1, 3], [1, 3]]
    assert [(column["name"], column["kind"]) for part in gtpo for column in part["columns"]] == [
        ("pass@k", "line"), ("from", "low"), ("to", "high"), ("first k", "rings"),
    ]  # fmt: skip
    assert gtpo[0]["columns"][1]["values"] == [
        pytest.approx(scores[f"pass@{k}"].interval.low, rel=1e-4) for k in (1, 3)
    ]


def test_text_from_models_is_escaped(page: str, reader: Reader) -> None:
    assert HOSTILE not in page
    assert HOSTILE in reader.text


def test_the_page_begins_with_the_curves_then_a_question_then_tables(page: str) -> None:
    places = [page.index(what) for what in (
        "<h1>", '<figure id="accuracy">', "<h2>Before and after: gtpo_1</h2>", "<h2>Runs</h2>", "<h2>Benchmarks</h2>",
        "<h2>More curves</h2>", '<figure id="entropy">', "<summary>recipe</summary>")]  # fmt: skip
    assert places == sorted(places)
    assert places[1] < page.index("<table>")


def sampled(question: str, text: str, accuracy: float) -> str:
    row: dict[str, object] = {name: [] for name in (
        "tokens", "token_ids", "logprobs", "entropy", "forward", "backward", "lambda", "coefficient")}  # fmt: skip
    row |= {"problem": question, "question": question, "gold": "7", "completion": 0, "text": text, "plugins": {},
            "finish_reason": "stop", "reward": accuracy, "format": 1.0, "accuracy": accuracy,
            "correct": accuracy > 0, "score": None, "extracted": None,
            "advantage": 0.0, "mean_entropy": 0.1, "kept": True}  # fmt: skip
    return json.dumps(row) + "\n"


def test_before_and_after_are_of_the_same_problems_under_the_same_conditions(tmp_path: Path, scorer: Scorer) -> None:
    run = run_at(tmp_path / "one", ROWS)
    store(run, scorer, ["000", "100"], subject="base", temperature=0.5)
    store(run, scorer, ["000", "100"])
    assert before_and_after(read_run(run)) is None, "another temperature"
    store(run, scorer, ["000", "100"], subject="base", gold="7")
    assert before_and_after(read_run(run)) is None, "other gold answers"
    store(run, scorer, ["100", "000", "000"], subject="base", problems=3)
    pair = before_and_after(read_run(run))
    assert pair is not None
    assert (pair.before.question, pair.before.right, pair.after.right) == ("q1", True, False)
    assert "of 2 questions, 1 became right and 1 became wrong" in pair.note


def test_own_rewards_read_other_columns_if_more_problems_are_asked(tmp_path: Path, scorer: Scorer) -> None:
    run = run_at(tmp_path / "one", ROWS)
    later = store(run, scorer, ["000", "100"], settings={COLUMNS: "a", f"{OWN_REWARD}m:f": "a"})
    for settings, different in (
        ({COLUMNS: "b", f"{OWN_REWARD}m:f": "a"}, []),
        ({COLUMNS: "b", f"{OWN_REWARD}m:f": "b"}, [f"{OWN_REWARD}m:f"]),
    ):
        base = store(run, scorer, ["100", "000", "000"], subject="base", settings=settings)
        assert [name for name, *_ in unlike(base, later)] == different


@pytest.mark.parametrize(("late", "same"), [("3+4", True), ("9-2", False)])
def test_without_evaluations_the_stored_steps_tell_and_say_if_the_questions_differ(
    tmp_path: Path, late: str, same: bool
) -> None:
    run = run_at(tmp_path / "one", ROWS)
    run.samples.mkdir()
    (run.samples / "step-000001.jsonl").write_text(sampled("3+4", "first", 0.0) + sampled("1+6", "other", 0.0))
    assert before_and_after(read_run(run)) is None, "one step is no before and after"
    (run.samples / "step-000050.jsonl").write_text(sampled("2+5", "other", 0.0) + sampled(late, "last", 10.0))
    pair = before_and_after(read_run(run))
    assert pair is not None
    assert pair.same is same
    before, after = pair.before, pair.after
    if same:
        assert (before.when, before.question, before.text, before.right) == ("step 1", "3+4", "first", False)
        assert (after.when, after.question, after.text, after.right) == ("step 50", "3+4", "last", True)
        assert "both early and late" in pair.note
    else:
        assert (before.question, after.question) == ("3+4", "2+5")
        assert pair.note.startswith("Two training questions")


def test_curves_draw_the_numbers(runs: list[RunRecord]) -> None:
    chart = next(chart for chart in training_charts(runs) if chart.name == "accuracy")
    axes = chart.draw().axes[0]
    lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines}
    assert lines["gtpo_1"][-1] == pytest.approx(60 / 60)  # a window of 60 // 40 = 1 step
    assert len(lines["gtpo_1"]) == 60
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in points] == [[20, 40, 60]] * 2
    entropy = next(chart for chart in training_charts(runs) if chart.name == "entropy").draw().axes[0]
    assert any(np.allclose(np.asarray(line.get_ydata(), dtype=float), np.log(2)) for line in entropy.lines)
    assert "ln 2" in [text.get_text() for text in entropy.texts]
    ks = evaluation_charts(runs)[0].draw().axes[0]
    drawn = {str(line.get_label()): list(line.get_ydata()) for line in ks.lines if str(line.get_label())[0] != "_"}
    scores = runs[0].evaluations[1].results.scores
    assert drawn["gtpo_1"] == [scores["pass@1"].interval.estimate, scores["pass@3"].interval.estimate]
    assert list(drawn) == ["builtin:tiny (base)", "gtpo_1", "grpo"]  # the base of two runs once


def test_running_mean_against_a_loop_and_with_gaps() -> None:
    rng = np.random.default_rng(0)
    values = rng.random(50)
    values[[3, 4, 20]] = np.nan
    expected = [np.nanmean(values[max(0, i - 6) : i + 1]) for i in range(50)]
    assert running_mean(values, 7) == pytest.approx(expected)
    assert running_mean(np.array([np.nan, np.nan, 2.0]), 2) == pytest.approx([np.nan, np.nan, 2.0], nan_ok=True)


def test_the_same_runs_give_the_same_bytes(runs: list[RunRecord], page: str) -> None:
    charts = [*training_charts(runs), *evaluation_charts(runs)]
    assert render(runs, charts) == page
    assert chart_files(charts[0]) == chart_files(training_charts(runs)[0])  # drawn anew


@pytest.mark.slow
def test_files_for_papers(runs: list[RunRecord], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("not yours")
    page = write_report(runs, tmp_path)
    assert page == tmp_path / "report.html"
    assert (tmp_path / "mine.txt").read_text() == "not yours"
    for chart in ("accuracy", "arithmetic_pass_at_k"):
        ElementTree.parse(tmp_path / "charts" / f"{chart}.svg")
        png = (tmp_path / "charts" / f"{chart}.png").read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = (int.from_bytes(png[a : a + 4], "big") for a in (16, 20))
        assert (width, height) == (1380, 900)  # 4.6 x 3 inches at 300 dots an inch
    assert {file.name for file in tmp_path.iterdir()} >= {"table.md", "table.csv"}
    (tmp_path / "file").write_text("")
    with pytest.raises(EvaluationError, match=r"cannot be written .* --out"):
        write_report(runs, tmp_path / "file" / "report")


def test_the_table_by_hand(runs: list[RunRecord]) -> None:
    table = benchmark_table(runs)
    assert table.columns == ("1", "3")
    rows = {(row.estimator, row.method): row for row in table.rows}
    assert list(rows) == [
        (estimator, method)
        for estimator in ("pass@k", "first-k pass@k", "maj@k")
        for method in ("base", "GTPO", "GRPO")
    ]
    base, gtpo, grpo = (rows["pass@k", method] for method in ("base", "GTPO", "GRPO"))
    # right completions of 12: base 3, GTPO 8, GRPO 6; solved problems of 4: 2, 4, 3
    estimates = [[cell.estimate if cell else None for cell in row.cells] for row in (base, gtpo, grpo)]
    assert estimates == [[0.25, 0.5], [pytest.approx(8 / 12), 1.0], [0.5, 0.75]]
    assert (base.best, gtpo.best, grpo.best) == ((False, False), (True, True), (False, False))
    assert (base.note, gtpo.note, grpo.note) == (None, None, 1)
    assert rows["maj@k", "GTPO"].cells[0] is None
    assert [row.best for key, row in rows.items() if key[0] == "first-k pass@k"] == [
        (False, False),
        (True, True),
        (False, False),
    ]


def test_a_mixture_has_a_row_for_each_part_and_for_their_mean(tmp_path: Path, scorer: Scorer) -> None:
    run = run_at(tmp_path / "run")
    right = {"base": ["111", "000", "100"], "step-000010": ["111", "110", "111"]}
    for subject, marks in right.items():
        store(
            run, scorer, marks, subject=subject, benchmark="mixture", part=lambda number: "odd" if number % 2 else "2"
        )
    table = other_scores_table([read_run(run)])
    accuracy = table.columns.index("accuracy")
    shown = [(row.benchmark, row.model, cell.estimate) for row in table.rows if (cell := row.cells[accuracy])]
    base, trained = (row[1] for row in shown[:2])
    assert shown == [
        ("mixture", base, pytest.approx(4 / 9)), ("mixture", trained, pytest.approx(8 / 9)),
        ("odd", base, pytest.approx(4 / 6)), ("odd", trained, 1.0),
        ("2", base, 0.0), ("2", trained, pytest.approx(2 / 3)),
        ("mean of these", base, pytest.approx(1 / 3)), ("mean of these", trained, pytest.approx(5 / 6)),
    ]  # fmt: skip
    assert base != trained
    groups = re.findall(r'<tr class="group"><th[^>]*><span>(.*?)</span>', render([read_run(run)], []))
    assert groups[-4:] == ["mixture", "odd", "2", "mean of these"]


def test_markdown_and_csv_hold_the_same_figures(runs: list[RunRecord]) -> None:
    table = benchmark_table(runs)
    gtpo = table.rows[1].cells[0]
    assert gtpo is not None
    low, high = f"{100 * gtpo.low:.1f}", f"{100 * gtpo.high:.1f}"
    assert f"| arithmetic | pass@k | GTPO | gtpo_1 step-000010 | **66.7** ({low} to {high}) | **100.0** " in markdown(
        table
    )
    assert "[1] evaluated differently" in markdown(table)
    rows = list(csv.DictReader(io.StringIO(csv_text(runs))))
    found = next(row for row in rows if row["method"] == "GTPO" and row["score"] == "pass@1")
    assert [float(found[name]) for name in ("estimate", "low_95", "high_95")] == list(gtpo)
    assert {row["score"] for row in rows} >= {"accuracy", "first_pass@3", "maj@3", "mean_length"}


def test_a_run_without_anything_is_refused_and_one_without_evaluation_is_not(
    tmp_path: Path, runs: list[RunRecord]
) -> None:
    with pytest.raises(EvaluationError, match="nothing to report yet"):
        read_run(run_at(tmp_path / "empty"))
    write_report([runs[2]], tmp_path / "out")
    assert not (tmp_path / "out" / "table.md").exists()
    assert [chart.name for chart in training_charts([runs[2]])] == ["loss"]


def test_reporting_imports_no_torch() -> None:
    code = (
        "import sys\nfrom gtpo_cli.tools.report import comparison, page, tables\n"
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_test_split_is_shown_even_if_more_training_problems_were_asked(tmp_path: Path, scorer: Scorer) -> None:
    run = run_at(tmp_path / "run", ROWS)
    store(run, scorer, ["100", "000"])
    store(run, scorer, ["111"] * 3, split="train")
    shown = re.sub(r"<[^>]+>|\s+", " ", render([read_run(run)], []))
    assert re.search(r"arithmetic test +step-000010 16\.7 ", shown)
    assert "arithmetic train" not in shown


def test_another_split_is_called_by_its_name(tmp_path: Path, scorer: Scorer) -> None:
    run = run_at(tmp_path / "run", ROWS)
    store(run, scorer, ["111", "000"], split="train")
    assert re.search(r"arithmetic train +step-000010 50\.0 ", re.sub(r"<[^>]+>|\s+", " ", render([read_run(run)], [])))
