"""What vLLM is told before it is imported, in a process of its own with a package that calls itself FlashInfer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import importlib.util, json, os, sys
from gtpo_cli.policy import vllm_start
vllm_start.gpu_capability = lambda: {capability}
vllm_start.prepare_vllm()
found = importlib.util.find_spec("flashinfer") is not None
print(json.dumps([found, os.environ["VLLM_USE_FLASHINFER_SAMPLER"], os.environ["VLLM_NO_USAGE_STATS"]]))
"""


@pytest.mark.parametrize(
    ("capability", "given", "found"),
    [
        ((9, 0), {}, [False, "0", "1"]),
        ((12, 0), {}, [False, "0", "1"]),
        (None, {}, [False, "0", "1"]),
        ((10, 0), {}, [True, "0", "1"]),  # vLLM attends with it there
        ((9, 0), {"VLLM_USE_FLASHINFER_SAMPLER": "1", "VLLM_NO_USAGE_STATS": "0"}, [True, "1", "0"]),
    ],
)
def test_flashinfer_is_there_only_where_it_is_needed_or_asked_for(
    tmp_path: Path, capability: tuple[int, int] | None, given: dict[str, str], found: list[object]
) -> None:
    (tmp_path / "flashinfer.py").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    environment = kept | given | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    program = PROGRAM.format(capability=capability)
    printed = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
    assert json.loads(printed) == found
