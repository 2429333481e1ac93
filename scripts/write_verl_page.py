"""Write the table of docs/verl.md, what verl makes of each key: `python scripts/write_verl_page.py [--check]`."""

from __future__ import annotations

import sys

from written_files import ROOT, below, parser, write

from gtpo_cli.integrations.verl_config import table

PAGE = ROOT / "docs" / "verl.md"
START = "<!-- the table below is written by scripts/write_verl_page.py -->"


def main() -> int:
    check = parser(__doc__).parse_args().check
    return write({PAGE: below(START, PAGE, table())}, check=check)


if __name__ == "__main__":
    sys.exit(main())
