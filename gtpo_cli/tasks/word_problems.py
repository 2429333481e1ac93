"""A built-in task for small pre-trained models: word problems of one operation, split by their wording.

    Tom has 57 marbles and finds 6 more. How many marbles does Tom have now?      57 + 6 = 63, gold answer 63

The model has to read the operation (plus, minus, times) from the sentence and calculate the result. No wording, name or
thing of the split `test` occurs in `train`. All wordings of a split occur equally often. The second number of the
solution has one digit, the first at most two. Results are from 2 to 108.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

MOST = 4_000  # problems per split, so that no wording runs out: the narrowest of `test` has 480


class WordProblems:
    """The task: different problems drawn from the seed; those of the test are always the same."""

    counts: ClassVar = {"train": 2000, "test": 240}

    def problems(self, split: str, seed: int) -> Iterator[dict[str, str]]:
        draw = random.Random(seed if split == "train" else 0)
        found = set[str]()
        while True:
            wordings = [(sign, wording) for sign in NUMBERS for wording in WORDINGS[split][sign]]
            draw.shuffle(wordings)
            for sign, wording in wordings:
                if len(found) == MOST:
                    return
                while (row := _row(draw, sign, wording, split))["question"] in found:
                    pass
                found.add(row["question"])
                yield row


def _row(draw: random.Random, sign: str, wording: str, split: str) -> dict[str, str]:
    first, second, result = NUMBERS[sign](draw)
    name, other = draw.sample(NAMES[split], 2)
    question = wording.format(a=first, b=second, name=name, other=other, things=draw.choice(THINGS[split]))
    return {"question": question, "answer": str(result), "solution": f"{first} {sign} {second} = {result}"}


def _sum(draw: random.Random) -> tuple[int, int, int]:
    first, second = draw.randint(11, 99), draw.randint(2, 9)
    return first, second, first + second


def _difference(draw: random.Random) -> tuple[int, int, int]:
    first, second = draw.randint(11, 99), draw.randint(2, 9)
    return first, second, first - second


def _product(draw: random.Random) -> tuple[int, int, int]:
    first, second = draw.randint(3, 12), draw.randint(2, 9)
    return first, second, first * second


NUMBERS: Mapping[str, Callable[[random.Random], tuple[int, int, int]]] = {
    "+": _sum,
    "-": _difference,
    "*": _product,
}

NAMES = {
    "train": ("Tom", "Anna", "Ben", "Maria", "Sam", "Julia", "Omar", "Lily", "David", "Nina"),
    "test": ("Peter", "Aisha", "Jack", "Elena", "Lucas", "Mei"),
}
THINGS = {
    "train": ("marbles", "apples", "books", "stickers", "pencils", "coins", "cards", "shells", "buttons", "oranges"),
    "test": ("cookies", "stamps", "balloons", "flowers", "toys", "eggs"),
}
WORDINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "train": {
        "+": (
            "{name} has {a} {things} and finds {b} more. How many {things} does {name} have now?",
            "There are {a} {things} in a box. {name} puts {b} more into it. How many {things} are in the box now?",
            "{name} buys {a} {things} on Monday and {b} on Tuesday. How many {things} does {name} buy in all?",
            "{name} has {a} {things} and {other} has {b}. How many {things} do they have together?",
            "A shop has {a} {things} and gets {b} more. How many {things} does the shop have then?",
            "{name} counted {a} {things} in the morning and {b} in the evening. How many {things} is that in total?",
            "After {other} gave {b} {things} to {name}, who had {a} before, how many {things} does {name} have?",
            "{other} has {b} {things} more than {name}. {name} has {a}. How many {things} does {other} have?",
        ),
        "-": (
            "{name} has {a} {things} and loses {b} of them. How many {things} are left?",
            "{name} had {a} {things} and gave {b} to {other}. How many {things} does {name} still have?",
            "There were {a} {things} on the table. {name} took {b} away. How many {things} are on the table now?",
            "A shop had {a} {things} and sold {b}. How many {things} does it have left?",
            "Of {a} {things}, {b} are broken. How many {things} are not broken?",
            "{name} has {a} {things}. {other} has {b} fewer than {name}. How many {things} does {other} have?",
            "{name} needs {a} {things} and has {b} already. How many more {things} does {name} need?",
            "From a bag of {a} {things}, {name} sells {b}. How many {things} remain in the bag?",
        ),
        "*": (
            "{name} has {b} bags with {a} {things} in each. How many {things} does {name} have?",
            "There are {b} boxes. Each box holds {a} {things}. How many {things} are there altogether?",
            "{name} buys {a} {things} every day. How many {things} does {name} buy in {b} days?",
            "A shelf has {b} rows of {a} {things}. How many {things} are on the shelf?",
            "Each of {b} children brings {a} {things}. How many {things} do they bring?",
            "One of the {things} costs {b} dollars. How many dollars do {a} of them cost?",
            "{name} has {a} {things}. {other} has {b} times as many. How many {things} does {other} have?",
            "{name} packs {a} {things} into every basket. How many {things} are in {b} baskets?",
        ),
    },
    "test": {
        "+": (
            "{name} collected {a} {things} last week and another {b} this week. What is the number of {things} now?",
            "{a} {things} were already in the basket when {name} added {b}. How many are in it after that?",
            "The red jar contains {a} {things}, the blue one {b}. How many {things} do both jars contain?",
            "{name} starts the day with {a} {things} and receives {b} as a present. How many {things} is that?",
        ),
        "-": (
            "{name} brought {a} {things}, but {b} of them fell into the river. How many did not?",
            "Yesterday there were {a} {things} in the garden; today {b} are gone. How many can {name} see today?",
            "{name} uses up {b} out of {a} {things}. How many has {name} not used?",
            "{other} took {b} {things} from the {a} that {name} was keeping. What number did {name} keep?",
        ),
        "*": (
            "A train has {b} cars, and every car carries {a} {things}. How many {things} does the train carry?",
            "{name} makes {a} {things} an hour. How many {things} are ready after {b} hours?",
            "In a room stand {b} tables with {a} {things} on each one. Find the number of {things} in the room.",
            "{b} teams receive {a} {things} per team. How many {things} are handed out?",
        ),
    },
}
