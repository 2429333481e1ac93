"""Grading: CPU time of 1,000 answers, the workers' time included, and how long it takes on all cores."""

from __future__ import annotations

import os
import random
import statistics
import time
from pathlib import Path

from measure import Figure

from gtpo_cli.rewards import EqualityWorkers

TITLE = "Grading"
_PAIRS = 1000
_ROUNDS = 5


def run() -> list[Figure]:
    """Three kinds of answers; the median of five rounds with new answers each, on workers that are running."""
    figures = []
    with EqualityWorkers() as workers:
        start = time.perf_counter()
        workers.equal_many([(r"\sqrt{8}", r"2\sqrt{2}")])
        figures.append(Figure("start of the first worker", time.perf_counter() - start, "s"))
        workers.equal_many(_mathematics(random.Random(99)))  # all workers are up
        for name, make in (("numbers", _numbers), ("fractions in LaTeX", _fractions), ("algebra", _mathematics)):
            wall, cpu = [], []
            for turn in range(_ROUNDS):
                pairs = make(random.Random(turn))
                wall_start, cpu_start = time.perf_counter(), _cpu_seconds(workers)
                grades = workers.equal_many(pairs)
                wall.append(time.perf_counter() - wall_start)
                cpu.append(_cpu_seconds(workers) - cpu_start)
                assert sum(grade.equal for grade in grades) == _PAIRS // 2, "every other pair is equal"
            figures.append(
                Figure(f"1,000 answers, {name}: CPU", statistics.median(cpu), "s", note="caller and workers")
            )
            note = f"{workers.num_workers} workers"
            figures.append(Figure(f"1,000 answers, {name}: wall", statistics.median(wall), "s", note=note))
    return figures


def _cpu_seconds(workers: EqualityWorkers) -> float:
    """CPU time of this process and of the running workers."""
    ticks = 0
    for process_id in workers.process_ids():
        fields = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime, stime
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _numbers(rng: random.Random) -> list[tuple[str, str]]:
    values = rng.sample(range(1_000, 10_000_000), _PAIRS)
    return [(str(v), f"${v + odd:,}.00") for v, odd in zip(values, _alternate(), strict=True)]


def _fractions(rng: random.Random) -> list[tuple[str, str]]:
    values = [(a, 2 * a + 1) for a in rng.sample(range(1, 100_000), _PAIRS)]
    return [
        (rf"\frac{{{a}}}{{{b}}}", rf"\dfrac{{{3 * a + odd}}}{{{3 * b}}}")
        for (a, b), odd in zip(values, _alternate(), strict=True)
    ]


def _mathematics(rng: random.Random) -> list[tuple[str, str]]:
    values = rng.sample(range(2, 100_000), _PAIRS)
    return [
        (rf"\frac{{{v}\sqrt{{3}}}}{{3}}", rf"\frac{{{v + odd}}}{{\sqrt{{3}}}}")
        for v, odd in zip(values, _alternate(), strict=True)
    ]


def _alternate() -> list[int]:
    return [number % 2 for number in range(_PAIRS)]
