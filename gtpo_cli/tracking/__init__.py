"""Tracking of a run's metrics: always metrics.jsonl and the console; wandb and TensorBoard if the recipe says so.

`metrics.py` declares every metric once. `opening.py` opens the trackers of a recipe. It is not imported here, since
most commands need no display.
"""

from gtpo_cli.tracking.jsonl import JsonlTracker, read_metrics
from gtpo_cli.tracking.metrics import METRICS, Metric, changes, find_metric, metrics_table, reward_words
from gtpo_cli.tracking.tracker import Tracker, Trackers

__all__ = [
    "METRICS",
    "JsonlTracker",
    "Metric",
    "Tracker",
    "Trackers",
    "changes",
    "find_metric",
    "metrics_table",
    "read_metrics",
    "reward_words",
]
