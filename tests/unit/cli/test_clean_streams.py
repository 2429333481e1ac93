"""Standard output and error as libraries write to them: progress bars in place, no colours, nothing that steers."""

from __future__ import annotations

import io

import pyte
from tqdm import tqdm

from gtpo_cli.cli.streams import CleanStream


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


def test_only_standard_error_lets_bars_move_the_cursor() -> None:
    below = io.StringIO()
    CleanStream(below).write("\x1b[A")
    assert below.getvalue() == "␛[A"
