"""metrics.jsonl: exact numbers, one line a step, cut on resume, torn lines, full disks."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_cli.errors import GtpoError
from gtpo_cli.tracking import JsonlTracker, read_metrics

LOSS, REWARD, USER = "optim/loss", "train/reward_mean", "rewards/brevity_mean"

rows = st.lists(st.dictionaries(st.sampled_from([LOSS, REWARD, USER]), st.floats(), max_size=3), max_size=8)


def log_all(path: Path, steps: list[dict[str, float]], *, first: int = 1, keep_bytes: int | None = None) -> None:
    tracker = JsonlTracker(path, keep_bytes=keep_bytes)
    for step, metrics in enumerate(steps, first):
        tracker.log(step, metrics)
    tracker.close()


def test_a_line_by_hand(tmp_path: Path) -> None:
    log_all(tmp_path / "m.jsonl", [{USER: 2, "time/step": 0.1, REWARD: 17.5, LOSS: -1e-300}])
    assert (tmp_path / "m.jsonl").read_text() == (
        '{"step": 1, "train/reward_mean": 17.5, "optim/loss": -1e-300, "time/step": 0.1, "rewards/brevity_mean": 2}\n'
    )


def test_what_is_not_finite_is_null_in_the_file_and_nan_when_read(tmp_path: Path) -> None:
    log_all(tmp_path / "m.jsonl", [{LOSS: math.nan, REWARD: math.inf}])
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {"step": 1, LOSS: None, REWARD: None}
    (row,) = read_metrics(tmp_path / "m.jsonl")
    assert row["step"] == 1
    assert math.isnan(row[LOSS])
    assert math.isnan(row[REWARD])


@given(rows, st.data())
@settings(max_examples=50, deadline=None)
def test_a_resumed_run_writes_the_file_of_an_uninterrupted_one(
    steps: list[dict[str, float]], data: st.DataObject
) -> None:
    saved = data.draw(st.integers(0, len(steps)), label="steps in the checkpoint")
    killed = data.draw(st.integers(saved, len(steps)), label="steps done when killed")
    torn = data.draw(st.binary(max_size=5), label="what the kill left of the next line")
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder) / "whole.jsonl", Path(folder) / "parts.jsonl"
        log_all(whole, steps)
        first = JsonlTracker(parts)
        position = first.position
        for step, metrics in enumerate(steps[:killed], 1):
            first.log(step, metrics)
            if step == saved:
                position = first.position
        first.close()
        with parts.open("ab") as file:
            file.write(torn)
        log_all(parts, steps[saved:], first=saved + 1, keep_bytes=position)
        assert parts.read_bytes() == whole.read_bytes()


def test_a_new_run_does_not_write_into_the_file_of_another(tmp_path: Path) -> None:
    log_all(tmp_path / "m.jsonl", [{LOSS: 1.0}])
    before = (tmp_path / "m.jsonl").read_bytes()
    with pytest.raises(GtpoError, match=r"m\.jsonl: already holds the metrics of a run; .*--resume"):
        JsonlTracker(tmp_path / "m.jsonl")
    assert (tmp_path / "m.jsonl").read_bytes() == before


@pytest.mark.parametrize("keep_bytes", [10, 32, 10_000])
def test_a_position_that_does_not_fit_the_file_is_refused_and_nothing_is_cut(tmp_path: Path, keep_bytes: int) -> None:
    log_all(tmp_path / "m.jsonl", [{LOSS: 1.0}])
    before = (tmp_path / "m.jsonl").read_bytes()
    assert len(before) == 31
    with pytest.raises(GtpoError, match=f"needs its first {keep_bytes} bytes.*it has {len(before)} bytes"):
        JsonlTracker(tmp_path / "m.jsonl", keep_bytes=keep_bytes)
    assert (tmp_path / "m.jsonl").read_bytes() == before


@pytest.mark.parametrize("torn", [b'{"step": 3, "optim/lo', b"{", b"\x00\x00\x00", b'{"step": 3, "optim/loss": 1e-\n'])
def test_a_torn_last_line_is_left_out_and_reported(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "m.jsonl"
    log_all(path, [{LOSS: 1.0}, {LOSS: 2.0}])
    with path.open("ab") as file:
        file.write(torn)
    with pytest.warns(UserWarning, match=r"m\.jsonl:3: skipped the last line"):
        assert [row[LOSS] for row in read_metrics(path)] == [1.0, 2.0]


@pytest.mark.parametrize("bad", [b"{broken\n", b"\n", b"[1, 2]\n", b'{"optim/loss": 1.0}\n'])
def test_a_bad_line_elsewhere_is_an_error_with_its_place(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "m.jsonl").write_bytes(b'{"step": 1}\n' + bad + b'{"step": 3}\n')
    with pytest.raises(GtpoError, match=r"m\.jsonl:2: not a JSON object with a step"):
        read_metrics(tmp_path / "m.jsonl")


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GtpoError, match=r"none\.jsonl: metrics cannot be read \(No such file"):
        read_metrics(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    assert read_metrics(tmp_path / "empty.jsonl") == []
    pairs = ",".join(f'"a{number}":1' for number in range(100_000))  # parsed, each byte takes some fifty
    (tmp_path / "long.jsonl").write_text('{"step":1}\n{"step":2,' + pairs + "}\n")
    with pytest.raises(GtpoError, match=r"long\.jsonl: metrics cannot be read \(has a line of more than 1 MiB\)"):
        read_metrics(tmp_path / "long.jsonl")
