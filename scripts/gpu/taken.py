"""Take the memory of the card but for some GiB, print how many were taken, and hold them until standard input ends.

python taken.py 24        a process beside it then works as on a card of 24 GiB; without a card nothing is taken
"""

from __future__ import annotations

import argparse
import sys

import torch

GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("left", type=float, metavar="GIB", help="what stays free")
    left = int(parser.parse_args().left * GIB)
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else left
    held = torch.zeros(max(0, free - left), dtype=torch.uint8, device="cuda" if free > left else "cpu")
    print(held.numel() / GIB, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
