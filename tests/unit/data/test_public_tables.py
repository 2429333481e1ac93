"""The tables that public RL recipes train on: `gtpo init` types a recipe that reads them as they are.

The rows are made here, in the columns and the nesting of the data sets' cards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pytest
from typer.testing import CliRunner

from gtpo_cli.cli.app import app
from gtpo_cli.data import PromptEncoder, load_problems, prepare
from gtpo_cli.data.preparation import Prepared
from gtpo_cli.errors import DataError, RecipeError
from gtpo_cli.machine.first_recipe import first_recipe
from gtpo_cli.policy.loading import read_model
from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.recipe.data import PAPER_SYSTEM_PROMPT, SourceRecipe
from gtpo_cli.rewards.equality import answers_equal

Row = dict[str, Any]
Turns = tuple[tuple[str, str], ...]


def verl(gold: Any, *messages: tuple[str, str], **changes: Any) -> Row:
    """A row in the format of verl, which DAPO-Math-17k and Skywork-OR1 share."""
    return {
        "data_source": "made",
        "prompt": [{"role": role, "content": content} for role, content in messages],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"split": "train", "index": 0},
    } | changes


def numina(question: str, answer: str | None, **changes: Any) -> Row:
    return {
        "problem": question, "solution": f"We find {answer}.", "answer": answer, "problem_type": "Algebra",
        "question_type": "math-word-problem", "problem_is_valid": "Yes", "solution_is_valid": "Yes", "source": "made",
        "synthetic": False,
    } | changes  # fmt: skip


def openr1(question: str, answer: str) -> Row:
    trace = f"<think>Add.</think> It is \\boxed{{{answer}}}."
    return {
        "problem": question, "solution": f"Thus \\boxed{{{answer}}}.", "answer": answer, "problem_type": "Algebra",
        "question_type": "math-word-problem", "source": "made", "uuid": "0-1", "is_reasoning_complete": [True, False],
        "generations": [trace, "<think>Add"], "correctness_math_verify": [True, False], "correctness_llama": None,
        "finish_reasons": ["stop", "length"], "correctness_count": 1,
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": trace}],
    }  # fmt: skip


def orz(question: str, answer: str) -> list[Row]:
    truth = {"value": answer, "pass_at_n": 0.5}
    return [{"from": "human", "value": question}, {"from": "assistant", "ground_truth": truth}]


DAPO = 'Work it out. End with a line of the form Answer: $Answer (no quotes).\n\n{}\n\nWrite it after "Answer:".'
HASHES = '{} Think, and write the result after "####".'
BOXED = "{} Give the final answer within \\boxed{{}}."
IN_VERL = {"question": "prompt", "answer": "reward_model.ground_truth"}
VERL_UNUSED = ("data_source", "ability", "extra_info")
NUMINA_UNUSED = (
    "problem_type", "question_type", "problem_is_valid", "solution_is_valid", "source", "synthetic",
)  # fmt: skip
OPENR1_UNUSED = (
    "problem_type", "question_type", "source", "uuid", "is_reasoning_complete", "generations",
    "correctness_math_verify", "correctness_llama", "finish_reasons", "correctness_count", "messages",
)  # fmt: skip
DIFFICULTY = {"DeepSeek-R1-Distill-Qwen-1.5B": 3, "DeepSeek-R1-Distill-Qwen-7B": 0}


class Table(NamedTuple):
    """A table's rows, and what is found in them. `problems`: question, gold answer, solution and turns."""

    rows: list[Any]
    columns: dict[str, str]
    problems: list[tuple[str, str, str | None, Turns]]
    unused: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    answer: str = "tags"


TABLES = {
    "dapo": Table(
        [
            verl("34", ("user", DAPO.format("What is 17 * 2?")), ability="MATH", extra_info={"index": "9a-b"}),
            verl("", ("user", DAPO.format("What is 17 * 3?")), ability="MATH", extra_info={"index": "9a-c"}),
        ],
        IN_VERL,
        [(DAPO.format("What is 17 * 2?"), "34", None, ())],
        VERL_UNUSED,
        ("empty gold answer",),
        answer="last_line",
    ),
    "dapo_processed": Table(  # the column solution holds the gold answer alone
        [
            {"prompt": "What is 17 * 2?", "solution": "34"}
            | verl("34", source_prompt=[{"role": "user", "content": DAPO}], prompt="What is 17 * 2?")
        ],
        IN_VERL | {"solution": "solution"},
        [("What is 17 * 2?", "34", None, ())],
        ("data_source", "ability", "extra_info", "source_prompt"),
    ),
    "deepscaler": Table(
        [
            {"problem": "Halve $7$.", "answer": r"\frac{7}{2}", "solution": r"It is $\boxed{\frac{7}{2}}$."},
            {"problem": "Halve $9$.", "answer": "$4.5$", "solution": ""},
            {"problem": "Halve $5$.", "answer": "", "solution": "It is 2.5."},
        ],
        {"question": "problem", "answer": "answer", "solution": "solution"},
        [
            ("Halve $7$.", r"\frac{7}{2}", r"It is $\boxed{\frac{7}{2}}$.", ()),
            ("Halve $9$.", "$4.5$", None, ()),
        ],
        dropped=("empty gold answer",),
    ),
    "big_math": Table(
        [
            {"problem": "1+1?", "answer": "2", "source": "made", "domain": ["A -> B"], "llama8b_solve_rate": 0.25},
            {"problem": "1+2?", "answer": "3", "source": "made", "domain": [], "llama8b_solve_rate": None},
        ],
        {"question": "problem", "answer": "answer"},
        [("1+1?", "2", None, ()), ("1+2?", "3", None, ())],
        ("source", "domain", "llama8b_solve_rate"),
    ),
    "openr1": Table(
        [openr1("1+1?", "2")],
        {"question": "problem", "answer": "answer", "solution": "solution"},
        [("1+1?", "2", r"Thus \boxed{2}.", ())],
        OPENR1_UNUSED,
    ),
    "numina": Table(
        [
            numina("1+1?", "2"),
            numina("Show it.", "proof", question_type="proof"),
            numina("Which?\nA) 1\nB) 2", "B", question_type="MCQ"),
            numina("Where?", "notfound"),
            numina("When?", None),
        ],
        {"question": "problem", "answer": "answer", "solution": "solution"},
        [("1+1?", "2", "We find 2.", ()), ("Which?\nA) 1\nB) 2", "B", "We find B.", ())],
        NUMINA_UNUSED,
        ("unusable gold answer: 'proof'", "unusable gold answer: 'notfound'", "empty gold answer"),
    ),
    "skywork": Table(  # any of several answers is right there; here a problem has one
        [
            verl('["34"]', ("user", "17 * 2?"), extra_info={"index": 1, "model_difficulty": DIFFICULTY}),
            verl(r'["\\frac{1}{2}"]', ("user", "1 / 2?"), extra_info={"index": 2, "model_difficulty": DIFFICULTY}),
            verl('["1", "-1"]', ("user", "x^2 = 1?"), extra_info={"index": 3, "model_difficulty": DIFFICULTY}),
        ],
        IN_VERL,
        [("17 * 2?", "34", None, ()), ("1 / 2?", r"\frac{1}{2}", None, ())],
        VERL_UNUSED,
        ("""unusable gold answer: '["1", "-1"]'""",),
    ),
    "orz_hub": Table(  # the hub calls the messages of a row 0 and 1
        [{"0": question, "1": answer} for question, answer in (orz("1+1?", "2"), orz("1+2?", ""))],
        {"question": "0.value", "answer": "1.ground_truth.value"},
        [("1+1?", "2", None, ())],
        dropped=("empty gold answer",),
    ),
    "orz_eval": Table(
        [{"prompt": [{"from": "user", "value": "1+1?"}], "final_answer": "2", "file_name": "made"}],
        {"question": "prompt", "answer": "final_answer"},
        [("1+1?", "2", None, ())],
        ("file_name",),
    ),
    "verl_gsm8k": Table(
        [
            verl("2", ("user", HASHES.format("1+1?")), extra_info={"answer": "1+1=2\n#### 2", "question": "1+1?"}),
        ],
        IN_VERL,
        [(HASHES.format("1+1?"), "2", None, ())],
        VERL_UNUSED,
        answer="hashes",
    ),
    "verl_math": Table(
        [verl("2", ("user", BOXED.format("1+1?")))],
        IN_VERL,
        [(BOXED.format("1+1?"), "2", None, ())],
        VERL_UNUSED,
        answer="boxed",
    ),
    "verl_system": Table(
        [verl("2", ("system", "You count."), ("user", "1+1?"))],
        IN_VERL,
        [("1+1?", "2", None, (("system", "You count."), ("user", "1+1?")))],
        VERL_UNUSED,
    ),
}


def written(folder: Path, rows: list[Any], suffix: str) -> Path:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif suffix == ".json":
        path.write_text(json.dumps(rows, indent=4))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def typed(folder: Path, path: Path) -> tuple[str, Recipe, Prepared, str]:
    """What `gtpo init` says, the recipe that it writes, its data, and the first prompt as the model gets it."""
    file = folder / "mine.yaml"
    model_name = str(resolve_name("builtin:tiny"))
    done = CliRunner().invoke(app, ["init", str(file), "--model", model_name, "--data", str(path)])
    if done.exception is not None:
        raise done.exception
    recipe = load_recipe(file)
    model = read_model(recipe.model)
    encoder = PromptEncoder(model.tokenizer, recipe.data.system_prompt)
    data = prepare(recipe, encoder, model.context)
    problem = data.prompts[0][0]
    return done.output, recipe, data, encoder.render(problem.question, problem.turns)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("name", TABLES)
def test_the_table_is_read_as_it_is(tmp_path: Path, name: str, suffix: str) -> None:
    table = TABLES[name]
    path = written(tmp_path, table.rows, suffix)
    said, recipe, data, prompt = typed(tmp_path, path)
    assert recipe.data.columns.model_dump(exclude_none=True) == table.columns
    assert recipe.data.gold == "column"
    assert (recipe.rewards.answer, recipe.rewards.accuracy.equality) == (table.answer, "mathematics")
    found = [(problem.question, problem.gold, problem.solution, problem.turns) for problem, _ in data.prompts]
    assert found == table.problems
    assert ("no use is made of" in said) == bool(table.unused)
    loaded = load_problems(recipe.data, seed=0)
    assert [row.reason for row in loaded.dropped] == list(table.dropped)
    assert set(loaded.unused) == set(table.unused)
    # no prompt asks for two forms of answer
    assert recipe.data.system_prompt == (PAPER_SYSTEM_PROMPT if table.answer == "tags" else None)
    own = dict(table.problems[0][3]).get("system")
    system = own or recipe.data.system_prompt
    assert prompt.count(table.problems[0][0]) == 1
    assert ("<answer>" in prompt) == (table.answer == "tags" and own is None)
    assert system is None or system.strip() in prompt
    assert not [note for note in data.notes if "ask for the answer" in note]
    assert [note for note in data.notes if "own system message" in note] == (
        ["1 prompt with its own system message, which replaces data.system_prompt"] if own else []
    )


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_open_reasoner_zero_has_lists_of_messages_for_rows(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path, [orz("1+1?", "2"), orz("1+2?", r"\boxed{3}"), orz("1+3?", "")], suffix)
    said, recipe, data, _ = typed(tmp_path, path)
    assert (recipe.data.columns.question, recipe.data.columns.answer) == ("0.value", "1.ground_truth.value")
    assert [(problem.question, problem.gold) for problem, _ in data.prompts] == [("1+1?", "2"), ("1+2?", r"\boxed{3}")]
    assert "no use is made of" not in said
    assert f"dropped 1 row (1 empty gold answer): {path}:3 empty gold answer" in data.notes


def test_the_hub_reads_the_same_lists(tmp_path: Path) -> None:
    written(tmp_path, [orz(f"{n}+1?", str(n + 1)) for n in range(3)], ".json")
    made = first_recipe("builtin:tiny", {"benchmark": "hub", "dataset": str(tmp_path)}, None)
    assert "columns: {question: 0.value, answer: 1.ground_truth.value}" in made.text
    source = SourceRecipe.model_validate(
        {"benchmark": "hub", "dataset": str(tmp_path), "columns": TABLES["orz_hub"].columns}
    )
    assert [problem.gold for problem in load_problems(source, seed=0).problems] == ["1", "2", "3"]


def test_rows_of_longer_chats_are_no_question_and_answer(tmp_path: Path) -> None:
    path = written(tmp_path, [orz("1+1?", "2") + orz("1+2?", "3")], ".jsonl")
    with pytest.raises(RecipeError, match="no column is surely the question or the answer; found 0, 1, 2, 3; name"):
        typed(tmp_path, path)


TESTS = {"inputs": ["1\n"], "outputs": ["2\n"]}


@pytest.mark.parametrize("tests", [TESTS, {"functional": "assert f(1) == 2"}, [TESTS]])
def test_the_tests_of_a_program_are_no_gold_answer(tmp_path: Path, tests: Any) -> None:
    """Skywork-OR1's other split: nothing here runs programs."""
    path = written(tmp_path, [verl(json.dumps(tests), ("user", "Write f."), ability="code")], ".jsonl")
    with pytest.raises(
        DataError, match=r"no usable problem; .* tests of a program as gold answer: .*; nothing here runs"
    ):
        typed(tmp_path, path)


# -- gold answers beside the usual ones -------------------------------------------------------------------------------


def load(path: Path, **changes: Any) -> Any:
    return load_problems(SourceRecipe.model_validate({"path": str(path), "columns": IN_VERL} | changes), seed=0)


@pytest.mark.parametrize(
    ("gold", "read"),
    [
        ("$34$", "$34$"),
        (r"\boxed{34}", r"\boxed{34}"),
        (34, "34"),
        (34.0, "34"),
        (["34"], "34"),
        ([34], "34"),
        ('["34"]', "34"),
        ("['34']", "34"),
        (' [ "34" ]\n', "34"),
        ("[34]", "[34]"),  # mathematics
    ],
)
def test_a_gold_answer_is_the_answer_34(tmp_path: Path, gold: Any, read: str) -> None:
    (problem,) = load(written(tmp_path, [verl(gold, ("user", "17 * 2?"))], ".jsonl"), gold="column").problems
    assert problem.gold == read
    assert answers_equal(problem.gold, "34")
    assert not answers_equal(problem.gold, "35")


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        ("", "empty gold answer"),
        (" ", "empty gold answer"),
        (None, "empty gold answer"),
        ('[""]', "empty gold answer"),
        ([], "reward_model.ground_truth is not text: list []"),
        ([None], "reward_model.ground_truth is not text: list [None]"),
        (["1", "2"], "reward_model.ground_truth is not text: list ['1', '2']"),
        ('["1", "2"]', """unusable gold answer: '["1", "2"]'"""),
        (
            {"a": 1},
            "reward_model.ground_truth is not text: it holds a; name one of them, as reward_model.ground_truth.a",
        ),
        (True, "reward_model.ground_truth is not text: bool True"),
    ],
)  # fmt: skip
def test_a_gold_answer_that_is_none_drops_its_row_and_says_why(tmp_path: Path, gold: Any, reason: str) -> None:
    path = written(tmp_path, [verl("1", ("user", "1?")), verl(gold, ("user", "2?"))], ".jsonl")
    loaded = load(path)
    assert [problem.gold for problem in loaded.problems] == ["1"]
    assert [(row.source, row.reason) for row in loaded.dropped] == [(f"{path}:2", reason)]


def test_a_table_without_the_gold_column_names_what_it_has(tmp_path: Path) -> None:
    row = verl("1", ("user", "1?"), reward_model=None)
    with pytest.raises(DataError, match=r"no usable problem; dropped 1 row .*empty gold answer"):
        load(written(tmp_path, [row], ".jsonl"))
    del row["reward_model"]
    with pytest.raises(DataError, match=r"no column reward_model.ground_truth: found data_source, prompt, ability"):
        load(written(tmp_path, [row], ".jsonl"))


# -- data.where, on what these tables say about their rows ------------------------------------------------------------


def test_ranges_on_difficulties_whose_names_have_dots(tmp_path: Path) -> None:
    path = written(tmp_path, TABLES["skywork"].rows, ".parquet")
    inside = "extra_info.model_difficulty.DeepSeek-R1-Distill-Qwen-"
    assert [problem.gold for problem in load(path, where={f"{inside}1.5B": [1, 15]}).problems] == ["34", r"\frac{1}{2}"]
    with pytest.raises(DataError, match=r"3 rows outside data.where \(.*Qwen-7B goes from 0 to 0\)"):
        load(path, where={f"{inside}7B": [1, 15]})


def test_yes_and_no_are_numbers_for_a_range(tmp_path: Path) -> None:
    valid = ["Yes", "No", "Incomplete", "true", "false"]
    rows = [numina(f"{n}?", str(n), problem_is_valid=said) for n, said in enumerate(valid)]
    columns = {"question": "problem", "answer": "answer"}
    loaded = load(written(tmp_path, rows, ".parquet"), columns=columns, where={"problem_is_valid": [1, 1]})
    assert [problem.gold for problem in loaded.problems] == ["0", "3"]
    assert loaded.outside == 2
    assert [row.reason for row in loaded.dropped] == ["no number in problem_is_valid: 'Incomplete'"]
