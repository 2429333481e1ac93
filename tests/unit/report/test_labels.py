"""No two figures under one label: in a summary, on the display, on charts, in tables of scores, in a sweep's table."""

from __future__ import annotations

from collections import Counter

from gtpo_cli.pages.run_charts import CURVES, style
from gtpo_cli.terminal.display import _CELLS, _ROWS
from gtpo_cli.tools.report.tables import SCORES, score_words
from gtpo_cli.tools.sweep.figures import default_figures
from gtpo_cli.tracking import METRICS, changes

OWN = ["my_rewards:length", "pkg.rewards:accuracy"]
LOGGED = [*METRICS, "rewards/length_mean", *(f"rewards/{name}_mean" for name in OWN)]
SCORED = [*SCORES, "pass@4", "first_pass@4", "maj@4", "length", *OWN]


def test_each_figure_has_a_label_of_its_own() -> None:
    rows = [dict.fromkeys(LOGGED, 0.5)] * 2
    labels = {
        "summary": [change.words for change in changes(rows)],
        "display": [shown.label for shown in (*_ROWS, *_CELLS)],
        "charts": [curve.title for curve in CURVES],
        "chart files": [curve.name for curve in CURVES],
        "scores": [score_words(name) for name in SCORED],
        "sweep": list(default_figures("gsm8k")),
    }
    twice = {where: [label for label, count in Counter(found).items() if count > 1] for where, found in labels.items()}
    assert twice == {where: [] for where in labels}
    assert {"length", "length penalty"} <= set(labels["summary"]) & set(labels["scores"])


def test_no_two_of_24_curves_look_alike() -> None:
    assert len({style(index) for index in range(24)}) == 24
