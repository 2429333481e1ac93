"""Convert to GGUF with llama.cpp's own converter, which follows the format best.

The converter is a script in a checkout of llama.cpp and in no package, so the user names it. It runs in a separate
process on the merged export. The converter and the check of its result need the package gguf.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gtpo_cli.errors import ExportError, install

SCRIPT = "convert_hf_to_gguf.py"
OUTTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_TIMEOUT = 6 * 3600  # seconds; a large model takes minutes
_GET = "git clone --depth 1 https://github.com/ggml-org/llama.cpp"


def find_converter(named: str | None) -> Path:
    """Find the converter: a file or a checkout named by the user, or else a script on PATH.

    Raises ExportError with the remedy if there is none.
    """
    if named is None:
        found = shutil.which(SCRIPT)
        if found is None:
            raise ExportError(
                f"--format gguf needs llama.cpp's converter {SCRIPT}, which is not on PATH and in no Python package: "
                f"{_GET}, then --converter llama.cpp"
            )
        return Path(found)
    path = Path(named).expanduser()
    path = path / SCRIPT if path.is_dir() else path
    if not path.is_file():
        raise ExportError(f"--converter {named}: there is no {SCRIPT}; it is in a checkout of llama.cpp: {_GET}")
    return path


def file_name(run: str, dtype: str) -> str:
    """Return the file name of a run's export."""
    return f"{run}-{dtype}.gguf"


def check_package() -> None:
    """Raise ExportError if the package gguf is missing."""
    if importlib.util.find_spec("gguf") is None:
        raise ExportError(f"--format gguf needs the package gguf, which is not installed: {install('gguf')}")


def check_tokenizer(tokenizer: Any) -> None:
    """Raise ExportError for a tokenizer of whole words or characters. GGUF has no such kind, and the converter would
    write another kind instead."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    kind = "" if backend is None else json.loads(backend.to_str())["model"]["type"]
    if kind in ("WordLevel", "WordPiece"):
        raise ExportError(
            f"--format gguf: GGUF has no tokenizer of this run's kind ({kind}; the built-in model reads characters); "
            "use --format merged"
        )


def convert(converter: Path, model: Path, target: Path, dtype: str) -> None:
    """Write the model in the folder `model` as the GGUF file `target`. Raises ExportError if the converter fails."""
    command = [sys.executable, str(converter.resolve()), str(model), "--outfile", str(target), "--outtype"]
    try:
        done = subprocess.run(
            [*command, OUTTYPES[dtype]], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ExportError(f"{converter}: did not end within {_TIMEOUT // 3600} hours") from error
    if done.returncode != 0 or not target.is_file():
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()] or ["no output"]
        why = [line for line in lines if "Error" in line] or lines
        raise ExportError(
            f"{converter}: failed (exit code {done.returncode}): {why[-1].strip()[:300]}; does this llama.cpp support "
            "the model and its tokenizer? Update it, or use --format merged"
        )
