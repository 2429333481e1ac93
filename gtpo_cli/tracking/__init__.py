"""Where the metrics of a run go: metrics.jsonl always, the console, and wandb and TensorBoard where the recipe asks.

`metrics.py` declares every metric once. `opening.py` opens the trackers of a recipe; nothing here imports it, since a
display is more than most commands need.
"""

from gtpo_cli.tracking.jsonl import JsonlTracker, read_metrics
from gtpo_cli.tracking.metrics import METRICS, Metric, find_metric, metrics_table, reward_words
from gtpo_cli.tracking.tracker import Tracker, Trackers

__all__ = [
    "METRICS",
    "JsonlTracker",
    "Metric",
    "Tracker",
    "Trackers",
    "find_metric",
    "metrics_table",
    "read_metrics",
    "reward_words",
]
