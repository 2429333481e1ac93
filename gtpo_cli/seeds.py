"""Seeds for everything random, derived from the recipe's one seed.

Each use gets its own seed from (seed, purpose, number). So the samples of step 400 depend on earlier steps only through
the weights, and a resumed run needs no generator state to continue exactly as before.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, purpose: str, number: int = 0) -> int:
    """Derive a 63-bit seed for one use. Equal arguments give equal seeds on every machine."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
