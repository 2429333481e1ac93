"""Measure how large gtpo is: files, lines and code lines, settable keys, and what one run imports.

`python scripts/measure/size.py [FOLDER]` measures a checkout, by default this one. A code line has something on it
besides a comment or a docstring.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_SPACE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
# Runs in the measured checkout: counts its keys, trains one step and lists the files that were imported.
_PROBE = """
import sys, tempfile
from pathlib import Path
import gtpo_cli
from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.recipe.section import fields_of
keys = fields_of(Recipe)
leaves = [key for key in keys if not any(other.startswith(key + ".") for other in keys)]
from gtpo_cli.cli.app import app
sys.argv = ["gtpo", "train", "--recipe", "tiny_arithmetic", "--set", "training.max_steps=1", "--set",
            f"output_dir={tempfile.mkdtemp()}"]
try:
    app()
except SystemExit as ended:
    assert not ended.code, ended
here = str(Path(gtpo_cli.__file__).parent)
files = {m.__file__ for m in list(sys.modules.values()) if (getattr(m, "__file__", None) or "").startswith(here)}
print("|".join([str(len(leaves)), *sorted(files)]))
"""


class Size(NamedTuple):
    """The size of some Python files."""

    files: int
    lines: int
    code: int


def size_of(paths: Iterable[Path]) -> Size:
    """Count files, lines and code lines."""
    sources = [path.read_text(encoding="utf-8") for path in paths]
    return Size(len(sources), sum(len(source.splitlines()) for source in sources), sum(map(code_lines, sources)))


def code_lines(source: str) -> int:
    """Count the lines with something on them besides a comment or a docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {line for token in tokens if token.type not in _SPACE for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                code -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(code)


def main() -> None:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE],
        cwd=root,
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    keys, *imported = probe.stdout.splitlines()[-1].split("|")
    parts = {
        "package": size_of(sorted((root / "gtpo_cli").rglob("*.py"))),
        "tests": size_of([*sorted((root / "tests").rglob("*.py")), root / "conftest.py"]),
        "imported by train --recipe tiny_arithmetic": size_of(map(Path, imported)),
    }
    for name, size in parts.items():
        print(f"{name}: {size.files} files, {size.lines:,} lines, {size.code:,} of code")
    print(f"settable keys: {keys}")


if __name__ == "__main__":
    main()
