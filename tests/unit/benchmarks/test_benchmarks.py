"""The benchmarks' own arithmetic, and that each of them runs. Their figures belong to a machine: not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import compare
import measure
import pytest
import sampling
import torch
import training_half


def results(folder: Path, **figures: tuple[float, str]) -> Path:
    folder.mkdir()
    rows = [{"name": name, "value": value, "unit": unit} for name, (value, unit) in figures.items()]
    (folder / "objective.json").write_text(json.dumps({"figures": rows}))
    return folder


def test_a_comparison_flags_what_exceeds_the_noise_of_its_unit(tmp_path: Path) -> None:
    base = results(tmp_path / "base", ratio=(0.50, ""), seconds=(1.0, "s"), memory=(800.0, "MB"), old=(1.0, "s"))
    new = results(tmp_path / "new", ratio=(0.56, ""), seconds=(1.25, "s"), memory=(700.0, "MB"), fresh=(1.0, "s"))
    table, worse = compare.compare(base, new)
    assert worse == 1  # + 12 % of a ratio; + 25 % of an absolute time is within what a busy machine does
    assert "| ratio | 0.5  | 0.56  | +12% | **worse** |" in table
    assert "| seconds | 1 s | 1.25 s | +25% |  |" in table
    assert "| memory | 800 MB | 700 MB | -12% | better |" in table
    assert "| fresh | | 1 s | | new |" in table
    assert "| old | 1 s | | | gone |" in table


def test_the_ratio_is_the_median_over_rounds() -> None:
    seconds = {"a": [1.0, 4.0, 9.0], "b": [2.0, 4.0, 3.0]}
    assert measure.median_ratio(seconds, "a", "b") == 1.0
    calls: list[str] = []
    taken = measure.interleaved({name: lambda name=name: calls.append(name) for name in "ab"}, rounds=2)
    assert "".join(calls) == "ab" + "ab" + "ba"  # one that does not count, then in turns
    assert [len(values) for values in taken.values()] == [2, 2]


def test_the_paths_of_the_training_half_have_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"vocab_size": 120, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                             "num_attention_heads": 2, "max_position_embeddings": 1024}  # fmt: skip
    monkeypatch.setattr(training_half, "_SHAPE", small)
    monkeypatch.setattr(training_half, "one_group", lambda whole=training_half.one_group: _within(whole(), 120))
    figures = training_half.run(rounds=1)
    assert len(figures) == 6
    assert [figure.value < 1e-5 for figure in figures if "gradient" in figure.name] == [True, True]


def _within(rows: Any, vocabulary: int) -> Any:
    """The same rows with ids of a small vocabulary."""
    for ids in (rows.prompt_ids_BP, rows.ids_NT):
        ids.remainder_(vocabulary)
    return rows


def test_sampling_counts_tokens_of_both() -> None:
    figures = sampling.run(rounds=1)
    assert ["tokens/s" in figure.note for figure in figures] == [True, False, True, False]
    assert torch.get_num_threads() == 1
