from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gtpo_cli.data.benchmarks import open_source
from gtpo_cli.data.local import open_table
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import SourceRecipe


def rows_of(path: Path) -> list[tuple[str, object]]:
    """(place within the file, values or reason) of each row."""
    return [(source.removeprefix(f"{path}:"), row) for source, row in open_table(path).rows]


def test_json_lines_name_each_bad_line_and_keep_the_good_ones(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    lines = [
        b'\xef\xbb\xbf{"q": "with a byte-order mark"}',
        b'{"q": "cut off',
        b"",
        b"  \t",
        b'["a", "list"]',
        b'{"q": "caf\xe9 in latin-1"}',
        b'{"q": "caf\xc3\xa9"}\r',
        b'{"q": "raw \x00 byte"}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b"null",
        b'{"q": "no newline at the end"}',
    ]
    path.write_bytes(b"\n".join(lines))
    rows = rows_of(path)
    assert [place for place, _ in rows] == ["1", "2", "5", "6", "7", "8", "9", "10", "11", "12"]  # 3 and 4 are blank
    values = dict(rows)
    assert values["1"] == {"q": "with a byte-order mark"}
    assert values["7"] == {"q": "café"}
    assert values["12"] == {"q": "no newline at the end"}
    assert values["5"] == "no JSON object: a list; write one object per line"
    assert values["6"] == "not UTF-8: invalid continuation byte at byte 10 of the line"
    assert values["11"] == "no JSON object: a NoneType; write one object per line"
    for broken in ("2", "8", "9", "10"):
        assert str(values[broken]).startswith("not JSON: ")


def test_a_line_of_fifty_megabytes_is_skipped_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    with path.open("wb") as file:
        file.write(b'{"q": "first"}\n{"q": "')
        for _ in range(50):
            file.write(b"x" * 2**20)
        file.write(b'"}\n{"q": "last"}\n')
    assert rows_of(path) == [("1", {"q": "first"}), ("2", "line too long: more than 16 MiB"), ("3", {"q": "last"})]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.csv",
            '\ufeffAufgabe;Lösung\r\n"Was ist 1,5 + 2; gerundet?";"3,5"\r\n"zwei\nZeilen";4\r\n',
        ),  # as Excel does
        ("a.csv", 'Aufgabe\tLösung\n"Was ist 1,5 + 2; gerundet?"\t3,5\n"zwei\nZeilen"\t4\n'),
        ("a.tsv", 'Aufgabe\tLösung\nWas ist 1,5 + 2; gerundet?\t3,5\n"zwei\nZeilen"\t4\n'),
        ("a.csv", 'Aufgabe|Lösung\nWas ist 1,5 + 2; gerundet?|3,5\n"zwei\nZeilen"|4\n'),
    ],
)
def test_the_header_says_what_separates_the_fields(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, newline="")
    assert open_table(path).columns == ("Aufgabe", "Lösung")
    assert rows_of(path) == [
        ("2", {"Aufgabe": "Was ist 1,5 + 2; gerundet?", "Lösung": "3,5"}),
        ("3", {"Aufgabe": "zwei\nZeilen", "Lösung": "4"}),
    ]


def test_a_split_of_a_single_file_is_not_taken_in_silence(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "1+1", "answer": "2"}\n')
    source = SourceRecipe(benchmark="local", path=str(file))
    assert open_source(source)[1] == "mine"
    with pytest.raises(DataError, match=r"data\.split: dev would have no effect, since .*mine\.jsonl is not a folder"):
        open_source(source.model_copy(update={"split": "dev"}))
    file.rename(tmp_path / "dev.jsonl")
    assert open_source(SourceRecipe(benchmark="local", path=str(tmp_path), split="dev"))[1] == "dev"


def test_what_cannot_be_opened_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"cannot read \.txt; use \.jsonl"):
        open_table(tmp_path / "train.txt")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="is empty"):
        open_table(tmp_path / "empty.jsonl")
    (tmp_path / "not.parquet").write_text("text, not parquet")
    with pytest.raises(DataError, match="is not a Parquet file"):
        open_table(tmp_path / "not.parquet")
    (tmp_path / "quote.csv").write_text('"question,answer\n')
    with pytest.raises(DataError, match="the header is not CSV"):
        open_table(tmp_path / "quote.csv")


def test_a_number_of_32_bits_is_the_decimal_that_it_stands_for(tmp_path: Path) -> None:
    column = pa.array([0.1, 0.7, None, 3.0], pa.float32())
    pq.write_table(pa.table({"narrow": column, "half": column.cast(pa.float16())}), tmp_path / "numbers.parquet")
    rows = [row for _, row in open_table(tmp_path / "numbers.parquet").rows]
    expected = [0.1, 0.7, None, 3.0]
    assert [row["narrow"] for row in rows] == expected
    assert [row["half"] for row in rows] == expected
    coded = pa.table({"coded": pa.array([0.5, 0.5, 2.0], pa.float32()).dictionary_encode()})
    pq.write_table(coded, tmp_path / "coded.parquet")
    assert [row["coded"] for _, row in open_table(tmp_path / "coded.parquet").rows] == [0.5, 0.5, 2.0]
