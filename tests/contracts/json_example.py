"""examples/json_extraction, run by the commands of its README."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import forks
from commands import GTPO, ROOT, environment

EXAMPLE = ROOT / "examples" / "json_extraction"
REWARD = "json_rewards:fields"


def run_readme(folder: Path, *, extra: dict[str, list[str]]) -> str:
    """Run the first block of commands in a copy of the example; `extra`: arguments added to "gtpo <command>"."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    (block,) = re.findall(r"^```\n(python make_data.*?)^```$", (EXAMPLE / "README.md").read_text(), re.M | re.S)
    said = []
    for line in block.replace(" \\\n ", "").strip().splitlines():
        program, *arguments = shlex.split(line, comments=True)
        arguments += extra.get(arguments[0], [])
        if program == "python":
            command = [sys.executable, *arguments]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, env=environment())
        else:
            done = forks.run([*GTPO, *arguments], cwd=folder, env=environment(), timeout=900)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        said.append(f"$ {line}\n{done.stdout}")
    return "\n".join(said)
