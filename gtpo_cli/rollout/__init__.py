"""From problems to a TokenBatch: sample, score, collate."""

from gtpo_cli.data import Prompt
from gtpo_cli.rollout.collate import collate
from gtpo_cli.rollout.sample import sample
from gtpo_cli.rollout.score import open_scorer, score

__all__ = ["Prompt", "collate", "open_scorer", "sample", "score"]
