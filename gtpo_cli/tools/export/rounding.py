"""Choose a data type that keeps training's changes. A change below half a step between its numbers is rounded away."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.errors import ExportError
from gtpo_cli.policy.loading import dtype_name

_HELD = 0.9  # smallest share of training's changes that must remain after rounding; the largest is 1/0.9

Changes = Callable[[], Iterator[tuple[Tensor, Tensor]]]  # per layer: weights before training, and their change


def adapter_changes(model: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield W and dW = alpha/rank B A of a PeftModel in float64, because float32 is too inexact here."""
    from peft.tuners.lora import LoraLayer

    for layer in (module for module in model.modules() if isinstance(module, LoraLayer)):
        change = sum(layer.get_delta_weight(name).double() for name in layer.active_adapters)
        yield layer.get_base_layer().weight.double(), change


def changes_of_all(model: Any, base: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same for a model with all weights trained."""
    before = dict(base.named_parameters())
    for name, weight in model.named_parameters():
        if name in before and before[name].shape == weight.shape:
            yield before[name].double(), weight.double() - before[name].double()


def dtype_that_holds(changes: Changes, wanted: torch.dtype, *, named: bool) -> tuple[torch.dtype, tuple[str, ...]]:
    """Return the type for trained weights, `wanted` or a finer one, with a note if it is finer or nothing was trained.

    Raises ExportError if the type that a user `named` does not hold the changes of training, or if no type does.
    """
    held = share_held(changes(), wanted)
    if held is None:
        return wanted, ("Training changed nothing: these are the weights of the base.",)
    if holds(held) or not math.isfinite(held):  # the check after loading finds weights beyond the type's range
        return wanted, ()
    lost = f"{dtype_name(wanted)} would hold {in_words(held)} training's changes of the weights"
    finer = next((t for t in (torch.float16, torch.float32) if t != wanted and holds(share_held(changes(), t))), None)
    if finer is None or wanted == torch.float32:
        raise ExportError(
            f"not exported: {lost}: in every type, the changes are smaller than half a step between its numbers; use "
            "--format adapter, which holds them, or train longer or at a higher optimizer.learning_rate"
        )
    if named:
        raise ExportError(
            f"--dtype: {lost}, because most changes are smaller than half a step between its numbers; use --dtype "
            "auto, which takes a finer type"
        )
    return finer, (f"The weights are {dtype_name(finer)}, because {lost}. Load them as {dtype_name(finer)} too.",)


def holds(share: float | None) -> bool:
    return share is not None and _HELD <= share <= 1 / _HELD


def in_words(share: float) -> str:
    """Describe a share. Rounding may also reverse or enlarge changes, for which a percentage makes no sense."""
    if share < 0.005:
        return "nothing of"
    return f"{100 * share:.0f} % of" if share <= 1.005 else f"{share:.2f} times"


@torch.no_grad()
def share_held(changes: Iterable[tuple[Tensor, Tensor]], dtype: torch.dtype) -> float | None:
    """Return how much of training's change dW is in the weights W + dW rounded to `dtype`:
    <dW, round(W + dW) - W> / <dW, dW> over all layers, so 1 is all of it. None if nothing changed."""
    kept = power = 0.0
    for weight, change in changes:
        kept += float((change * ((weight + change).to(dtype).double() - weight)).sum())
        power += float((change**2).sum())
    return kept / power if power else None
