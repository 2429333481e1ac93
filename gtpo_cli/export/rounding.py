"""Which type holds what training changed? A change of less than half a step between its numbers is rounded away."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.errors import ExportError
from gtpo_cli.models.loading import dtype_name

_HELD = 0.9  # least share of what training changed in the weights that is in them after rounding; the most is 1/0.9

Changes = Callable[[], Iterator[tuple[Tensor, Tensor]]]  # of each layer, weights before training and what it added


def adapter_changes(model: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """W and dW = alpha/rank B A of a PeftModel, in float64: float32 would lose what is asked for."""
    from peft.tuners.lora import LoraLayer

    for layer in (module for module in model.modules() if isinstance(module, LoraLayer)):
        change = sum(layer.get_delta_weight(name).double() for name in layer.active_adapters)
        yield layer.get_base_layer().weight.double(), change


def changes_of_all(model: Any, base: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """The same where all weights trained."""
    before = dict(base.named_parameters())
    for name, weight in model.named_parameters():
        if name in before and before[name].shape == weight.shape:
            yield before[name].double(), weight.double() - before[name].double()


def dtype_that_holds(changes: Changes, wanted: torch.dtype, *, named: bool) -> tuple[torch.dtype, tuple[str, ...]]:
    """The type to write weights in that were trained: `wanted`, or a finer one; and a note where it is that, or where
    nothing was trained. Raises ExportError where a user named a type that does not hold what was trained, and where
    none does.
    """
    held = share_held(changes(), wanted)
    if held is None:
        return wanted, ("Training changed nothing: these are the weights of the base.",)
    if holds(held) or not math.isfinite(held):  # what does not fit the type at all is found when it is read back
        return wanted, ()
    lost = f"{dtype_name(wanted)} would hold {in_words(held)} what training changed in the weights"
    finer = next((t for t in (torch.float16, torch.float32) if t != wanted and holds(share_held(changes(), t))), None)
    if finer is None or wanted == torch.float32:
        raise ExportError(
            f"not exported: {lost}: the changes are smaller than half a step between the numbers of every type; use "
            "--format adapter, which holds them, or train longer or at a higher optimizer.learning_rate"
        )
    if named:
        raise ExportError(
            f"--dtype: {lost}, since most changes are smaller than half a step between its numbers; use --dtype auto, "
            "which takes a finer type"
        )
    return finer, (f"The weights are {dtype_name(finer)}, since {lost}: load them as {dtype_name(finer)} too.",)


def holds(share: float | None) -> bool:
    return share is not None and _HELD <= share <= 1 / _HELD


def in_words(share: float) -> str:
    """Rounding may also turn changes round, or make them larger: there a percentage would say nothing."""
    if share < 0.005:
        return "nothing of"
    return f"{100 * share:.0f} % of" if share <= 1.005 else f"{share:.2f} times"


@torch.no_grad()
def share_held(changes: Iterable[tuple[Tensor, Tensor]], dtype: torch.dtype) -> float | None:
    """How much of what training changed, dW, is in the weights W + dW rounded to `dtype`:
    <dW, round(W + dW) - W> / <dW, dW> over all layers; 1 = all of it. None where nothing was changed."""
    kept = power = 0.0
    for weight, change in changes:
        kept += float((change * ((weight + change).to(dtype).double() - weight)).sum())
        power += float((change**2).sum())
    return kept / power if power else None
