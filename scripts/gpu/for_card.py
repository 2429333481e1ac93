"""What `auto` becomes in a recipe on a card of so many GiB, as JSON.

python for_card.py llama8b_gsm8k 24 --set model.name=FOLDER
"""

from __future__ import annotations

import argparse
import json

from gtpo_cli.machine.open_keys import machine_with
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.recipe import load_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("gib", type=float)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    recipe = load_recipe(arguments.recipe, arguments.set)
    print(json.dumps(Parts(recipe, machine_with(arguments.gib * 2**30)).closed.values))


if __name__ == "__main__":
    main()
