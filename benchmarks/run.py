"""The figures of docs/benchmarks.md but for peers.py and gpu.py: `python benchmarks/run.py` (half an hour).

`python benchmarks/run.py loop footprint` takes those of some files alone.
"""

from __future__ import annotations

import argparse
import os
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

MODULES = {
    module.__name__: module
    for module in (objective, training_half, sampling, loop, grading, reference, footprint, growth)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=list(MODULES), metavar="NAME", help=f"of {', '.join(MODULES)}")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name in arguments.names or MODULES:
        module = MODULES[name]
        figures = growth.run(out=arguments.out) if module is growth else module.run()
        print(write(arguments.out, name, module.TITLE, figures), flush=True)


if __name__ == "__main__":
    main()
