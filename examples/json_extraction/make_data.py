"""Write data/train.jsonl and data/test.jsonl: sentences about orders, each with the JSON that says the same.

    {"question": "Mara ordered 3 chairs on Tuesday.", "answer": "{\"name\": \"Mara\", \"item\": \"chairs\", \"count\": 3}"}

The same files each time. No sentence is in both.
"""

import json
import random
from pathlib import Path

NAMES = "Ada Ben Cleo Dan Eva Finn Gus Ida Jon Kai Lea Mara Nils Olga Pia Ravi Sam Tess Uma Zoe".split()
ITEMS = "apples books chairs desks eggs forks lamps mugs pens rings shoes tables".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SENTENCES = (
    "{name} ordered {count} {item} on {day}.",
    "On {day}, {name} bought {count} {item}.",
    "We sent {count} {item} to {name} on {day}.",
    "{count} {item} for {name}, please, by {day}.",
)


def orders(count: int, rng: random.Random) -> list[dict[str, str]]:
    """`count` different sentences with their answers."""
    rows: dict[str, str] = {}
    while len(rows) < count:
        order = {"name": rng.choice(NAMES), "item": rng.choice(ITEMS), "count": rng.randint(2, 99)}
        rows[rng.choice(SENTENCES).format(**order, day=rng.choice(DAYS))] = json.dumps(order)
    return [{"question": question, "answer": answer} for question, answer in rows.items()]


if __name__ == "__main__":
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    rows = orders(3400, random.Random(0))
    for split, part in (("train", rows[:3200]), ("test", rows[3200:])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
        print(f"{folder / split}.jsonl: {len(part)} sentences")
