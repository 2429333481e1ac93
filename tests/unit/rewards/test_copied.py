"""Copying the question is no answer, nor is an expression where a number is asked; legitimate forms are answers."""

import json
import random
from pathlib import Path

import pytest
from copies import CHANGES, THE_SAME_TEXT, formulas, is_own_text_or_number
from rewritings import REWRITINGS

from gtpo_cli.evaluation.measure import grade
from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import EqualityWorkers, Scorer, accuracy_reward, answers_equal
from gtpo_cli.types import Completion, Group, Problem

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "math" / "test.jsonl"
needs_math = pytest.mark.skipif(not DATA.is_file(), reason="needs the MATH files in ../shared/data")

# (gold answer, predicted answer, question)
ANSWERS = [
    (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt3}{2}", "What is $\\cos 30^\\circ$?"),
    (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2", "What is $\\cos 30^\\circ$?"),
    (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt{3}}{2}", r"Is $\cos 30^\circ$ equal to $\frac{\sqrt{3}}{2}$?"),
    (r"\frac{\sqrt{3}}{2}", r"\frac{3}{2\sqrt{3}}", "What is $\\cos 30^\\circ$?"),
    ("2^4 3^2", r"2^4\cdot3^2", "Factor 144."),
    ("2^4 3^2", r"3^2 \times 2^4", "Factor 144."),
    (r"\sqrt8", r"2\sqrt2", "How long is the diagonal of a square whose area is 4?"),
    ("0.5", r"\frac{1}{2}", "How likely is heads?"),
    (r"\frac{3}{2}", r"\frac{6}{4}", "What is the slope?"),
    ("18", "36/2", "What is half of 36?"),
    ("5", "x = 5", "Solve $2x = 10$."),
    ("5", "5", "If $x = 5$ and $y = 6$, what is the smaller one?"),
    ("50", r"50\%", "What share is it?"),
    (r"50\%", "0.5", "What share is it?"),
    ("1, 2", "2, 1", "Solve $x^2 - 3x + 2 = 0$."),
    (r"\frac{5}{2}", r"2\frac{1}{2}", "What is $5/2$ as a mixed number?"),
    ("1500", r"1.5 \times 10^3", "How many grams?"),
    ("1000000", "10^6", "How many?"),
    ("3", "--3", "What is it?"),
    ("(x+5)^2", "(5+x)^2", "Factor $x^2+10x+25$."),
    ("3+2x", "2x+3", "What is $x+x+3$?"),
    ("x^2+10x+25", "x^2+25+10x", "Expand $(x+5)^2$."),
    ("x^2+10x+25", "(x+5)^2", "Which polynomial has the double root $-5$?"),
    (r"\frac{3}{10}", "3/10", r"Which is greater, $\frac{3}{10}$ or $\frac14$?"),
    (r"\text{(B)}", "B", r"Which is right? $\text{(A)}\ 1 \qquad \text{(B)}\ 2$"),
    (r"\ln 2", r"\frac{1}{2} \ln 4", "What is the half-life?"),
    (r"\text{Monday}", "monday", "Is it Monday or Sunday?"),
    ("x+3", "3+x", "One factor of $x^2 + 5x + 6$ is $x+2$. Which is the other?"),
    ("2x", "2x", "What is $x+x$, $2x$ or $x^2$?"),
    ("12", "12.0", "What is 12?"),
    ("20", "20 dollars", r"Ann has 20 dollars more than Bob, who has none."),
    # the gold answer stands in the question: a choice
    (r"\frac{1}{2}x", r"\frac{x}{2}", r"Which is smaller for $x>0$, $\frac{1}{2}x$ or $x^2+x$?"),
    ("x+3", "x+3", "Which divides $x^2+5x+6$: $x+3$ or $x+4$?"),
    ("x+3", "(3+x)", "Which divides $x^2+5x+6$: $x+3$ or $x+4$?"),
    # a formula of the question that is worth something else may stand in the answer
    ("(x+1)^2+3", "3+(1+x)^2", "If $f(x) = (x+1)^2$, what is $f(x) + 3$?"),
    ("x^2+10x+25", "x(x+10)+25", "Expand $(x+5)^2$."),
    ("t^2+2t+1", "(t+1)^2", "If $f(x) = (x+1)^2$, what is $f(t)$?"),
    ("2x^2-2", "2(x-1)(x+1)", "[asy] real f(real x) {return 2*(x+1)*(x-1);} [/asy] Which polynomial is drawn?"),
    ("6x", r"3 \cdot 2x", "Find d/dx 3x^2"),
    (r"\frac{x^3}{3}", "x^3/3", r"Find $\int_0^x t^2\,dt$."),
    (r"\frac{n(n+1)}{2}", r"\binom{n+1}{2}", r"What is $1+2+\dots+n$?"),
    (r"\frac{d}{2}", "d/2", "A circle has the diameter $d$. How long is its radius?"),
    (r"\int_0^x f(t)\,dt", r"\int_0^x f(t) dt", "Write the area as an integral."),
    (r"\begin{pmatrix} 2 \\ 4 \end{pmatrix}", r"2 \begin{pmatrix} 1 \\ 2 \end{pmatrix}", "Double $(1, 2)$."),
    (r"\begin{pmatrix} 2 \\ 4 \end{pmatrix}", r"\begin{bmatrix} \frac{4}{2} \\ 4.0 \end{bmatrix}", "Double $(1, 2)$."),
    (r"\frac{3}{2}", r"1\frac{1}{2}", r"What is $1+\frac{1}{2}$?"),
    (r"\frac{\pi}{2}", r"\frac{2\pi}{4}", r"Convert $90^\circ$ to radians."),
    ("(x+3)(x-3)", "-(3-x)(x+3)", "Factor $x^2-9$."),
    ("-a-b", "-(a+b)", r"Simplify $\frac{a^2-b^2}{b-a}$."),
    (r"\frac{\sqrt2}{2}", r"\frac12\sqrt2", r"Rationalize $\frac{1}{\sqrt2}$."),
    (r"0.\overline{3}", "0.(3)", "Write 1/3 as a decimal."),
]  # fmt: skip
NO_ANSWERS = [
    ("8", r"8 \div 2 \div 2 + 6", r"What is the value of $8 \div 2 \div 2 + 6$?"),
    ("8", "8/2/2+6", r"What is the value of $8 \div 2 \div 2 + 6$?"),
    ("72", "48 + 24", "Natalia sold 48 clips in April and half as many in May. How many altogether?"),
    ("72", "x = 48 + 24", "How many altogether?"),
    ("120", "5!", "How many orders are there?"),
    ("1024", "2^{10}", "How many subsets?"),
    ("3", r"\sqrt{9}", "How long?"),
    ("10", r"\binom{5}{2}", "How many?"),
    ("10", r"{5 \choose 2}", "How many?"),
    ("3", r"\log_2 8", r"What is $\log_2 8$?"),
    (r"25\%", r"\frac{1+1}{8}", "Which share?"),
    ("5", r"\left\lfloor\frac{36}{7}\right\rfloor", "What is it?"),
    ("x^2+10x+25", "(x+5)^2", "Expand $(x+5)^2$."),
    ("x^2+10x+25", r"\left( x + 5 \right) ^ {2}", "Expand $(x+5)^2$."),
    ("x^2+10x+25", r"$y = (x+5)^2$", "Expand $y = (x+5)^2$."),
    ("(x+5)^2", "x^2 + 10x + 25", "Factor $x^2+10x+25$."),
    ("2x^2-18", r"(x+3)\cdot(2x-6)", "Expand $(x+3)(2x-6)$."),
    (r"\frac{4}{5}", r"\frac{16}{20}", r"Simplify $\frac{16}{20}$."),
    (r"\frac{4}{5}", r"16/20", r"Simplify $16/20$."),
    ("4.5", r"\frac{9}{2}", r"Write $\frac{9}{2}$ as a decimal."),
    ("3", "g(x) = 3", "For which $x$ is $g(x) = 3$?"),
    (r"2-\sqrt{3}", r"\tan 15^\circ", r"Find $\tan 15^\circ$."),
    (r"11\sqrt2", r"\sqrt{242}", r"Simplify $\sqrt{242}$."),
    (r"\frac{\sqrt7}{14}", r"\frac1{2\sqrt7}", r"Rationalize the denominator of $\frac{1}{2\sqrt{7}}$."),
    ("-11 + 27i", "(5-3i)(-4+3i)", "Compute $(5-3i)(-4+3i)$."),
    (r"\cot x", r"\frac{\sec x}{\sin x} - \frac{\sin x}{\cos x}",
     r"Simplify \[\frac{\sec x}{\sin x} - \frac{\sin x}{\cos x}.\]"),
    (r"\begin{pmatrix} 3 \\ 3 \end{pmatrix}",
     r"\begin{pmatrix} 1 \\ 4 \end{pmatrix} + \begin{pmatrix} 2 \\ -1 \end{pmatrix}",
     r"Compute \[\begin{pmatrix} 1 \\ 4 \end{pmatrix} + \begin{pmatrix} 2 \\ -1 \end{pmatrix}.\]"),
    (r"3, 2\sqrt{2}", r"1+2, \sqrt{8}", "Find both."),
    (r"2\sqrt{2}, x", r"x, \sqrt{8}", r"Simplify $\sqrt{8}$ and $x$."),
    ("(3, 4)", "(1+2, 4)", "Where is the point?"),
    (r"3720", r"3.72 \times 10^3", r"Write $3.72\times 10^3$ in full."),
    (r"\frac{6}{11}", r"+0.\overline{54}", r"Write $0.\overline{54}$ as a fraction."),
    (r"\frac{\pi}{2}", "90 degrees", r"Convert $90^\circ$ to radians."),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "predicted", "question"), ANSWERS)
def test_what_is_worked_out_is_an_answer(gold: str, predicted: str, question: str) -> None:
    assert answers_equal(gold, predicted, question=question)


@pytest.mark.parametrize(("gold", "predicted", "question"), NO_ANSWERS)
def test_what_is_copied_or_not_worked_out_is_none(gold: str, predicted: str, question: str) -> None:
    assert answers_equal(gold, gold, question=question)
    assert answers_equal(gold, predicted)  # it has the right value
    assert not answers_equal(gold, predicted, question=question)


@pytest.mark.slow
def test_training_and_evaluation_refuse_copies() -> None:
    problem = Problem("p", "Expand $(x+5)^2$ now.", "x^2+10x+25")
    texts = [f"<reasoning>r</reasoning><answer>{answer}</answer>" for answer in ("(x+5)^2", "25+10x+x^2")]
    completions = tuple(Completion((5,), (0.0,), "stop", text) for text in texts)
    group = Group(problem, (1,), completions)
    with Scorer(RewardsRecipe(), num_workers=1) as scorer:
        for completion in completions:
            scorer.begin(problem, completion)
        trained = [verdict.correct for verdict in scorer.score_groups([group])[0].verdicts]
    with Scorer(RewardsRecipe()) as scorer:
        (evaluated,) = grade([group], [[0.0, 0.0]], scorer)
    assert trained == [completion.correct for completion in evaluated.completions] == [False, True]


@pytest.mark.parametrize(
    ("answer", "question", "equal"),
    [
        ("5 apples", "How many apples are left?", True),
        ("5 apples", "Is there one apple for each child? How many are left?", True),
        ("5 red apples", "How many of the red apples are left?", True),
        ("5 pears", "How many apples are left?", False),
        ("5 red apples", "How many apples are left?", False),
        ("6 apples", "How many apples are left?", False),
        ("5 dozen apples", "How many dozen apples are left?", False),
        ("5 or 6 apples", "How many apples are left?", False),
    ],
)
def test_a_noun_of_the_question_may_follow_the_number(answer: str, question: str, equal: bool) -> None:
    assert answers_equal("5", answer, question=question) is equal


@pytest.mark.parametrize("answer", ["-(7/4)", r"-\left(1\frac34\right)", r"-(1\frac{3}{4})"])
def test_a_negative_fraction_in_brackets_is_a_number(answer: str) -> None:
    assert answers_equal(r"-\frac{7}{4}", answer, question="What is it?")


def test_the_accuracy_reward_takes_the_question() -> None:
    text = "<reasoning>r</reasoning><answer>9+9</answer>"
    assert accuracy_reward(text, "18") == 10.0
    assert accuracy_reward(text, "18", question="What is 9+9?") == 0.0


# -- MATH -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problems() -> list[dict[str, str]]:
    return [json.loads(line) for line in DATA.open()]


def accepted(workers: EqualityWorkers, problems: list[dict[str, str]]) -> tuple[int, list[tuple[str, str]]]:
    """How many questions were tried, and the copied formulas that were accepted."""
    asked = [(row["answer"], formula, row["problem"]) for row in problems for formula in formulas(row["problem"])]
    grades = workers.equal_many(asked)
    copies = [pair[:2] for pair, grade in zip(asked, grades, strict=True) if grade.equal]
    return len({pair[2] for pair in asked}), [pair for pair in copies if not is_own_text_or_number(*pair)]


@needs_math
def test_formulas_of_250_questions_of_math_are_no_answers(
    workers: EqualityWorkers, problems: list[dict[str, str]]
) -> None:
    with_formula = [row for row in problems if formulas(row["problem"])]
    tried, copies = accepted(workers, random.Random(0).sample(with_formula, 250))
    assert (tried, copies) == (250, [])


@pytest.mark.parametrize("change", THE_SAME_TEXT)
@pytest.mark.parametrize(
    ("question", "gold", "copy"),
    [
        ("Expand $(x+5)^2$.", "x^2+10x+25", "(x+5)^2"),
        (r"Simplify $\sqrt{242}$.", r"11\sqrt2", r"\sqrt{242}"),
        ("Compute $(5-3i)(-4+3i)$.", "-11+27i", "(5-3i)(-4+3i)"),
        (r"Let \(y = \frac{x^2-1}{x-1}\). Simplify $y$.", "x+1", r"\frac{x^2-1}{x-1}"),
    ],
)
def test_a_copy_is_none_however_it_is_spaced_or_bracketed(change: str, question: str, gold: str, copy: str) -> None:
    for text in CHANGES[change](copy):
        assert not answers_equal(gold, text, question=question), text


@pytest.fixture(scope="module")
def worth_the_gold(workers: EqualityWorkers, problems: list[dict[str, str]]) -> list[tuple[str, str, str]]:
    """(gold answer, formula of the question that is worth as much and is not written so, question), of a third."""
    found = [(row["answer"], formula, row["problem"]) for row in problems[::3] for formula in formulas(row["problem"])]
    found = [triple for triple in found if not is_own_text_or_number(*triple[:2])]
    grades = workers.equal_many([triple[:2] for triple in found])
    return [triple for triple, grade in zip(found, grades, strict=True) if grade.equal]


@pytest.mark.long
@needs_math
@pytest.mark.parametrize("change", CHANGES)
def test_copies_of_math_that_are_accepted(
    workers: EqualityWorkers, worth_the_gold: list[tuple[str, str, str]], change: str
) -> None:
    asked = [(gold, text, question) for gold, formula, question in worth_the_gold for text in CHANGES[change](formula)]
    grades = workers.equal_many(asked)
    accepted = {pair[2]: pair[1] for pair, grade in zip(asked, grades, strict=True) if grade.equal}
    assert len(worth_the_gold) > 80
    assert len(accepted) <= (0 if change in THE_SAME_TEXT else 55), accepted


@needs_math
@pytest.mark.parametrize("name", REWRITINGS)
def test_no_rewriting_of_a_gold_answer_is_lost(
    workers: EqualityWorkers, problems: list[dict[str, str]], name: str
) -> None:
    pairs = [(row["answer"], REWRITINGS[name](row["answer"]), row["problem"]) for row in problems]
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    pairs = random.Random(0).sample(pairs, min(50, len(pairs)))
    assert pairs
    assert [pair[:2] for pair, grade in zip(pairs, workers.equal_many(pairs), strict=True) if not grade.equal] == []
