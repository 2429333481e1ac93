"""The figures of docs/benchmarks.md but for peers.py and gpu.py: `python benchmarks/run.py` (half an hour)."""

from __future__ import annotations

import argparse
from pathlib import Path

import footprint
import grading
import growth
import loop
import objective
import reference
import sampling
import training_half
from measure import write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    for module in (objective, training_half, sampling, loop, grading, reference, footprint):
        print(write(arguments.out, module.__name__, module.TITLE, module.run()), flush=True)
    print(write(arguments.out, "growth", growth.TITLE, growth.run(out=arguments.out)))


if __name__ == "__main__":
    main()
