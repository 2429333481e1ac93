"""Tables as other tools write them: read, or refused with the cause."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from pyarrow import feather

from gtpo_cli.data.local import find_files, open_files
from gtpo_cli.data.reading import column_gold, turns_in
from gtpo_cli.errors import DataError

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
    with pytest.raises(DataError, match=r"both: no split tests \(data.split\); found test and train; did you mean test"):
        read(tmp_path / "both", "tests")
    feather.write_feather(pa.table(ROWS), tmp_path / "feather.arrow", compression="uncompressed")
    assert read(tmp_path / "feather.arrow") == ("feather", rows)


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
        ("sep.csv", "sep=;\nquestion;answer\na;1\n", r"sep\.csv:1: 'sep=;' is no header"),
        ("said.csv", "# exported today\nquestion,answer\na,1\n", r"said\.csv:1: '# exported today' is no header"),
    ],
)
def test_the_cause_is_named(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text)
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
    assert column_gold({"answer": Decimal(value)}) == (gold, None)
