"""4-bit NF4 base weights through bitsandbytes, on GPU and CPU."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from gtpo_cli.errors import ModelError

if TYPE_CHECKING:
    import torch


def nf4_config(compute_dtype: torch.dtype) -> Any:
    """The quantisation the paper's setting uses: NF4, double quantisation, computed in `compute_dtype`.

    Raises ModelError where bitsandbytes is missing.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(
            "model.load_in_4bit: true needs bitsandbytes, which is not installed: pip install 'gtpo_cli[bnb]', "
            "or train an unquantised base with --set model.load_in_4bit=false"
        )
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
    )


def keep_weights_differentiable(model: torch.nn.Module) -> int:
    """Stop bitsandbytes from repacking 4-bit weights on a CPU, and return how many layers were told so.

    On CPUs with avx512_bf16 the first no-grad forward of a 4-bit layer in eval mode (sampling!) repacks its weights
    into a layout that backward cannot read: from then on no gradient reaches the layer's input, with only a warning.
    """
    layers = [module for module in model.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False  # type: ignore[assignment]  # a plain flag of bitsandbytes
    return len(layers)
