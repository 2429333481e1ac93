"""The update: optimiser, learning-rate schedule and gradient clipping in one object."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.errors import RecipeError, install
from gtpo_cli.recipe.schema import OptimizerRecipe


class Updater:
    """Applies accumulated gradients: clip, step, schedule.

    The gradient of all parameters together is scaled down to `max_grad_norm` if its 2-norm is larger. Weight decay is
    decoupled and, as usual, spares vectors (norms and biases). Float16 uses loss scaling, since its smallest number is
    6e-8; gradients are unscaled before clipping.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        recipe: OptimizerRecipe,
        *,
        total_steps: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`dtype`: the type of the computation; the parameters are float32."""
        self._parameters = list(parameters)
        self.changes = 0  # updates begun, and steps of the schedule
        self._max_grad_norm = recipe.max_grad_norm
        device = self._parameters[0].device
        self._scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self._scaler.scale(torch.zeros((), device=device))  # creates the scale, since the first step may have no loss
        self.optimizer = _optimizer(self._parameters, recipe)
        warmup = math.ceil(recipe.warmup_ratio * total_steps)
        factor = partial(schedule_factor, recipe.schedule, warmup=warmup, total=total_steps)
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of the loss to the accumulated gradients."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch ships it untyped

    def update(self) -> float:
        """Make one optimiser step, free the gradients and return their norm before clipping.

        If the norm is infinite or NaN, neither the weights nor the moments change.
        """
        self.changes += 1
        for parameter in self._parameters:
            if parameter.grad is None:  # no loss reached it; Adam's moments must see a gradient of 0
                parameter.grad = torch.zeros_like(parameter)
        self._scaler.unscale_(self.optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm))
        if math.isfinite(norm):
            self._scaler.step(self.optimizer)
        self._scaler.update()  # lowers the scale after a gradient that was not finite
        self.zero_grad()  # now, so that gradients take no memory while the engine samples
        return norm

    def advance_schedule(self) -> None:
        """Advance the learning rate by one training step: one batch, however many iterations it had."""
        self.changes += 1
        self._scheduler.step()

    def roll_back(self, state: dict[str, Any], factor: float) -> float:
        """Take the moments of an earlier `state_dict` and return the new learning rate.

        The schedule continues; its rates are multiplied by `factor` from here on.
        """
        rates = [group["lr"] * factor for group in self.optimizer.param_groups]
        self._load_optimizer(state["optimizer"])
        self._scheduler.base_lrs = [rate * factor for rate in self._scheduler.base_lrs]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        return self.learning_rate

    def state_dict(self) -> dict[str, Any]:
        state = {"optimizer": self.optimizer.state_dict(), "scheduler": self._scheduler.state_dict()}
        return state | ({"scaler": self._scaler.state_dict()} if self._scaler.is_enabled() else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from an earlier `state_dict`; settings stay the recipe's.

        Raises ValueError, LookupError, TypeError or AttributeError for the state of another run and for values that
        would fail in the next step or turn the weights into NaN.
        """
        schedule = {key: state["scheduler"][key] for key in ("base_lrs", "last_epoch", "_step_count", "_last_lr")}
        rates = (*schedule["base_lrs"], *schedule["_last_lr"])
        if len(rates) != 2 * len(self.optimizer.param_groups) or not all(map(_is_rate, rates)):
            raise ValueError("it does not have one learning rate for each group of parameters")
        if not all(type(count) is int and count >= 0 for count in (schedule["last_epoch"], schedule["_step_count"])):
            raise ValueError("its schedule has no valid number of steps")
        self._load_optimizer(state["optimizer"])
        self._scheduler.load_state_dict(self._scheduler.state_dict() | schedule)
        factor = self._scheduler.lr_lambdas[0](schedule["last_epoch"])
        for group, base in zip(self.optimizer.param_groups, schedule["base_lrs"], strict=True):
            if not math.isclose(group["lr"], base * factor, rel_tol=1e-9):  # the schedule now has another length
                group["lr"] = base * factor
        if self._scaler.is_enabled():
            kept = {name: state["scaler"][name] for name in ("scale", "_growth_tracker")}
            float32, interval = torch.finfo(torch.float32), self._scaler.get_growth_interval()
            if not (_is_rate(kept["scale"]) and float32.tiny <= kept["scale"] <= float32.max):
                raise ValueError("its loss scale is not a valid float32 number")
            if type(kept["_growth_tracker"]) is not int or not 0 <= kept["_growth_tracker"] < interval:
                raise ValueError("its loss scaler has no valid number of steps")
            self._scaler.load_state_dict(self._scaler.state_dict() | kept)

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        own, groups, moments = self.optimizer.state_dict()["param_groups"], state["param_groups"], state["state"]
        if [group["params"] for group in groups] != [group["params"] for group in own]:
            raise ValueError("it has other parameters")
        kept = [{name: group[name] for name in ("lr", "initial_lr", "params")} for group in groups]
        if not all(_is_rate(group["lr"]) and _is_rate(group["initial_lr"]) for group in kept):
            raise ValueError("its learning rates are not numbers")
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if moments and set(moments) != set(range(len(parameters))):
            raise ValueError(f"it has moments for {len(moments)} parameters, but the run has {len(parameters)}")
        for index, moment in moments.items():
            try:
                _check_moments(moment, parameters[index], quantised=not isinstance(self.optimizer, torch.optim.AdamW))
            except ValueError as error:
                raise ValueError(f"parameter {index} {error}") from None
        both = [mine | theirs for mine, theirs in zip(own, kept, strict=True)]
        self.optimizer.load_state_dict({"state": moments, "param_groups": both})


def _check_moments(moment: dict[str, Any], parameter: Tensor, *, quantised: bool) -> None:
    """Raise ValueError, LookupError or AttributeError if this is not a state of Adam for this parameter.

    `quantised`: in the format of bitsandbytes, with large tensors in 8 bits and a scale for each block of 256.
    """
    step = torch.as_tensor(moment.get("step", math.nan))
    if step.numel() != 1 or not 0 <= float(step) < math.inf:
        raise ValueError("has no valid number of steps")
    moment = moment | moment.get("__bnb_optimizer_quant_state__", {})  # bitsandbytes packs them in there
    mean, square = ("state1", "state2") if quantised else ("exp_avg", "exp_avg_sq")
    shapes = {mean: tuple(parameter.shape), square: tuple(parameter.shape)}
    if quantised and moment[mean].dtype == torch.uint8:
        blocks = math.ceil(parameter.numel() / 256)
        shapes |= {"absmax1": (blocks,), "absmax2": (blocks,), "qmap1": (256,), "qmap2": (256,)}
    for name, shape in shapes.items():
        if name not in moment:
            raise ValueError(f"lacks a moment, {name}")
        if tuple(moment[name].shape) != shape:
            raise ValueError(f"has another shape than {name}, {tuple(moment[name].shape)}")
        if not bool(torch.isfinite(moment[name]).all()):
            raise ValueError(f"has a moment, {name}, that is not finite")
        if name in (square, "absmax2", "qmap2") and bool((moment[name] < 0).any()):
            raise ValueError(f"has a square, {name}, below 0")


def _is_rate(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def schedule_factor(schedule: str, step: int, *, warmup: int, total: int) -> float:
    """Return the factor of the learning rate at a step (from 0): it rises from 0 in `warmup` steps, then as scheduled.

    "cosine": (1 + cos(pi t)) / 2, "linear": 1 - t, with t from 0 after the warm-up to 1 after the last step;
    "constant": 1. Equal to transformers.get_scheduler, which takes seconds to import.
    """
    if step < warmup:
        return step / max(1, warmup)
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return max(0.0, (total - step) / max(1, total - warmup))
    done = (step - warmup) / max(1, total - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))


def _optimizer(parameters: list[torch.nn.Parameter], recipe: OptimizerRecipe) -> torch.optim.Optimizer:
    assert recipe.name != "auto", "resolved during setup"
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    settings: dict[str, Any] = {"lr": recipe.learning_rate, "betas": recipe.betas}
    if recipe.name == "adamw":
        return torch.optim.AdamW(groups, **settings)
    if importlib.util.find_spec("bitsandbytes") is None:
        raise RecipeError(
            f"optimizer.name: {recipe.name} needs bitsandbytes, which is not installed: "
            f"{install('bnb')}, or --set optimizer.name=adamw"
        )
    import bitsandbytes

    kind = bitsandbytes.optim.AdamW8bit if recipe.name == "adamw_8bit" else bitsandbytes.optim.PagedAdamW8bit
    optimizer: torch.optim.Optimizer = kind(groups, **settings)
    return optimizer
