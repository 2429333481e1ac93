"""The command `gtpo` on the card that is not there: each call in a process of its own, forked from one that has
imported Unsloth and vLLM already (their imports take half a minute).

The parent reads one JSON object a line, {"argv", "cwd", "out", "calls"}, and writes {"pid"} when the child has started
and {"code"} when it has ended. `out` gets what the command prints, `calls` a JSON list of what it did, in order.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import card


def record() -> None:
    """Note what stands beside what: sampling, forwards, gradients, and the arguments of each engine."""
    import vllm

    from gtpo_cli.policy.unsloth_policy import UnslothPolicy
    from gtpo_cli.policy.vllm_sampler import VllmSampler

    def noted(owner: Any, method: str, words: Any) -> None:
        original = getattr(owner, method)

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            card.calls.append(words(self, kwargs))
            return original(self, *args, **kwargs)

        setattr(owner, method, call)

    def gradients(policy: Any) -> str:
        return "with gradients" if any(w.grad is not None for w in policy.trainable_parameters()) else "without"

    def adapter(policy: Any) -> str:
        (dtype,) = {weight.dtype for weight in policy.trainable_parameters()}
        return str(dtype)

    def engine(_: Any, options: dict[str, Any]) -> str:
        named = (
            "gpu_memory_utilization",
            "max_model_len",
            "quantization",
            "enable_sleep_mode",
            "dtype",
            "max_lora_rank",
            "max_num_seqs",
            "max_num_batched_tokens",
            "enforce_eager",
            "kv_cache_dtype",
            "speculative_config",
        )
        return "engine " + json.dumps({name: str(options.get(name)) for name in named})

    noted(vllm.LLM, "__init__", engine)
    noted(VllmSampler, "sample_blocks", lambda self, _: f"sample {gradients(self._policy)} {adapter(self._policy)}")
    noted(UnslothPolicy, "token_logprobs", lambda *_: "forward")
    noted(UnslothPolicy, "reference_logprobs", lambda *_: "reference")


def _run(request: dict[str, Any]) -> int:
    """In the child: the command, as `gtpo` starts it."""
    out = os.open(request["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(out), "w", buffering=1) for _ in range(2))
    os.chdir(request["cwd"])
    sys.argv = ["gtpo", *request["argv"]]
    record()
    card.no_room_at_wake_up(request["no_room"])
    from gtpo_cli.cli.app import main
    from gtpo_cli.training import trials

    if {"run_name=long", "run_name=sft"} & set(request["argv"]):
        trials.STRESSED = ("cpu",)  # as on a card, which the stand-in's tensors are not on

    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001  # a fault of the program: the test shows it
        traceback.print_exc()
        return 1
    finally:
        Path(request["calls"]).write_text(json.dumps(card.calls))
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def serve() -> None:
    card.start()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = _run(request)
            finally:
                os._exit(code)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    serve()
