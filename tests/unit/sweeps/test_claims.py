"""The verdicts of docs/claims.md by the registered rules, on numbers made up here."""

from __future__ import annotations

from pathlib import Path

import claims_rules
import pytest
import write_claims

from gtpo_cli.sweeps.spec import load_sweep


@pytest.fixture
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the rules read from, empty."""
    monkeypatch.setattr(claims_rules, "DATA", tmp_path)
    return tmp_path


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
def test_a_comparison(claims: Path, a: list[float], b: list[float], verdict: str) -> None:
    write(claims, "s", "accuracy", a=a, b=b)
    assert claims_rules.compare("s", "accuracy", "a", "b").verdict == verdict


def test_margins_are_those_of_the_figure(claims: Path) -> None:
    write(claims, "s", "length", a=[30.5] * 5, b=[30.0] * 5)
    assert claims_rules.compare("s", "length", "a", "b").verdict == "not reproduced"
    write(claims, "s", "truncated", a=[0.06] * 5, b=[0.0] * 5)
    finding = claims_rules.compare("s", "truncated", "a", "b")
    assert finding.verdict == "reproduced"
    assert finding.figures == "truncated `a` 0.060, `b` 0.000: +0.060 (5 of 5, p 0.062)"


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([1, 1, 1, 1, 0], [0, 0, 0, 0, 0], "reproduced"),
        ([1, 1, 1, 0, 0], [0, 0, 0, 0, 0], "not reproduced"),
        ([0, 0, 0, 0, 0], [1, 1, 1, 1, 1], "opposite"),
    ],
)
def test_what_happens_or_not(claims: Path, a: list[float], b: list[float], verdict: str) -> None:
    write(claims, "s", "forgets to stop", a=a, b=b)
    finding = claims_rules.happens_more("s", "forgets to stop", "a", "b")
    assert finding.verdict == verdict
    assert finding.figures.startswith(f"forgets to stop: `a` {sum(a)} of 5 seeds, `b` {sum(b)} of 5")


def test_which_of_two_series_moves_first(claims: Path) -> None:
    assert write_claims.half_way([0.0, 1.0, 2.0, 4.0]) == 3
    assert write_claims.half_way([4.0, 1.9, 3.0, 0.0]) == 2  # downwards too
    assert write_claims.smoothed([{"x": float(n)} for n in range(16)], "x") == [7.0, 8.0]
    head = "sweep,variant,seed,entropy step,KL step\n"
    for rows, verdict in (
        ("", "not testable here"),
        ("s,v,1,3,9\n", "reproduced"),
        ("s,v,1,3,9\ns,v,2,9,9\n", "not reproduced"),
        ("s,v,1,9,3\n", "opposite"),
    ):
        (claims / claims_rules.ORDER).write_text(head + rows)
        assert claims_rules.entropy_before_kl().verdict == verdict


@pytest.mark.parametrize(
    ("initial", "above", "accuracy", "verdict"),
    [
        (0.58, [1, 1, 0], 0.01, "reproduced"),
        (0.58, [1, 0, 0], 0.01, "not reproduced"),  # in a minority of seeds
        (0.58, [1, 1, 1], 0.07, "not reproduced"),  # no collapse: as accurate as the base
        (0.80, [1, 1, 1], 0.01, "not reproduced"),  # the base starts above: nothing is passed
    ],
)
def test_collapse_above_ln2(claims: Path, initial: float, above: list[int], accuracy: float, verdict: str) -> None:
    for sweep in ("entropy_search", "learning_rates", "learning_rates_weak"):
        lines = ["variant,seed,passes ln 2,entropy peak,accuracy"]
        rows = above if sweep == "entropy_search" else [0, 0, 0]
        lines += [f"grpo,{seed},{passed},0.9,{accuracy}" for seed, passed in enumerate(rows, start=1)]
        lines += ["gtpo,1,1,2.0,0.0"]  # the claim is about GRPO
        (claims / f"{sweep}.csv").write_text("\n".join(lines) + "\n")
    table = [f"{sweep},grpo,1,{initial}" for sweep in ("entropy_search", "learning_rates", "learning_rates_weak")]
    (claims / claims_rules.INITIAL).write_text("\n".join(["sweep,variant,seed,initial entropy", *table]) + "\n")
    assert claims_rules.collapse_passes_ln2().verdict == verdict


def test_parts_are_joined() -> None:
    yes, no, against = (claims_rules.Finding(word, word) for word in ("reproduced", "not reproduced", "opposite"))
    assert [claims_rules.all_of(yes, other).verdict for other in (yes, no, against)] == [
        "reproduced", "not reproduced", "not reproduced",
    ]  # fmt: skip
    assert claims_rules.all_of(against, against).verdict == "opposite"
    assert [claims_rules.any_of(no, other).verdict for other in (yes, no, against)] == [
        "reproduced", "not reproduced", "opposite",
    ]  # fmt: skip


def test_every_claim_that_was_registered_is_weighed_with_figures_that_its_sweeps_take() -> None:
    registered = [
        line.split("|")[1].strip() for line in write_claims.PAGE.read_text().splitlines() if line.startswith("| C")
    ]
    assert registered[:13] == list(claims_rules.CLAIMS)
    for sweeps, _ in claims_rules.CLAIMS.values():
        for name in sweeps.split(", "):
            load_sweep(name)
    assert set(write_claims._SHOWN) <= set(load_sweep("fig2_methods").figures)
