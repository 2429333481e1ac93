"""Write data/train.jsonl, data/test.jsonl and data/sloppy.jsonl: orders as sentences, each with its JSON.

    question: Mara ordered 3 chairs on Tuesday.    answer: {"name": "Mara", "item": "chairs", "count": 3}

No sentence is in two files. In sloppy.jsonl, the demonstrations of the warm start, a quarter of the answers lack the
closing brace, and a quarter the count. The same files each time.
"""

import json
import random
from pathlib import Path

NAMES = "Ada Ben Cleo Dan Eva Finn Gus Ida Jon Kai Lea Mara Nils Olga Pia Ravi Sam Tess Uma Zoe".split()
ITEMS = "apples books chairs desks eggs forks lamps mugs pens rings shoes tables".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SENTENCES = ("{name} ordered {count} {item} on {day}.", "On {day}, {name} bought {count} {item}.")


def orders(count: int, rng: random.Random) -> list[dict[str, str]]:
    """`count` different sentences with their answers."""
    rows: dict[str, str] = {}
    while len(rows) < count:
        order = {"name": rng.choice(NAMES), "item": rng.choice(ITEMS), "count": rng.randint(2, 9)}
        rows[rng.choice(SENTENCES).format(**order, day=rng.choice(DAYS))] = json.dumps(order)
    return [{"question": question, "answer": answer} for question, answer in rows.items()]


def sloppy(row: dict[str, str], rng: random.Random) -> dict[str, str]:
    """The row as a careless writer would have it."""
    order = json.loads(row["answer"])
    kind = rng.choice(("right", "right", "no brace", "no count"))
    if kind == "no count":
        del order["count"]
    answer = json.dumps(order)
    return {**row, "answer": answer.removesuffix("}") if kind == "no brace" else answer}


if __name__ == "__main__":
    rng = random.Random(0)
    rows = orders(5800, rng)
    files = {"train": rows[:1600], "test": rows[1600:1800], "sloppy": [sloppy(row, rng) for row in rows[1800:]]}
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    for name, part in files.items():
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        print(f"data/{name}.jsonl: {len(part)} sentences")
