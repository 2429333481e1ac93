"""Dropout and reinforcement learning, which do not go together: the trained network must be the one that samples.

Two forward passes with dropout are two random sub-networks. Then exp(ln pi - ln pi_old) is not 1 even if nothing
changed, and <H>, which decides delta and c, is not that of the policy that sampled. So adapters have no dropout, and
dropout in the model's own configuration is switched off except for SFT, as TRL's `disable_dropout` does.
"""

from __future__ import annotations

from typing import Any


def active_dropout(model: Any) -> list[tuple[Any, str, float]]:
    """Return (module, attribute, probability) of every dropout above 0 of a model.

    These are dropout layers, and modules with an attribute such as `attention_dropout`, `layerdrop` or `resid_pdrop`.
    """
    return [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float)
        and 0.0 < value <= 1.0
        and ("drop" in name or (name == "p" and "Dropout" in type(module).__name__))
    ]


def switch_off_dropout(model: Any) -> float:
    """Set every dropout of a model to 0 and return the largest former value. The model's configuration stays."""
    found = active_dropout(model)
    for module, name, _ in found:
        setattr(module, name, 0.0)
    return max((value for *_, value in found), default=0.0)
