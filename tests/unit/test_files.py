"""The one reader of files that may be anybody's, and what is done to text before it is shown."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gtpo_cli.errors import CheckpointError, GtpoError
from gtpo_cli.runs.files import Count, Finite, guarded, read_json, read_json_lines
from gtpo_cli.text import describe, markdown_text, one_line, printable


@dataclass(frozen=True)
class Shape:
    name: str
    number: Finite
    counts: tuple[Count, ...] = ()


def wrong(why: str) -> GtpoError:
    return GtpoError(f"the file: {why}; remedy")


def text(content: str | bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda file: os.mkfifo(file), "is no regular file"),
        (lambda file: file.mkdir(), "Is a directory"),
        (lambda file: file.symlink_to("/dev/zero"), "is no regular file"),
        (lambda file: file.symlink_to(file.name), "Too many levels of symbolic links"),
        (lambda file: None, "No such file or directory"),
        (text(b"\xff\xfe"), "Invalid JSON: expected value"),
        (text('{"name": "a\xff"}'.encode("latin-1")), "Invalid JSON: invalid unicode code point"),
        (text("[" * 100_000), "recursion limit exceeded"),
        (text(""), "EOF while parsing"),
        (text("[]"), "Input should be an object"),
        (text('{"number": 1}'), "name: Field required"),
        (text('{"name": 1, "number": 1}'), "name: Input should be a valid string"),
        (text('{"name": "\\ud800", "number": 1}'), "Invalid JSON"),
        (text('{"name": "a", "number": "1"}'), "number: Input should be a valid number"),
        (text('{"name": "a", "number": true}'), "number: Input should be a valid number"),
        (text('{"name": "a", "number": NaN}'), "number: Input should be a finite number"),
        (text('{"name": "a", "number": 1e400}'), "number: Input should be a finite number"),
        (text(f'{{"name": "a", "number": {10**400}}}'), "number: Input should be a finite number"),
        (text(f'{{"name": "a", "number": {"9" * 10_000}}}'), "number out of range"),
        (text('{"name": "a", "number": 1, "counts": [1.5]}'), "counts.0: Input should be a valid integer"),
        (text('{"name": "a", "number": 1, "counts": [-1]}'), "counts.0: Input should be greater than or equal to 0"),
    ],
)
def test_what_is_no_such_file_is_the_callers_error(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    file = tmp_path / "a.json"
    make(file)
    caught: list[GtpoError] = []

    def read() -> None:
        with pytest.raises(GtpoError) as error:
            read_json(file, Shape, wrong)
        caught.append(error.value)

    thread = threading.Thread(target=read, daemon=True)  # a reader that waits for a FIFO would never come back
    thread.start()
    thread.join(20)
    assert caught, "the reader hangs, or raised another error"
    assert str(caught[0]).startswith("the file: ")
    assert why in str(caught[0])
    assert "\n" not in str(caught[0])
    assert len(str(caught[0])) < 400


def test_what_is_one_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"name": "ä\\n", "number": 2, "counts": [0, 3], "of another version": {}}')
    link = tmp_path / "link.json"
    link.symlink_to(file)
    for path in (file, link):
        assert read_json(path, Shape, wrong) == Shape("ä\n", 2.0, (0, 3))


def test_lines_are_counted_and_a_cut_one_is_left_out_where_it_may_be(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"name": "a", "number": 1}\n{"name": "b", "number": 2}\n{"name"')
    at = "line {} is {}".format
    read = read_json_lines(file, Shape, lambda line, why: GtpoError(at(line, why)), cut=True)
    assert [row.name for row in read] == ["a", "b"]
    with pytest.raises(GtpoError, match="line 3 is Invalid JSON"):
        list(read_json_lines(file, Shape, lambda line, why: GtpoError(at(line, why))))
    with pytest.raises(GtpoError, match="line 0 is Is a directory"):
        list(read_json_lines(tmp_path, Shape, lambda line, why: GtpoError(at(line, why))))


class SaysNothing(BaseException):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (RecursionError("deep"), "RecursionError: deep"),
        (SaysNothing(), "SaysNothing"),
        (ValueError("a\n\x1b[2Jb"), "ValueError: a ␛\\[2Jb"),
        (OSError(28, "No space left on device"), "disk full: No space left on device"),
    ],
)
def test_a_wall_lets_only_our_errors_and_ctrl_c_pass(error: BaseException, why: str) -> None:
    with pytest.raises(GtpoError, match=f"^the file: {why}; remedy$"), guarded(wrong):
        raise error
    for passes in (CheckpointError("ours"), KeyboardInterrupt()):
        with pytest.raises(type(passes)) as caught, guarded(wrong):
            raise passes
        assert caught.value is passes


# -- text -------------------------------------------------------------------------------------------------------------

STEERING = "\x1b]0;title\x07\x1b[31m\x9b2J\x85\r\x08\x7f\u202e\u2066\u200f\u2028\ud800"


def test_nothing_steers_a_terminal() -> None:
    shown = printable(f"a\tb\nc{STEERING}é漢😀")
    assert shown == "a\tb\nc␛]0;title␇␛[31m�2J�␍␈␡�����é漢😀"
    assert len(printable(STEERING)) == len(STEERING)
    assert one_line("a \n  b" + "x" * 1000, most=10) == "a bxxxx..."


def test_markdown_shows_text_as_it_is() -> None:
    assert markdown_text("a|b\n\n# <script>`x`</script> [l](javascript:1) snake_case _em_") == (
        r"a\|b \# \<script\>\`x\`\</script\> \[l\](javascript:1) snake_case \_em\_"
    )
    assert describe(ValueError("a\nb")) == "ValueError: a b"
