"""The rule of Eq. 10 that turns the entropy filter on. It is torch-free so that reports can use it.

`objective/entropy.py` applies the filter to completions; `gtpo_cli.objective` exports this rule.
"""

from __future__ import annotations

import math
from typing import Literal

LN_2 = math.log(2.0)
FilterMode = Literal["auto", "always", "never"]


def filter_is_on(initial_entropy: float, enabled: FilterMode = "auto") -> bool:
    """Return whether the filter is on in a run (`objective.filter.enabled`).

    `auto` is the paper's rule: on if the untrained policy's mean entropy <H>_ini (nats) is below ln 2. At ln 2 it is
    off. The bound is ln 2 for any threshold of the filter itself. (Eq. 10; docs/objective.md, section 5)
    """
    if enabled not in ("auto", "always", "never"):
        raise ValueError(f"enabled must be 'auto', 'always' or 'never', got {enabled!r}")
    return enabled == "always" or (enabled == "auto" and initial_entropy < LN_2)
