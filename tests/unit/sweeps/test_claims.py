"""The verdicts of docs/claims.md by the registered rules, on numbers made up here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from gtpo_cli.sweeps.spec import load_sweep

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def claims(tmp_path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("write_claims", ROOT / "scripts" / "write_claims.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["write_claims"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    module.DATA = tmp_path
    return module


def write(folder: Path, sweep: str, figure: str, **variants: list[float | None]) -> None:
    lines = [f"variant,seed,{figure}"]
    for variant, row in variants.items():
        lines += [f"{variant},{seed},{'' if v is None else v}" for seed, v in enumerate(row, start=1)]
    (folder / f"{sweep}.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([0.55, 0.6, 0.7, 0.8, 0.9], [0.5, 0.5, 0.5, 0.5, 0.5], "reproduced"),
        ([0.5, 0.5, 0.5, 0.5, 0.5], [0.55, 0.6, 0.7, 0.8, 0.9], "opposite"),
        ([0.9, 0.9, 0.9, 0.9, 0.49], [0.5, 0.5, 0.5, 0.5, 0.5], "not reproduced"),  # one seed of five disagrees
        ([0.9, 0.9, 0.9, 0.9, 0.5], [0.5, 0.5, 0.5, 0.5, 0.5], "not reproduced"),  # or shows no difference
        ([0.51, 0.51, 0.51, 0.51, 0.51], [0.5, 0.5, 0.5, 0.5, 0.5], "not reproduced"),  # below the margin
    ],
)
def test_a_comparison(claims: Any, tmp_path: Path, a: list[float], b: list[float], verdict: str) -> None:
    write(tmp_path, "s", "accuracy", a=a, b=b)
    assert claims.compare("s", "accuracy", "a", "b").verdict == verdict


def test_margins_are_those_of_the_figure(claims: Any, tmp_path: Path) -> None:
    write(tmp_path, "s", "length", a=[30.5] * 5, b=[30.0] * 5)
    assert claims.compare("s", "length", "a", "b").verdict == "not reproduced"
    write(tmp_path, "s", "truncated", a=[0.06] * 5, b=[0.0] * 5)
    finding = claims.compare("s", "truncated", "a", "b")
    assert finding.verdict == "reproduced"
    assert "difference +0.060, higher in 5 of 5 seeds, p 0.062" in finding.figures


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([1, 1, 1, 1, 0], [0, 0, 0, 0, 0], "reproduced"),
        ([1, 1, 1, 0, 0], [0, 0, 0, 0, 0], "not reproduced"),
        ([0, 0, 0, 0, 0], [1, 1, 1, 1, 1], "opposite"),
    ],
)
def test_what_happens_or_not(claims: Any, tmp_path: Path, a: list[float], b: list[float], verdict: str) -> None:
    write(tmp_path, "s", "forgets to stop", a=a, b=b)
    finding = claims.happens_more("s", "forgets to stop", "a", "b")
    assert finding.verdict == verdict
    assert finding.figures.startswith(f"forgets to stop: `a` {sum(a)} of 5, `b` {sum(b)} of 5")


def test_which_of_two_series_moves_first(claims: Any, tmp_path: Path) -> None:
    assert claims.half_way([0.0, 1.0, 2.0, 4.0]) == 3
    assert claims.half_way([4.0, 1.9, 3.0, 0.0]) == 2  # downwards too
    assert claims.smoothed([{"x": float(n)} for n in range(16)], "x") == [7.0, 8.0]
    head = "sweep,variant,seed,entropy step,KL step\n"
    for rows, verdict in (
        ("", "not testable here"),
        ("s,v,1,3,9\n", "reproduced"),
        ("s,v,1,3,9\ns,v,2,9,9\n", "not reproduced"),
        ("s,v,1,9,3\n", "opposite"),
    ):
        (tmp_path / claims.ORDER).write_text(head + rows)
        assert claims.entropy_before_kl().verdict == verdict


@pytest.mark.parametrize(
    ("initial", "above", "accuracy", "verdict"),
    [
        (0.58, [1, 1, 0], 0.01, "reproduced"),
        (0.58, [1, 0, 0], 0.01, "not reproduced"),  # in a minority of seeds
        (0.58, [1, 1, 1], 0.07, "not reproduced"),  # no collapse: as accurate as the base
        (0.80, [1, 1, 1], 0.01, "not reproduced"),  # the base starts above: nothing is passed
    ],
)
def test_collapse_above_ln2(
    claims: Any, tmp_path: Path, initial: float, above: list[int], accuracy: float, verdict: str
) -> None:
    for sweep in ("entropy_search", "learning_rates", "learning_rates_weak"):
        lines = ["variant,seed,passes ln 2,entropy peak,accuracy"]
        rows = above if sweep == "entropy_search" else [0, 0, 0]
        lines += [f"grpo,{seed},{passed},0.9,{accuracy}" for seed, passed in enumerate(rows, start=1)]
        lines += ["gtpo,1,1,2.0,0.0"]  # the claim is about GRPO
        (tmp_path / f"{sweep}.csv").write_text("\n".join(lines) + "\n")
    table = [f"{sweep},grpo,1,{initial}" for sweep in ("entropy_search", "learning_rates", "learning_rates_weak")]
    (tmp_path / claims.INITIAL).write_text("\n".join(["sweep,variant,seed,initial entropy", *table]) + "\n")
    assert claims.collapse_passes_ln2().verdict == verdict


def test_parts_are_joined(claims: Any) -> None:
    yes, no, against = (claims.Finding(word, word) for word in ("reproduced", "not reproduced", "opposite"))
    assert [claims.all_of(yes, other).verdict for other in (yes, no, against)] == [
        "reproduced", "not reproduced", "not reproduced",
    ]  # fmt: skip
    assert claims.all_of(against, against).verdict == "opposite"
    assert [claims.any_of(no, other).verdict for other in (yes, no, against)] == [
        "reproduced", "not reproduced", "opposite",
    ]  # fmt: skip


def test_every_claim_that_was_registered_is_weighed_with_figures_that_its_sweeps_take(claims: Any) -> None:
    registered = [line.split("|")[1].strip() for line in claims.PAGE.read_text().splitlines() if line.startswith("| C")]
    assert registered[:13] == list(claims.CLAIMS)
    for sweeps, _ in claims.CLAIMS.values():
        for name in sweeps.split(", "):
            load_sweep(name)
    assert set(claims._SHOWN) <= set(load_sweep("fig2_methods").file.figures)


def test_the_page_says_what_the_recorded_numbers_say() -> None:
    spec = importlib.util.spec_from_file_location("write_claims_real", ROOT / "scripts" / "write_claims.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["write_claims_real"] = module
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0
