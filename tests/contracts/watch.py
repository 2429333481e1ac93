"""What an operation really allocates: the largest storage behind any tensor that torch made while it ran."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """`with LargestTensor() as seen: ...` then `seen.bytes`: size of the largest storage any operation returned.

    Backward runs in the calling thread on a CPU, so it is seen too.
    """

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.untyped_storage().nbytes() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.bytes = max([self.bytes, *sizes])
        return out
