"""Data of every wrong kind: a row is dropped with its line and the reason, a file is a DataError with the remedy."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_cli.data import LoadedProblems, load_problems
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.schema import DataRecipe

GOOD = b'{"question": "1+1?", "answer": "2"}\n'
ROWS = [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}]


def load(path: Path, **changes: Any) -> LoadedProblems:
    def all_usable(golds: Sequence[str]) -> Sequence[bool]:
        return [True] * len(golds)

    data = DataRecipe.model_validate({"benchmark": "local", "path": str(path), **changes})
    return load_problems(data, seed=0, is_usable=all_usable)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"\n \n\t\n", "no usable problem; it has no rows"),
        ("a.jsonl", b"\0" * 5000, "a.jsonl:1 not JSON: NUL bytes; is the file UTF-8 text?"),
        ("a.jsonl", GOOD.decode().encode("utf-16"), "is UTF-16 or UTF-32 text; save it as UTF-8"),
        ("a.jsonl", GOOD.decode().encode("utf-16-be"), "a.jsonl:1 not JSON: NUL bytes; is the file UTF-8 text?"),
        ("a.csv", "question,answer\nq,1\n".encode("utf-16"), "is UTF-16 or UTF-32 text; save it as UTF-8"),
        ("a.csv", "question,answer\nq,1\n".encode("utf-32"), "is UTF-16 or UTF-32 text; save it as UTF-8"),
        ("a.jsonl", '{"question":"é","answer":"1"}'.encode("latin-1"), "save the file as UTF-8"),
        ("a.csv", "question,answer\né,1\n".encode("latin-1"), "a.csv:2 not UTF-8: question; save the file as UTF-8"),
        ("a.jsonl", gzip.compress(GOOD, mtime=0), "is compressed (gzip); unpack it"),
        ("a.csv", b"PK\x03\x04 a spreadsheet", "is a zip archive or a spreadsheet; unpack it, or save it as CSV"),
        ("a.jsonl", b"PAR1....PAR1", "is a Parquet file; name it .parquet"),
        ("a.jsonl", json.dumps(ROWS).encode(), "a.jsonl:1 no JSON object: a list; write one object per line"),
        ("a.jsonl", json.dumps(ROWS, indent=1).encode(), "a.jsonl:1 not JSON: one document over several lines"),
        ("a.json", json.dumps(ROWS, indent=1).encode()[:-1], "a.json: not JSON: Expecting ',' delimiter: line 10"),
        ("a.json", b"[[1], 2]", "a.json:2 no JSON object: a int; write one object per line"),
        ("a.json", b"[]", "a.json: no usable problem; it has no rows"),
        ("a.json", json.dumps(ROWS[0], indent=1).encode(), "a.json:1 not JSON: one document over several lines; write"),
        ("a.jsonl", b'{"query": "q", "reply": "1"}\n', ":1 no columns question and answer: found query, reply;"),
        ("a.csv", b"query,reply\nq,1\n",
         "did you mean query and reply?; with benchmark: local or hub, set data.columns"),
        ("a.csv", b"question,answer,answer\nq,1,2\n", "two columns are called answer; rename one of them"),
        ("a.csv", b"question,answer\nwhat, is this,1\n", "a.csv:2 wrong number of fields: 3, the header has 2"),
        ("a.csv", bytes(range(256)) * 10, "no columns question and answer: found"),
        ("a.csv", b"x" * 20_000_000 + b",answer\nq,1\n", "a.csv:1: the header is not CSV (more than 16 MiB)"),
        ("a.parquet", b"PAR1", "is not a Parquet file, or is damaged"),
        ("a.parquet", b"PAR1" + b"\0" * 100 + b"PAR1", "is not a Parquet file, or is damaged"),
        ("a.parquet", GOOD, "download it again"),
    ],
)  # fmt: skip
def test_a_file_without_a_usable_row_says_why_and_what_to_do(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(tmp_path / name)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / name}:")
    assert words in message
    assert "\n" not in message
    assert "\0" not in message


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=300), st.sampled_from(["a.jsonl", "a.csv", "a.parquet"]), st.booleans())
def test_any_bytes_give_problems_or_a_data_error(content: bytes, name: str, after_a_row: bool) -> None:
    start = {"a.jsonl": GOOD, "a.csv": b"question,answer\nq,1\n", "a.parquet": b"PAR1"}[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(start + content if after_a_row else content)
        try:
            problems = load(path).problems
        except DataError as error:
            assert str(error).startswith(str(path))  # noqa: PT017  # either outcome is right
        else:
            assert problems


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("x" * 5000, "cannot be read (File name too long)"),
        ("~nobody-of-this-name/a.jsonl", "there is no such user; write the path out"),
        ("absent.jsonl", "no such file or folder (data.path is relative to"),
    ],
)
def test_paths_that_cannot_be(given: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        load(Path(given))
    assert words in str(caught.value)
