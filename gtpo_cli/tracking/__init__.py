"""Where the metrics of a run go: metrics.jsonl always, the console, and wandb and TensorBoard where the recipe asks.

`metrics.py` declares every metric once. Nothing heavy is imported before `open_trackers` needs it.
"""

from gtpo_cli.tracking.jsonl import JsonlTracker, read_metrics
from gtpo_cli.tracking.metrics import METRICS, Metric, find_metric, metrics_table, reward_words
from gtpo_cli.tracking.tracker import Tracker, Trackers, open_trackers

__all__ = [
    "METRICS",
    "JsonlTracker",
    "Metric",
    "Tracker",
    "Trackers",
    "find_metric",
    "metrics_table",
    "open_trackers",
    "read_metrics",
    "reward_words",
]
