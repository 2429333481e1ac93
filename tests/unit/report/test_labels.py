"""No two figures under one label: in a summary, on the display, on charts, in tables of scores, in a sweep's table."""

from __future__ import annotations

import re
from collections import Counter

from gtpo_cli.evaluation.records import is_reward
from gtpo_cli.report.charts import CURVES
from gtpo_cli.report.inspection import StoredCompletion
from gtpo_cli.report.inspection_views import headline
from gtpo_cli.report.tables import SCORES, score_unit, score_words
from gtpo_cli.sweeps.spec import default_figures
from gtpo_cli.tracking import METRICS, changes
from gtpo_cli.tracking.display import _CELLS, _ROWS

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


def test_the_penalty_on_length_is_in_points_and_is_no_length() -> None:
    assert is_reward("length")
    assert (score_words("length"), score_unit("length")) == ("length penalty", "points")
    assert (score_words("mean_length"), score_unit("mean_length")) == ("length", "tokens")
    penalised = StoredCompletion(
        "p", "1+1", "2", 0, "2", "stop", 9.75, 10.0, 0.0, "2", {"length": -0.25}, 0.5, 0.1, True,
        token_texts=["2"], token_ids=[5], logprobs=[-0.1], entropy=[0.1], forward=[0], backward=[0], weights=[1.0],
    )  # fmt: skip
    said = headline(penalised)
    assert "length penalty -0.25" in said
    assert not re.search(r"length (?!penalty)", said)
