"""gtpo eval as typed: base beside trained, killed half-way and continued, local data, a bare model, an adapter."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import forks
import pytest
from commands import GTPO, Prepared, Run, environment

from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.recipe import load_recipe

TRAIN = [
    "train", "-q", "--recipe", "tiny_arithmetic", "--set", "run_name=one", "--set", "training.max_steps=4",
    "--set", "objective.initial_entropy=0.16", "--set", "data.limit=64",
]  # fmt: skip
PROBLEMS = 24  # of 64 completions: six blocks that are sampled and stored together
EVAL = ["eval", "--pass-k", "64", "--limit", str(PROBLEMS), "--base"]


def table(output: str) -> list[str]:
    """The lines with scores."""
    return [line for line in output.splitlines() if " to " in line]


def stored(run: Path) -> dict[str, bytes]:
    folder = run / "evaluation"
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.json*"))}


def test_base_beside_trained_killed_half_way_and_continued(gtpo: Run, prepared: Prepared, tmp_path: Path) -> None:
    prepared(TRAIN)
    run = tmp_path / "runs" / "one"
    whole = gtpo(*EVAL)
    assert len(table(whole.stdout)) == 27
    assert whole.stdout.splitlines()[0] == "runs/one, step 4 of builtin:tiny"
    assert whole.stdout.splitlines()[-1] == "next: gtpo compare runs/one@base runs/one"
    expected = stored(run)
    assert {name.split("/")[1].split("-n64-")[0] for name in expected} == {"base", "step-000004"}
    (run / "evaluation").rename(tmp_path / "uninterrupted")

    for share in (0.5, 1.5):  # half of the base model's completions; then half of the trained one's
        command = forks.Command([*GTPO, *EVAL], cwd=tmp_path, env=environment())
        deadline = time.monotonic() + 300
        wanted = PROBLEMS * share
        while sum(file.read_bytes().count(b"\n") for file in run.glob("evaluation/*/*/samples.jsonl")) < wanted:
            assert command.runs(), "finished before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(command.pid, signal.SIGKILL)
        assert command.wait().returncode == -signal.SIGKILL
    assert not list(run.glob("evaluation/arithmetic/step-*/results.json"))
    continued = gtpo(*EVAL)
    assert table(continued.stdout) == table(whole.stdout)
    assert stored(run) == expected


def test_a_finished_evaluation_is_read_and_its_scores_are_json(gtpo: Run, prepared: Prepared, tmp_path: Path) -> None:
    prepared(TRAIN)
    arguments = ["eval", "--pass-k", "1,4", "--maj-k", "4", "--limit", "12", "--json"]
    (first,) = json.loads(gtpo(*arguments).stdout)["evaluations"]
    assert (first["benchmark"], first["subject"], first["problems"], first["samples"]) == (
        "arithmetic", "step-000004", 12, 4,
    )  # fmt: skip
    assert {"pass@1", "pass@4", "first_pass@4", "maj@4"} <= set(first["scores"])
    samples = tmp_path / first["folder"] / "samples.jsonl"
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    right = [completion["correct"] for row in rows for completion in row["completions"]]
    assert first["scores"]["pass@1"]["estimate"] == pytest.approx(sum(right) / 48)
    before = samples.stat().st_mtime_ns
    assert json.loads(gtpo(*arguments).stdout)["evaluations"] == [first]
    assert samples.stat().st_mtime_ns == before
    gtpo(*arguments, "--again")
    assert samples.stat().st_mtime_ns > before


def test_an_adapter_is_evaluated_on_its_base_and_step_zero_knowledge_is_the_base(gtpo: Run, tmp_path: Path) -> None:
    lora = "model.lora={rank: 4, alpha: 4, target_modules: [q_proj, v_proj]}"
    gtpo(*TRAIN, "--set", lora, "--set", "optimizer.learning_rate=0.01")
    base, trained = json.loads(gtpo("eval", "--base", "--pass-k", "8", "--limit", "16", "--json").stdout)["evaluations"]
    assert (base["subject"], trained["subject"]) == ("base", "step-000004")
    bare = json.loads(gtpo("eval", "builtin:tiny", "--pass-k", "8", "--limit", "16", "--json").stdout)["evaluations"][0]
    assert bare["folder"].startswith("runs/models/builtin-tiny/evaluation/arithmetic/base-n8-")
    assert bare["scores"] == base["scores"]  # a fresh adapter changes nothing
    kept = load_recipe(tmp_path / "runs/models/builtin-tiny/recipe.yaml").evaluation
    assert (kept.limit, kept.samples) == (200, 64)  # the folder keeps no option of one command
    assert trained["scores"] != base["scores"]
    assert (
        "runs/one/evaluation" in gtpo("eval", "--pass-k", "1", "--limit", "4").stdout
    )  # a bare model is no run: the latest is still the trained one


def test_audit_lists_what_the_grader_may_have_missed(gtpo: Run, prepared: Prepared, tmp_path: Path) -> None:
    prepared(TRAIN)
    output = gtpo("eval", "--audit", "--pass-k", "2", "--limit", "8").stdout
    assert "audit of step-000004: " in output
    assert "judged wrong, but it looks right" in output


def test_local_data_and_several_benchmarks(gtpo: Run, prepared: Prepared, tmp_path: Path) -> None:
    prepared(TRAIN)
    for name, column in (("gsm8k", "question"), ("amc23", "problem")):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        rows = [{column: f"{a}+1", "answer": f"#### {a + 1}" if name == "gsm8k" else str(a + 1)} for a in range(5)]
        (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = gtpo("eval", "-b", "gsm8k", "-b", "amc23", "--data-path", "data", "--pass-k", "2").stdout
    assert "gsm8k test: 5 problems, 2 completions each" in output
    assert "amc23 test: 5 problems, 2 completions each" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval"], "there is no run here"),
        (["eval", "runs/none"], "is not a run folder"),
        (["eval", "builtin:tiny", "-b", "math50"], "did you mean math500?"),
        (
            ["eval", "builtin:tiny", "--set", "evaluation={samples: 4, pass_k: [64, 1]}"],
            "k = 64 needs 64 completions",
        ),
        (["eval", "builtin:tiny", "-b", "local"], "--data-path"),
        (["eval", "builtin:tiny", "-b", "gsm8k", "--data-path", "absent"], "absent"),
        (["eval", "builtin:tiny", "--pass-k", "two"], "expected a number like 64"),
    ],
)
def test_errors(gtpo: Run, arguments: list[str], words: str) -> None:
    error = gtpo(*arguments, code=2).stderr
    assert words in " ".join(error.split())
    assert "Traceback" not in error


def test_a_test_file_beside_the_training_file_and_scores_by_a_column(gtpo: Run, tmp_path: Path) -> None:
    """The test file is sorted by kind; each part's accuracy is the mean over its own stored completions."""
    kinds = {"plus": "+", "minus": "-"}
    (tmp_path / "set").mkdir()
    for name, last, count in (("train", 1, 6), ("test", 2, 4)):
        rows = [
            {"question": f"{n + 3} {sign} 2 {sign} 1 + {last}", "answer": str(eval(f"{n + 3}{sign}2{sign}1+{last}")),
             "about": {"kind": kind}}
            for kind, sign in kinds.items() for n in range(count + (kind == "plus"))
        ]  # fmt: skip
        (tmp_path / "set" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    local = ["--set", "data={benchmark: local, path: set, limit: null}"]
    trained = gtpo(*TRAIN, *local, "--set", "rollout.prompts_per_step=2")
    assert trained.stdout.splitlines()[-1] == "next: gtpo eval runs/one --base"  # nothing says that no test is left
    said = gtpo("eval", "--pass-k", "4", "--by", "about.kind").stdout
    rows = [line.split() for line in said.splitlines() if line.startswith(("minus ", "plus "))]
    assert [row[:4] for row in rows] == [["minus", "4", "25.0", "%"], ["plus", "5", "20.0", "%"]]
    assert "the most frequent answer, 8, is right for 11.1 % of these problems" in said.splitlines()  # 9 differ
    (found,) = json.loads(gtpo("eval", "--pass-k", "4", "--by", "about.kind", "--json").stdout)["evaluations"]
    stored = [json.loads(line) for line in (tmp_path / found["folder"] / "samples.jsonl").read_text().splitlines()]
    questions = [json.loads(line)["question"] for line in (tmp_path / "set" / "test.jsonl").read_text().splitlines()]
    assert [row["question"] for row in stored] == questions
    for kind, sign in kinds.items():
        right = [c["correct"] for row in stored if row["question"].split()[1] == sign for c in row["completions"]]
        assert found["parts"][kind]["scores"]["accuracy"]["estimate"] == pytest.approx(sum(right) / len(right))
        assert found["parts"][kind]["problems"] == len(right) // 4
        assert found["parts"][kind]["most_frequent_answer"]["share"] == pytest.approx(4 / len(right))
    missing = gtpo("eval", "--pass-k", "4", "--by", "kind", code=2).stderr
    assert "--by kind: local has no such column; found question, answer and about" in missing


def test_where_no_completion_has_an_answer_that_is_said_with_the_ways_out(gtpo: Run) -> None:
    asked = ("eval", "builtin:tiny", "--benchmark", "arithmetic", "--limit", "2", "--pass-k", "2")
    said = "base: no completion has an answer where it counts (rewards.answer: hashes), so none can be right; to look"
    assert (
        f"{said} elsewhere: gtpo eval ... --answer tags or boxed or last_line"
        in gtpo(*asked, "--answer", "hashes").stdout
    )
    assert "no completion has an answer" not in gtpo(*asked).stdout


def test_a_model_that_was_never_trained_is_asked_which_problems(gtpo: Run, tmp_path: Path) -> None:
    shutil.copytree(resolve_name("builtin:tiny"), tmp_path / "mine")
    refused = gtpo("eval", "./mine", "--limit", "2", code=2).stderr
    assert (
        "./mine: is no run and no export of gtpo, so it has no problems of its own; name some: --benchmark" in refused
    )
    (tmp_path / "mine.jsonl").write_text(
        '{"question": "1+1", "answer": "2"}\n{"question": "1+2", "answer": "#### 3"}\n'
    )
    done = gtpo(
        "eval", "./mine", "--data-path", "mine.jsonl", "--pass-k", "2", "--set", "data.system_prompt=null"
    ).stdout
    assert "local test: 2 problems, 2 completions each" in done
