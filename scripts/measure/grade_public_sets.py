"""Grade the pairs of public answer-equivalence tests, and list every disagreement.

    python scripts/measure/grade_public_sets.py --math-verify FOLDER --hendrycks FOLDER --mario FOLDER

Each folder is a clone of github.com/huggingface/Math-Verify, github.com/hendrycks/math and
github.com/MARIO-Math-Reasoning/MARIO_EVAL; any of them may be left out. Nothing of them is part of this project. Their
pairs are read from the syntax of their test files, which are not run. docs/rewards.md judges the disagreements.

Math-Verify's tests find an answer in a text first. Here an answer is compared whole, so only the pairs whose two sides
are answers already are graded: what stands in the only formula or box of a side, or a side without words.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gtpo_cli.rewards import EqualityWorkers


class Pair(NamedTuple):
    gold: str
    predicted: str
    equal: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--math-verify", type=Path, help="a clone of huggingface/Math-Verify")
    parser.add_argument("--hendrycks", type=Path, help="a clone of hendrycks/math")
    parser.add_argument("--mario", type=Path, help="a clone of MARIO-Math-Reasoning/MARIO_EVAL")
    arguments = parser.parse_args()
    sets: list[tuple[str, list[Pair], int]] = []
    if arguments.math_verify:
        found = [
            pair for path in _files(parser, arguments.math_verify, "tests/test_*.py") for pair in math_verify(path)
        ]
        answers = [Pair(_whole_answer(pair.gold), _whole_answer(pair.predicted), pair.equal) for pair in found]
        whole = [Pair(pair.gold, pair.predicted, pair.equal) for pair in answers if pair.gold and pair.predicted]
        sets.append(("Math-Verify", whole, len(found)))
    for name, folder, pattern in (
        ("hendrycks/math", arguments.hendrycks, "modeling/*_test.py"),
        ("MARIO_EVAL", arguments.mario, "math_evaluation/tests/test_*.py"),
    ):
        if folder:
            pairs = [pair for path in _files(parser, folder, pattern) for pair in unittest_pairs(path)]
            sets.append((name, pairs, len(pairs)))
    if not sets:
        parser.error("name at least one clone: --math-verify, --hendrycks, --mario")
    with EqualityWorkers(timeout_seconds=20.0) as workers:
        for name, pairs, found_pairs in sets:
            report(name, list(dict.fromkeys(pairs)), found_pairs, workers)


def _files(parser: argparse.ArgumentParser, folder: Path, pattern: str) -> list[Path]:
    paths = sorted(folder.glob(pattern))
    if not paths:
        parser.error(f"{folder}: no {pattern} in it; is it a clone of the repository?")
    return paths


def report(name: str, pairs: Sequence[Pair], found: int, workers: EqualityWorkers) -> None:
    grades = workers.equal_many([(pair.gold, pair.predicted) for pair in pairs])
    other = [(pair, grade) for pair, grade in zip(pairs, grades, strict=True) if grade.equal != pair.equal]
    print(
        f"{name}: {found} pairs, {len(pairs)} different ones of whole answers; agreement on {len(pairs) - len(other)}"
    )
    for pair, grade in other:
        late = " (out of time or memory)" if grade.timed_out or grade.crashed else ""
        print(f"  {pair.gold!r} and {pair.predicted!r}: {'equal' if pair.equal else 'not equal'} there{late}")


# -- Math-Verify: pytest tables of (gold, predicted, ..., 0 or 1) ------------------------------------------------------


def math_verify(path: Path) -> Iterator[Pair]:
    """The rows of `parametrize("gold, pred, ...", [...])` whose verdict is called `expected` or `result`."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(call, ast.Call) and ast.unparse(call.func).endswith("parametrize")):
            continue
        names = [name.strip() for name in ast.literal_eval(call.args[0]).split(",")]
        verdict = next((name for name in names if name in ("expected", "result")), None)
        if names[:2] != ["gold", "pred"] or verdict is None or not isinstance(call.args[1], ast.List):
            continue
        for row in call.args[1].elts:
            values = dict(zip(names, row.elts, strict=False)) if isinstance(row, ast.Tuple) else {}
            texts = [_text(values.get(name)) for name in ("gold", "pred")]
            if texts[0] is not None and texts[1] is not None and "allow_set_relation_comp" not in names:
                yield Pair(texts[0], texts[1], bool(ast.literal_eval(values[verdict])))


_FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")


def _whole_answer(text: str) -> str:
    """The answer that the text is, or whose only formula it holds; "" where it would have to be looked for."""
    text = text.strip().rstrip(".")
    boxes = text.count(r"\boxed")
    if boxes == 1:
        start = text.index(r"\boxed{") if r"\boxed{" in text else -1
        return _balanced(text, start + len(r"\boxed")) if start >= 0 else ""
    formulas = [next(group for group in match.groups() if group) for match in _FORMULA.finditer(text)]
    if boxes or len(formulas) > 1 or "\n" in text:
        return ""
    if formulas:
        return "" if re.search("[0-9]", _FORMULA.sub("", text)) else formulas[0]
    return "" if len(_WORD.findall(text)) > 2 else text


def _balanced(text: str, start: int) -> str:
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place]
    return ""


# -- hendrycks/math and MARIO_EVAL: unittest methods with a test_in, a test_out and an assertion -----------------------


def unittest_pairs(path: Path) -> Iterator[Pair]:
    """`self.assertTrue(is_equiv(test_in, test_out))` with what the two names last stood for, loops over pairs too."""
    for method in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(method, ast.FunctionDef) or not method.name.startswith("test"):
            continue
        values: dict[str, list[tuple[str, ...]]] = {}
        for statement in method.body:
            yield from _pairs_of(statement, values)


def _pairs_of(statement: ast.stmt, values: dict[str, list[tuple[str, ...]]]) -> Iterator[Pair]:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name, text = statement.targets[0].id, _text(statement.value)
        if text is not None:
            values[name] = [(text,)]
        elif isinstance(statement.value, ast.List):
            values[name] = ast.literal_eval(statement.value)
    elif isinstance(statement, ast.For):
        rows = values.get(ast.unparse(statement.iter), [])
        names = [element.id for element in ast.walk(statement.target) if isinstance(element, ast.Name)]
        for row in rows:
            inner = values | {name: [(text,)] for name, text in zip(names, row, strict=True)}
            for each in statement.body:
                yield from _pairs_of(each, inner)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        verdict = {"assertTrue": True, "assertFalse": False}.get(
            ast.unparse(statement.value.func).removeprefix("self.")
        )
        call = statement.value.args[0] if statement.value.args else None
        if verdict is not None and isinstance(call, ast.Call):
            gold, predicted = (values[ast.unparse(argument)][0][0] for argument in call.args[:2])
            yield Pair(gold, predicted, verdict)


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


if __name__ == "__main__":
    main()
