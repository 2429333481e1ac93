"""What vLLM must be told before it is imported and while it starts, alone or through Unsloth."""

from __future__ import annotations

import os
import sys

from gtpo_cli.policy.engines import gpu_capability
from gtpo_cli.recipe.schema import RolloutRecipe

_NEEDS_FLASHINFER = 10  # compute capability 10.x (B200, GB200): vLLM attends with it


def prepare_vllm() -> None:
    """Switch off vLLM's usage reports and FlashInfer. Call it before vLLM or Unsloth is imported.

    vLLM's dependencies install FlashInfer. Its sampler never serves a request with a seed, and gtpo's all have one. But
    where its compiler does not serve the GPU, vLLM does not start. Unsloth switches it on without asking, unless the
    package is missing. VLLM_USE_FLASHINFER_SAMPLER=1 in the environment leaves it to Unsloth and vLLM.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    unwanted = os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0") != "1"
    if unwanted and (gpu_capability() or (0, 0))[0] != _NEEDS_FLASHINFER:
        sys.modules.setdefault("flashinfer", None)  # type: ignore[arg-type]  # Python then finds no such package


def capture_graphs_with_adapter(rollout: RolloutRecipe) -> None:
    """Let engines of this process capture CUDA graphs only for batches with an adapter, since gtpo samples no others.

    vLLM captures each graph a second time for batches without one, which doubles the time and the memory. A speculating
    engine asks for the graphs without an adapter. Call it before an engine starts.
    """
    if rollout.speculation is not None:
        return
    from vllm.v1.worker.gpu import model_runner

    own = model_runner.get_lora_capture_cases
    model_runner.get_lora_capture_cases = lambda *args: [case for case in own(*args) if case] or [0]
