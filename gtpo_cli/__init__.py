"""gtpo: fine-tune a language model by reinforcement learning with verifiable rewards (GTPO, arXiv 2508.03772).

Your own training loop (docs/library.md) can import the names in `__init__.pyi` from here. They are looked up on first
use, so `import gtpo_cli` imports nothing else.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
