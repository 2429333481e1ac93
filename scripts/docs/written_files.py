"""What the scripts that write pages share: write what changed; with --check, only say what would change."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the option --check."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--check", action="store_true", help="change nothing; fail when a file is out of date")
    return made


def write(wanted: Mapping[Path, str], *, check: bool) -> int:
    """Make the files hold `wanted`'s text; the exit code. With `check` nothing changes, and it is 1 when one would."""
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'out of date' if check else 'written'}")
    if check:
        if stale:
            print(f"run python {sys.argv[0]}", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


def below(marker: str, page: Path, text: str) -> str:
    """The page with `text` below the line `marker`; what stands above is written by hand."""
    by_hand = page.read_text(encoding="utf-8").partition(marker)[0]
    return f"{by_hand.rstrip()}\n\n{marker}\n\n{text.lstrip()}"


def between(start: str, end: str, page: Path, text: str) -> str:
    """The page with `text` between two marker lines."""
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    return f"{before}{start}\n\n{text.strip()}\n\n{end}{rest.partition(end)[2]}"
