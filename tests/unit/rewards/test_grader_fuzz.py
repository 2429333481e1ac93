"""Random completions and answers, made of what the grader knows and of anything: it never raises, hangs or is fooled.

Each property counts its inputs and holds itself to a minimum; the counts go to build/grader_fuzz.json, -s shows them.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from gtpo_cli.rewards import EqualityWorkers, accuracy_reward, extract_answer, format_reward, is_strict_format
from gtpo_cli.rewards.equality import equal_without_algebra
from gtpo_cli.rewards.extract import TAGS

pytestmark = pytest.mark.slow

COUNTS_FILE = Path(__file__).parents[3] / "build" / "grader_fuzz.json"
TIMEOUT_SECONDS = 1.0
START_SECONDS = 20.0  # a worker that was killed is replaced first
NUMBERS = "0 1 2 3 7 9 18 36 0.5 .5 1,319 1e3 10^{-3} \u0661\u0668 \uff11\uff18 \u00b2 1_8 007 18. 3/4".split()
OPERATORS = (
    "+ - * / ^ _ = == != < > <= >= := ! % & | : ; , . ~ ** \u2212 \u00d7 \u00b7 \u00f7 \u00b1 \u221a \u2264".split()
)
BRACKETS = r"( ) [ ] { } \{ \} \left( \right) \langle \rangle | \| $ $$ \( \) \[ \]".split()
COMMANDS = (
    r"\frac \dfrac \sqrt \binom \cdot \times \div \pm \mp \cup \cap \setminus \in \notin \not \ne \neq \le \ge \approx "
    r"\infty \emptyset \pi \theta \Delta \sin \cos \tan \log \ln \exp \lim \sum \prod \int \max \min \gcd \lfloor "
    r"\rfloor \text \mathrm \mathbf \mathbb{R} \boxed \phantom \vspace \circ ^\circ \% \, \! \quad \ldots "
    r"\begin{pmatrix} \end{pmatrix} \\ \begin{cases} \end{cases} \overline \to \mapsto \lor \text{or}"
).split()
WORDS = "x y n e i X or and not to in cm dollars percent million apples pi sqrt Monday no solution".split()
INVISIBLE = [" ", "\n", "\u00a0", "\u200b", "\u200f", "\u202e", "\x00", "\ud800", "\u0301", "\U0001d7cf"]

tokens = st.sampled_from([*NUMBERS, *OPERATORS, *BRACKETS, *COMMANDS, *WORDS, *INVISIBLE])
grammar = st.builds(str.join, st.sampled_from(["", " "]), st.lists(tokens, max_size=14))
anything = st.text(st.characters(exclude_categories=()), max_size=40)
answers = grammar | anything
pieces = st.lists(st.sampled_from(TAGS) | st.sampled_from([tag[:-1] for tag in TAGS]) | tokens | anything, max_size=12)
completions = pieces.map("".join)


@pytest.fixture(scope="module")
def counts() -> Iterator[Counter[str]]:
    """How many inputs each property was tried on."""
    counts: Counter[str] = Counter()
    yield counts
    COUNTS_FILE.parent.mkdir(exist_ok=True)
    COUNTS_FILE.write_text(json.dumps({**counts, "inputs": counts.total()}, indent=1) + "\n")
    sys.stdout.write(f"\n{counts.total()} inputs: {dict(counts)}\n")


@pytest.fixture(scope="module")
def workers() -> Iterator[EqualityWorkers]:
    with EqualityWorkers(1, timeout_seconds=TIMEOUT_SECONDS) as workers:
        yield workers


@pytest.fixture(scope="module", autouse=True)
def _inputs_of_no_tree() -> Iterator[None]:
    """Hypothesis takes constants from the code of the tree: every change of it would change the inputs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(providers, "_get_local_constants", lambda: providers.Constants())
        yield


def fuzz(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize="GTPO_FUZZ_NEW" not in os.environ,  # the same inputs each time, unless new ones are asked for
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )


def graded(workers: EqualityWorkers, gold: str, predicted: str) -> bool | None:
    """The verdict, in time; None where the answer took too long or too much memory."""
    start = time.monotonic()
    (grade,) = workers.equal_many([(gold, predicted)])
    assert time.monotonic() - start < 2 * TIMEOUT_SECONDS + START_SECONDS
    return None if grade.timed_out or grade.crashed else grade.equal


def test_extraction_takes_any_text(counts: Counter[str]) -> None:
    @fuzz(10_000)
    @given(completions)
    def check(text: str) -> None:
        counts["extraction"] += 1
        strict, presence = extract_answer(text), extract_answer(text, mode="presence")
        for answer in (strict, presence):
            assert answer is None or (answer in text and answer == answer.strip())
        assert presence is None or not any(tag in presence for tag in TAGS[2:])
        assert (strict is not None) == is_strict_format(text)
        if strict is not None:
            assert strict == presence
            assert format_reward(text) == format_reward(text, mode="presence") == 10
        assert format_reward(text) in (0, 1, 10)
        assert format_reward(text, mode="presence") >= format_reward(text)
        if strict is None:
            assert accuracy_reward(text, "18") == 0  # no reward without the tags, whatever stands in the text

    check()
    assert counts["extraction"] >= 9_000


def test_a_gold_answer_equals_itself_if_and_only_if_it_is_usable(
    counts: Counter[str], workers: EqualityWorkers
) -> None:
    @fuzz(2_500)
    @given(answers)
    def check(gold: str) -> None:
        counts["equal to itself"] += 1
        verdict = graded(workers, gold, gold)
        if verdict is not None:
            assert workers.usable_many([gold], timeout_seconds=30.0) == [verdict]

    check()
    assert counts["equal to itself"] >= 2_000


SEPARATORS = [
    " or ",
    ", ",
    "; ",
    " and ",
    "\n",
    " ",
    ", or ",
    " / or / ",
    " | ",
    r" \text{ or } ",
    r" \lor ",
    " vs ",
    r"\\",
    " & ",
]


def test_the_gold_answer_among_others_is_not_the_answer(counts: Counter[str], workers: EqualityWorkers) -> None:
    @fuzz(2_500)
    @given(
        st.integers(10, 99),
        st.lists(st.integers(100, 999), min_size=1, max_size=6),
        st.integers(0, 6),
        st.sampled_from(SEPARATORS),
        st.sampled_from(["{}", r"\boxed{{{}}}", "${}$", r"\{{{}\}}", "({})", "x = {}", r"\text{{{}}}", "{}.", "[{}]"]),
        st.sampled_from(["{}", "${}$", r"\boxed{{{}}}", "x = {}", r"\sqrt{{{}}}"]),
    )
    def check(gold: int, decoys: list[int], place: int, separator: str, around: str, each: str) -> None:
        counts["decoys"] += 1
        candidates = [each.format(number) for number in [*decoys[:place], gold, *decoys[place:]]]
        assert not graded(workers, each.format(gold).removeprefix("x = "), around.format(separator.join(candidates)))

    check()
    assert counts["decoys"] >= 2_000


# LaTeX and its exact value: an oracle that knows nothing of the grader.
Term = tuple[str, Fraction]
leaves = st.integers(0, 12).map(lambda n: (str(n), Fraction(n))) | st.tuples(st.integers(1, 9), st.integers(2, 9)).map(
    lambda pair: (rf"\frac{{{pair[0]}}}{{{pair[1]}}}", Fraction(*pair))
)


def combined(children: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    def put_together(left: Term, right: Term, operator: str) -> Term:
        (a, x), (b, y) = left, right
        if operator == "+":
            return f"{a}+({b})", x + y
        if operator == "-":
            return f"{a}-({b})", x - y
        if operator == "/":
            return (rf"\frac{{{a}}}{{{b}}}", x / y) if y else (a, x)
        if operator == "^":
            return f"({a})^{{2}}", x**2
        if operator == "beside":
            return f"({a})({b})", x * y
        return rf"({a}) {operator} ({b})", x * y

    return st.builds(
        put_together, children, children, st.sampled_from(["+", "-", "/", "^", "beside", r"\cdot", r"\times"])
    )


terms = st.recursive(leaves, combined, max_leaves=5)


def test_arithmetic_is_graded_by_its_value(counts: Counter[str], workers: EqualityWorkers) -> None:
    @fuzz(2_500)
    @given(terms, st.fractions(-20, 20, max_denominator=12))
    def check(term: Term, difference: Fraction) -> None:
        latex, value = term
        assume(len(latex) < 200)
        counts["arithmetic"] += 1
        assert graded(workers, str(value), latex) is not False, (latex, value)
        assert not graded(workers, str(value + difference), latex) or difference == 0, (latex, value + difference)

    check()
    assert counts["arithmetic"] >= 2_000


def test_numbers_are_compared_the_same_both_ways(counts: Counter[str]) -> None:
    spelled = st.fractions(-50, 50, max_denominator=20).flatmap(
        lambda value: st.sampled_from(
            [
                str(value),
                rf"\frac{{{value.numerator}}}{{{value.denominator}}}",
                f"${value}$",
                f"({value})",
                f"{value}.",
                f" {value} ",
                rf"\boxed{{{value}}}",
            ]
        ).map(lambda text: (text, value))
    )

    @fuzz(3_000)
    @given(spelled, spelled)
    def check(left: tuple[str, Fraction], right: tuple[str, Fraction]) -> None:
        counts["both ways"] += 1
        assert equal_without_algebra(left[0], right[0]) is (left[1] == right[1])
        assert equal_without_algebra(right[0], left[0]) is (left[1] == right[1])
        assert equal_without_algebra(left[0], f"{left[0]}, {right[0]}") is False

    check()
    assert counts["both ways"] >= 2_500
