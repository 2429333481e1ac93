"""Seeds for everything random, derived from the recipe's one seed.

Each use gets a seed of its own from (seed, purpose, number), so that what step 400 samples depends on nothing that
happened before it but the weights: a resumed run needs no generator state to go on exactly as it would have.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, purpose: str, number: int = 0) -> int:
    """A 63-bit seed for one use; equal arguments give equal seeds on every machine."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
