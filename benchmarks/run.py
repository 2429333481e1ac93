"""All figures of docs/benchmarks.md: `python benchmarks/run.py` (about five minutes on one core)."""

from __future__ import annotations

import argparse
from pathlib import Path

import grading
import loop
import objective
import reference
from measure import write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    for name, module in (("objective", objective), ("loop", loop), ("grading", grading), ("reference", reference)):
        print(write(arguments.out, name, module.TITLE, module.run()))


if __name__ == "__main__":
    main()
