"""Eq. 10's rule: is the entropy filter on in a run? Torch-free, so that reports can ask too.

`objective/entropy.py` applies it to completions, and `gtpo_cli.objective` exports it.
"""

from __future__ import annotations

import math
from typing import Literal

LN_2 = math.log(2.0)
FilterMode = Literal["auto", "always", "never"]


def filter_is_on(initial_entropy: float, enabled: FilterMode = "auto") -> bool:
    """Whether completions can be filtered at all in a run (objective.filter.enabled).

    `auto` is the paper's rule: on if the untrained policy's mean entropy <H>_ini (nats) is below ln 2, always ln 2
    whatever the threshold of the filter itself. Equality keeps all completions. (Eq. 10; docs/objective.md, section 5)
    """
    if enabled not in ("auto", "always", "never"):
        raise ValueError(f"enabled must be 'auto', 'always' or 'never', got {enabled!r}")
    return enabled == "always" or (enabled == "auto" and initial_entropy < LN_2)
