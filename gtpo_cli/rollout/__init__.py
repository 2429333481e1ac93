"""From problems to a TokenBatch: sample, score, collate."""

from gtpo_cli.rollout.collate import collate
from gtpo_cli.rollout.sample import Prompt, sample
from gtpo_cli.rollout.score import score

__all__ = ["Prompt", "collate", "sample", "score"]
