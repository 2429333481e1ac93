"""examples/llama8b_gsm8k.ipynb, whose commands the rehearsal types, but for the cells tagged by-hand: installation,
log-in, what needs llama.cpp or the hub."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from commands import ROOT

SETTINGS = {"RUN": "whole", "STEPS": "5", "PROBLEMS": "30"}  # in place of the values in its settings cell


def cells() -> list[str]:
    """The sources of the code cells, with the rehearsal's settings."""
    notebook = json.loads((ROOT / "examples" / "llama8b_gsm8k.ipynb").read_text(encoding="utf-8"))
    by_machine = [
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and "by-hand" not in cell["metadata"].get("tags", [])
    ]
    names = "|".join(SETTINGS)
    assert len(re.findall(rf"^(?:{names}) = ", by_machine[0], flags=re.M)) == len(SETTINGS)
    return [re.sub(rf"{{({names})}}", lambda name: SETTINGS[name.group(1)], source) for source in by_machine[1:]]


def commands() -> dict[str, list[str]]:
    """The words behind `!gtpo`, by command; that of a second format of an export is called after it."""
    found: dict[str, list[str]] = {}
    for source in cells():
        for line in re.findall(r"^!gtpo (.*)$", source, flags=re.M):
            argv = shlex.split(line)
            name = argv[0] if argv[0] != "export" else f"export {argv[argv.index('--format') + 1]}"
            assert name not in found
            found[name] = argv
    return found


def write_files(folder: Path) -> None:
    """What the cells beginning with %%writefile write."""
    for source in cells():
        magic, _, text = source.partition("\n")
        if magic.startswith("%%writefile "):
            (folder / magic.removeprefix("%%writefile ")).write_text(text + "\n")


def programs() -> list[str]:
    """The cells of plain Python."""
    return [source for source in cells() if not source.startswith(("!", "%"))]
