"""Standard output and error as libraries write to them: progress bars in place, no colours, nothing that steers; on a
terminal lines that end between words."""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Generator
from pathlib import Path

import pyte
import pytest
from tqdm import tqdm

from gtpo_cli.cli.export import _print
from gtpo_cli.cli.generate import _show
from gtpo_cli.cli.printing import say
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.terminal.console import Console, print_table
from gtpo_cli.terminal.streams import CleanStream, print_whole
from gtpo_cli.tools.export.check import LogprobGap
from gtpo_cli.tools.export.folder import Exported, RecipeSections


def test_bars_of_a_download_stand_below_each_other_and_are_drawn_in_place() -> None:
    below = io.StringIO()
    stream = CleanStream(below, bars=True)
    settings = {"file": stream, "ncols": 60, "mininterval": 0.0, "total": 30}
    with tqdm(desc="files", position=0, **settings) as files, tqdm(desc="bytes", position=1, **settings) as sizes:
        for _ in range(30):
            files.update()
            sizes.update()
        drawn = below.getvalue()
    screen = pyte.HistoryScreen(60, 10, history=1000)
    pyte.Stream(screen).feed(drawn.replace("\n", "\r\n"))
    assert not screen.history.top
    assert [line[:11] for line in screen.display[:2]] == ["files: 100%", "bytes: 100%"]
    assert "␛" not in below.getvalue()


def test_colours_of_libraries_are_left_out_and_what_steers_is_shown_as_signs() -> None:
    for bars in (False, True):
        below = io.StringIO()
        stream = CleanStream(below, bars=bars)
        said = "\x1b[1;38:5:9mload\x1b[0m report \x1b[2J\x1b[A\x1b]0;title\x07"
        assert stream.write(said) == len(said)
        assert below.getvalue() == "load report ␛[2J␛[A␛]0;title␇"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_sentences_folded_and_commands_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    said = "a sentence that is longer than a terminal is wide"
    for below in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", CleanStream(below))
        say(said)
        print_whole(said)
        lines = below.getvalue().splitlines()
        assert lines[-1] == said
        if below.isatty():
            assert lines[:-1] == ["a sentence that is", "longer than a", "terminal is wide"]
        else:
            assert lines[:-1] == [said]


ASKED = RecipeSections(1, {}, {}, {}, {})


def test_lines_that_load_an_export_are_whole_on_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", CleanStream(below := Terminal()))
    nothing = LogprobGap(100, 0.0, 0.0, 100)
    done = Exported("one", 3, "adapter", "bfloat16", "meta-llama/Llama-3.1-8B-Instruct", 8, nothing, None, (), ASKED)
    _print(done, tmp_path, ModelRecipe(name=done.base, load_in_4bit=True))
    words, _, lines = below.getvalue().partition(" has the rest):\n")
    assert max(map(len, words.splitlines()[1:-1])) <= 40
    names = [target.id for line in ast.parse(lines).body if isinstance(line, ast.Assign) for target in line.targets]  # type: ignore[attr-defined]
    assert names == ["bits", "base", "model", "tokenizer"]


def test_streamed_words_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tokens come: a word in pieces, line ends among them."""
    monkeypatch.setenv("COLUMNS", "12")
    monkeypatch.setattr(sys, "stdout", CleanStream(below := Terminal()))

    def stream() -> Generator[str, None, str]:
        yield from ["x"] * 25 + ["\n"]
        assert "x" * 21 in below.getvalue(), "what has no blanks is not kept to its end"
        yield from ("The", " ans", "wer is ", "four", "teen,", "\n", "\n so", " it", " is in", "deed")
        return "done"

    assert _show(stream()) == "done"  # type: ignore[arg-type, comparison-overlap]
    assert below.getvalue().removeprefix("x" * 25 + "\n") == "The answer\nis fourteen,\n\n so it is\nindeed\n"


ROWS = [("first", "a long sentence about it", "1"), ("second", "short", "*")]


def table(width: int | None) -> str:
    console = Console(file=io.StringIO(), **({} if width is None else {"width": width}))
    print_table(console, ("name", "words", "n"), ROWS, numbers=[2])
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]
