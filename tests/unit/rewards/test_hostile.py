"""Hostile completions get their verdicts from the real Scorer, in time and within the memory limit of its workers."""

import resource
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from hostile_completions import CASES, ENDLESS, KNOWN_ACCEPTED, REASONING, Hostile, tagged

from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import Scorer, answers_equal
from gtpo_cli.rewards.worker import MEMORY_LIMIT_BYTES
from gtpo_cli.types import Completion, Problem, Verdict

MODES = ("strict", "presence")
FAMILIES = list(dict.fromkeys(case.family for case in CASES))
TIMEOUT_SECONDS = 5.0  # the default of the recipe
START_SECONDS = 20.0  # a worker that was killed is replaced while the next answer waits
CALLER_SECONDS = 1.0  # of CPU time in the training process, which has no time limit
USUAL_MEMORY_BYTES = 512 * 1024**2  # of a worker; MEMORY_LIMIT_BYTES is where it is stopped


@dataclass(frozen=True)
class Graded:
    verdict: Verdict
    seconds: float
    caller_seconds: float


@dataclass
class MemoryWatch:
    """Reads, many times a second, the largest address space that each worker ever had, and the limit on it (Linux)."""

    scorer: Scorer
    peak_bytes: dict[int, int] = field(default_factory=dict)
    limits: set[int] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while sys.platform == "linux" and not self._end.wait(0.02):
            for pid in self.scorer.workers.process_ids():
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                    limit = resource.prlimit(pid, resource.RLIMIT_AS)[0]
                except (FileNotFoundError, ProcessLookupError):  # it has just been killed
                    continue
                peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmPeak:")]
                if peak and limit != resource.RLIM_INFINITY:  # without a limit it has not come to set one yet
                    self.limits.add(limit)
                    self.peak_bytes[pid] = max(self.peak_bytes.get(pid, 0), int(peak[0]) * 1024)


def recipe(mode: str) -> RewardsRecipe:
    return RewardsRecipe.model_validate({"format": {"mode": mode}})


def grade(scorer: Scorer, case: Hostile) -> Graded:
    completion = Completion(token_ids=(), logprobs=(), finish_reason="stop", text=case.text)
    start, caller_start = time.monotonic(), time.process_time()
    (verdict,) = scorer.score(Problem(id=case.family, question="?", gold=case.gold), [completion])
    return Graded(verdict, time.monotonic() - start, time.process_time() - caller_start)


def report(title: str, seconds: Sequence[float], watch: MemoryWatch) -> None:
    memory = max(watch.peak_bytes.values(), default=0) / 1024**2
    sys.stdout.write(
        f"\n{title}: {len(seconds)} completions in {sum(seconds):.1f} s, the slowest {max(seconds):.2f} s; "
        f"{len(watch.peak_bytes)} workers, the largest {memory:.0f} MiB\n"
    )


@pytest.fixture(scope="module", params=MODES)
def marks(request: pytest.FixtureRequest) -> tuple[str, dict[Hostile, Graded], MemoryWatch]:
    """All cases but the endless ones, one at a time through one Scorer with one worker."""
    mode: str = request.param
    with Scorer(recipe(mode), num_workers=1) as scorer, MemoryWatch(scorer) as watch:
        grades = {case: grade(scorer, case) for case in CASES}
    report(f"{mode} mode", [graded.seconds for graded in grades.values()], watch)
    return mode, grades, watch


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_each_completion_gets_its_verdict(marks: tuple[str, dict[Hostile, Graded], MemoryWatch], family: str) -> None:
    mode, grades, _ = marks
    cases = [case for case in CASES if case.family == family]
    correct = {case: case.strict if mode == "strict" else case.presence for case in cases}
    well_formed = {case: case.strict_format if mode == "strict" else case.presence_format for case in cases}
    assert [case.name for case in cases if grades[case].verdict.correct is not correct[case]] == []
    assert [case.name for case in cases if grades[case].verdict.complete_format is not well_formed[case]] == []
    assert [case.name for case in cases if grades[case].verdict.strict_format is not case.strict_format] == []
    for case in cases:
        verdict = grades[case].verdict
        assert verdict.accuracy_score == (10.0 if correct[case] else 0.0), case.name
        assert verdict.reward == verdict.format_score + verdict.accuracy_score, case.name


@pytest.mark.slow
def test_each_completion_is_graded_in_time(marks: tuple[str, dict[Hostile, Graded], MemoryWatch]) -> None:
    _, grades, _ = marks
    late = [case.name for case, graded in grades.items() if graded.seconds > TIMEOUT_SECONDS + START_SECONDS]
    assert late == []
    assert [case.name for case, graded in grades.items() if graded.verdict.timed_out] == []
    assert [case.name for case, graded in grades.items() if graded.caller_seconds > CALLER_SECONDS] == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits and tells the address space of a process")
def test_the_workers_stay_far_below_their_memory_limit(
    marks: tuple[str, dict[Hostile, Graded], MemoryWatch],
) -> None:
    _, _, watch = marks
    assert watch.limits == {MEMORY_LIMIT_BYTES}
    assert len(watch.peak_bytes) == 1  # nothing killed the worker
    assert 0 < max(watch.peak_bytes.values()) < USUAL_MEMORY_BYTES


def endless(cases: Sequence[Hostile]) -> None:
    """Each costs at most its time-out, scores 0, and the answer after it is graded right."""
    easy = Hostile("easy", r"\sqrt{8}", REASONING + tagged(r"2\sqrt{2}"), strict=True, presence=True)
    timeout_seconds, seconds = 0.5, []
    with Scorer(recipe("strict"), num_workers=1) as scorer, MemoryWatch(scorer) as watch:
        for case in cases:
            scorer.workers.timeout_seconds = 30.0
            assert grade(scorer, easy).verdict.correct, (
                case.name
            )  # with the worker that the last case left, or a new one
            scorer.workers.timeout_seconds = timeout_seconds
            graded = grade(scorer, case)
            seconds.append(graded.seconds)
            assert not graded.verdict.correct, case.name
            assert graded.verdict.reward == 10.0, case.name
            assert graded.caller_seconds < CALLER_SECONDS, case.name
            # An answer that kills its worker is tried once more, in a worker that has to start.
            assert graded.seconds < 2 * timeout_seconds + START_SECONDS, case.name
    report("endless", seconds, watch)
    if sys.platform == "linux":
        assert watch.limits == {MEMORY_LIMIT_BYTES}
        assert max(watch.peak_bytes.values()) <= MEMORY_LIMIT_BYTES


@pytest.mark.slow
def test_all_endless_answers_cost_a_timeout_and_nothing_else() -> None:
    endless(ENDLESS)


@pytest.mark.parametrize(("gold", "answer", "why"), KNOWN_ACCEPTED)
def test_known_holes_are_as_documented(gold: str, answer: str, why: str) -> None:
    # One that is closed belongs into the corpus, and out of docs/rewards.md.
    assert answers_equal(gold, answer), why
