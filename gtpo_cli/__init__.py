"""gtpo: fine-tune a language model by reinforcement learning with verifiable rewards (GTPO, arXiv 2508.03772)."""

__version__ = "0.1.0"
