"""gtpo: fine-tune a language model by reinforcement learning with verifiable rewards (GTPO, arXiv 2508.03772).

For loops of one's own (docs/library.md) the names in `__init__.pyi` can be imported from here. They are looked up when
they are asked for, so `import gtpo_cli` imports nothing else.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
