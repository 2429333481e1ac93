"""What must be in the environment before Python starts, since libraries read it when they are imported.

python tests/rehearsal/environment.py -m pytest ...    runs Python with it
"""

from __future__ import annotations

import os
import sys

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",  # Triton's kernels run as Python
    "TORCHDYNAMO_DISABLE": "1",  # torch.compile would build CUDA kernels
    "UNSLOTH_COMPILE_DISABLE": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",  # transformers loads weights in threads, which the device mode does not reach
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # the commands are forked: a pool of threads would not come along
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, as Unsloth has it
    "VLLM_LOGGING_LEVEL": "ERROR",
}

if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
