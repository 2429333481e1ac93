"""Tables as other tools write them: read, or refused with the cause."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from pyarrow import feather

from gtpo_cli.data import load_problems
from gtpo_cli.data.guess import guessed_data
from gtpo_cli.data.local import find_files, open_files
from gtpo_cli.data.problems import any_gold
from gtpo_cli.data.reading import guessed_columns, own_gold, turns_in
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import SourceRecipe

ROWS = {"question": ["a", "b", "c"], "answer": ["1", "2", "3"]}


def read(path: Path, split: str = "train") -> tuple[str, list[Any]]:
    name, files = find_files(path, split)
    return name, [row for _, row in open_files(name, files).rows]


def test_folders_of_save_to_disk_and_their_files(tmp_path: Path) -> None:
    one = datasets.Dataset.from_dict(ROWS)
    one.save_to_disk(tmp_path / "one", num_shards=2)
    datasets.DatasetDict(train=one, test=one.select([1])).save_to_disk(tmp_path / "both")
    rows = [{"question": question, "answer": answer} for question, answer in zip(*ROWS.values(), strict=True)]
    assert read(tmp_path / "one") == ("one", rows)
    assert read(tmp_path / "one", "test") == ("one", rows)
    assert read(tmp_path / "both") == ("train", rows)
    assert read(tmp_path / "both", "test") == ("test", rows[1:2])
    assert read(tmp_path / "both/train/data-00000-of-00001.arrow") == ("data", rows)
    with pytest.raises(
        DataError, match=r"both: no split tests \(data.split\); found test and train; did you mean test"
    ):
        read(tmp_path / "both", "tests")
    feather.write_feather(pa.table(ROWS), tmp_path / "feather.arrow", compression="uncompressed")
    assert read(tmp_path / "feather.arrow") == ("feather", rows)


def test_columns_of_classes_have_their_names(tmp_path: Path) -> None:
    kinds = datasets.Features(
        {"question": datasets.Value("string"), "answer": datasets.ClassLabel(names=["no", "yes"])}
    )
    written = datasets.Dataset.from_dict({"question": ["a", "b", "c"], "answer": [1, 0, -1]}, features=kinds)
    written.to_parquet(tmp_path / "hub/train.parquet")
    written.save_to_disk(tmp_path / "saved")
    hub = {"benchmark": "hub", "dataset": str(tmp_path / "hub")}
    for source in ({"benchmark": "local", "path": str(tmp_path / "hub")}, hub,
                   {"benchmark": "local", "path": str(tmp_path / "saved")}):  # fmt: skip
        loaded = load_problems(SourceRecipe.model_validate(source), seed=0, is_usable=any_gold, with_columns=True)
        assert [problem.gold for problem in loaded.problems] == ["yes", "no"]
        assert [problem.columns["answer"] for problem in loaded.problems] == [1, 0]  # a reward gets what datasets gives
        assert [row.reason for row in loaded.dropped] == ["empty gold answer"]
    assert guessed_data(SourceRecipe.model_validate(hub))["gold"] == "column"


def test_a_damaged_arrow_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "no.arrow").write_bytes(b"no such thing" * 9)
    with pytest.raises(DataError, match=r"no\.arrow: is not an Arrow file, or is damaged"):
        read(tmp_path / "no.arrow")
    datasets.Dataset.from_dict(ROWS).save_to_disk(tmp_path / "one")
    file = tmp_path / "one/data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:-60])
    with pytest.raises(DataError, match=r"is damaged after row \d"):
        read(tmp_path / "one")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("x-00000-of-00001.txt", "a", r"cannot read \.txt; use \.jsonl"),
        ("x-00000-of-00001", "a", "cannot read a file without suffix"),
        ("rows.jsonl.gz", "\x1f\x8b", r"is compressed \(gzip\); unpack it"),
        ("rows.pq", "PAR1", r"is a Parquet file; name it \.parquet"),
        ("sep.csv", "sep=;\nquestion;answer\na;1\n", r"sep\.csv:1: 'sep=;' is no header"),
        ("said.csv", "# exported today\nquestion,answer\na,1\n", r"said\.csv:1: '# exported today' is no header"),
    ],
)
def test_the_cause_is_named(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=why):
        read(tmp_path / name)


def test_an_address_is_no_path() -> None:
    with pytest.raises(DataError, match=r"data\.path takes no address; download it, or .* data\.dataset"):
        find_files(Path("https://hub.example/x/train.jsonl"), "train")


def test_a_column_that_is_called_by_a_sign_is_a_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("#,question,answer\n1,a,2\n")
    assert read(tmp_path / "t.csv") == ("t", [{"#": "1", "question": "a", "answer": "2"}])


CHAT = [{"role": "user", "content": "What's 1+1?"}, {"role": "assistant", "content": "2"}]


@pytest.mark.parametrize("stored", [CHAT, json.dumps(CHAT), str(CHAT), "\n" + json.dumps(CHAT, indent=1)])
def test_messages_may_be_stored_as_text(stored: Any) -> None:
    assert turns_in({"messages": stored}, "messages") == [("user", "What's 1+1?"), ("assistant", "2")]


@pytest.mark.parametrize("text", ["[1, 2]", '[{"a": 1}]', '[{"role": "user"', "[{'role': open('x')}]", "What is [1]?"])
def test_other_text_stays_text(text: str) -> None:
    assert turns_in({"question": text}, "question") == []


@pytest.mark.parametrize(("value", "gold"), [("2.50", "2.50"), ("7", "7"), ("1E+2", "100")])
def test_a_decimal_is_a_number(value: str, gold: str) -> None:
    assert own_gold("column", solution=None)({"answer": Decimal(value)}) == (gold, None)


# -- columns ----------------------------------------------------------------------------------------------------------


def load(tmp_path: Path, columns: dict[str, Any], *rows: dict[str, Any]) -> Any:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = SourceRecipe.model_validate({"benchmark": "local", "path": str(path), "columns": columns})
    return load_problems(data, seed=0, is_usable=lambda golds: [True] * len(golds))


def test_the_columns_of_a_question_are_joined(tmp_path: Path) -> None:
    columns = {"question": ["instruction", "input"], "answer": "output"}
    rows = [
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        {"instruction": "1+1?", "input": "", "output": "2"},
    ]
    problems = load(tmp_path, columns, *rows).problems
    assert [(problem.question, problem.gold, problem.turns) for problem in problems] == [
        ("Add.\n\n1 and 2", "3", ()),
        ("1+1?", "2", ()),
    ]
    with pytest.raises(DataError, match=r"no column inputs: found instruction, input, output; did you mean input\?"):
        load(tmp_path, columns | {"question": ["instruction", "inputs"]}, *rows)


@pytest.mark.parametrize(
    ("choices", "answer", "gold"),
    [
        (["cat", "dog"], "1", "B"),
        (["cat", "dog"], "cat", "A"),
        (["cat", "dog"], "B", "B"),
        ({"A": "cat", "B": "dog"}, "dog", "B"),
        ('["cat", "dog"]', "dog", "B"),
        ("{'A': 'cat', 'B': 'dog'}", "A", "A"),
        ({"label": ["1", "2"], "text": ["cat", "dog"]}, "2", "2"),  # ARC's
    ],
)
def test_choices_follow_the_question_and_the_gold_answer_is_a_letter(
    tmp_path: Path, choices: Any, answer: Any, gold: str
) -> None:
    columns = {"question": "q", "answer": "a", "choices": "c"}
    (problem,) = load(tmp_path, columns, {"q": "Which?", "c": choices, "a": answer}).problems
    assert problem.gold == gold
    assert problem.question.startswith(f"Which?\n\n{'1' if gold == '2' else 'A'}. ")
    assert problem.question.count("\n") == 3


@pytest.mark.parametrize(
    ("choices", "answers", "golds"),
    [
        (["7", "8", "1"], [1, 0, 2], "BAC"),  # numbers from 0, as in MMLU: a choice with the text 1 changes nothing
        (["7", "8", "1"], ["1", "7", "8"], "CAB"),  # texts of choices
        (["7", "8", "1"], [1, 2, 3, 3], "ABCC"),  # numbers from 1
        ({"label": [1, 2, 3], "text": ["2", "3", "1"]}, [1, 2, 3], "123"),  # labels
        (["B", "A", "C"], ["B", "C", "A"], "BCA"),  # letters, though they are texts too
    ],
)
def test_the_whole_column_tells_how_the_right_choice_is_stored(
    tmp_path: Path, choices: Any, answers: list[Any], golds: str
) -> None:
    columns = {"question": "q", "answer": "a", "choices": "c"}
    rows = [{"q": f"Which is {number}?", "c": choices, "a": answer} for number, answer in enumerate(answers)]
    assert "".join(problem.gold for problem in load(tmp_path, columns, *rows).problems) == golds
    *most, last = rows
    dropped = load(tmp_path, columns, *most, last | {"a": "none of these"}).dropped
    assert [row.reason for row in dropped] == ["gold answer is none of the choices: 'none of these'"]


@pytest.mark.parametrize(
    ("choices", "answer", "why"),
    [
        (["cat", "dog"], "bird", "gold answer is none of the choices: 'bird'"),
        (["cat", "cat"], "cat", "gold answer is none of the choices: 'cat'"),
        (["cat", "dog"], 3, "gold answer is none of the choices: '3'"),
        (["cat"], "cat", "c has fewer than two answers to choose from"),
        ("[cat, dog]", "cat", "c is no list of answers to choose from: '[cat, dog]'"),
        ("cat or dog", "cat", "c is no list of answers to choose from: 'cat or dog'"),
        ([str(n) for n in range(27)], "3", "c is no list of answers to choose from"),
    ],
)
def test_a_row_whose_choices_cannot_be_used_is_dropped(tmp_path: Path, choices: Any, answer: Any, why: str) -> None:
    columns = {"question": "q", "answer": "a", "choices": "c"}
    with pytest.raises(DataError, match=re.escape(why)):
        load(tmp_path, columns, {"q": "Which?", "c": choices, "a": answer})


@pytest.mark.parametrize(
    ("columns", "guessed"),
    [
        ("instruction input output", {"question": ["instruction", "input"], "answer": "output"}),
        ("context question answers", {"question": ["context", "question"], "answer": "answers"}),
        ("question choices answer subject", {"question": "question", "answer": "answer", "choices": "choices"}),
        ("question options answer", {"question": "question", "answer": "answer", "choices": "options"}),
        ("system prompt response", {"question": ["system", "prompt"], "answer": "response"}),
        ("input output", {"question": "input", "answer": "output"}),
    ],
)
def test_init_finds_what_belongs_to_the_question(columns: str, guessed: dict[str, Any]) -> None:
    assert guessed_columns(columns.split()) == guessed


def test_columns_that_nothing_reads_are_known(tmp_path: Path) -> None:
    row = {"q": "1+1?", "extra": {"answer": "2", "by": "x"}, "level": 3, "solution": "s"}
    columns = {"question": "q", "answer": "extra.answer"}
    assert load(tmp_path, columns, row).unused == ("level", "solution")
    assert load(tmp_path, columns | {"solution": "solution"}, row).unused == ("level",)
    (tmp_path / "t.csv").write_text("question,answer,source\n1+1?,2,me\n")
    data = SourceRecipe.model_validate({"benchmark": "local", "path": str(tmp_path / "t.csv")})
    assert load_problems(data, seed=0, is_usable=lambda golds: [True] * len(golds)).unused == ("source",)
