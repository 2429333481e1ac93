"""Data as people have it, as typed: files and hub data sets with their own columns, gold answers, chats, mixtures."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Run, comparable, contents, environment
from small_hub import small_hub

SMALL = [
    "tracking.wandb.mode=off", "data.limit=null", "rollout.prompts_per_step=2", "rollout.group_size=4",
    "rollout.max_completion_tokens=60", "objective.probe.num_prompts=4", "training.save_every=2",
    "tracking.log_completions_every=1",
]  # fmt: skip
SUMS = [(f"{a}+{b}-1+2", f"{a}+{b}={a + b} {a + b}-1={a + b - 1} {a + b - 1}+2={a + b + 1}", a + b + 1)
        for a in range(1, 6) for b in range(6)]  # fmt: skip


def typed(recipe: str, *settings: str) -> list[str]:
    return ["train", "--recipe", recipe, *(part for one in (*SMALL, *settings) for part in ("--set", one))]


def write(file: Path, rows: list[dict[str, object]]) -> None:
    if file.suffix == ".json":
        file.write_text(json.dumps(rows, indent=1))
    elif file.suffix == ".csv":
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def asked(run: Path) -> set[str]:
    """Questions of all steps."""
    lines = [line for file in (run / "samples").glob("*.jsonl") for line in file.read_text().splitlines()]
    return {json.loads(line)["question"] for line in lines}


def evaluated(run: Path) -> dict[str, str]:
    """Questions of the one evaluation, with their gold answers."""
    (file,) = (run / "evaluation").glob("*/*/samples.jsonl")
    return {row["question"]: row["gold"] for row in map(json.loads, file.read_text().splitlines())}


def test_a_file_with_other_columns_from_its_first_error_to_the_evaluation_that_training_suggests(
    gtpo: Run, tmp_path: Path
) -> None:
    rows = [{"id": n, "prompt": question, "label": gold} for n, (question, _, gold) in enumerate(SUMS)]
    write(tmp_path / "sums.json", [*rows, *rows[:5]])  # some of them twice
    error = gtpo("train", "--recipe", "tiny_arithmetic", "--set", "data={benchmark: local, path: sums.json}", code=2)
    assert "found id, prompt, label; did you mean prompt and label?" in error.stderr
    gtpo("init", "mine.yaml", "--model", "builtin:tiny", "--data", "sums.json")
    written = (tmp_path / "mine.yaml").read_text()
    assert "  columns: {question: prompt, answer: label}" in written
    assert "  gold: column" in written
    assert "  held_out: 0.1" in written
    assert "ok  mine.yaml" in gtpo("recipes", "check", "mine.yaml").stdout
    settings = [
        "run_name=one",
        "data.held_out=0.2",
        "training.max_steps=15",
        "training.eval_every=15",
        "evaluation.limit=3",
    ]
    said = gtpo(*typed("mine.yaml", *settings), "--quiet").stdout
    assert said.splitlines()[-1] == "next: gtpo eval runs/one --base"
    gtpo("eval", "runs/one", "--pass-k", "1", "--limit", "100", "--set", "evaluation.samples=1")
    held_out = evaluated(tmp_path / "runs/one")
    assert len(held_out) == 6  # of 30 different questions
    assert held_out.items() <= {(question, str(gold)) for question, _, gold in SUMS}
    trained = asked(tmp_path / "runs/one")
    assert len(trained) > 20
    assert not trained & held_out.keys()
    refused = gtpo("eval", "runs/one", "--set", "data.held_out=0.5", code=2).stderr
    assert "trained with 0.2: another split would contain questions it has seen" in refused


GOLD = "def read(row):\n    return row['said'].partition('is ')[2]\n"
WAYS = {
    "hashes": (
        [{"query": q, "said": f"{s}\n#### {g}"} for q, s, g in SUMS],
        ["data.columns={question: query, answer: said}"],
    ),
    "boxed": (
        [{"query": q, "said": f"{s}, so $\\boxed{{{g}}}$."} for q, s, g in SUMS],
        ["data.columns={question: query, answer: said}", "data.gold=boxed"],
    ),
    "function": (
        [{"query": q, "said": f"it is {g}", "worked": s} for q, s, g in SUMS],
        ["data.columns={question: query, solution: worked}", "data.gold=gold.py:read"],
    ),
    "chat": (
        [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": f"{s}\n#### {g}"}]}
         for q, s, g in SUMS],
        ["data.columns={question: messages, answer: messages}"],
    ),
    "within": (
        [{"prompt": [{"from": "human", "value": q}], "reward_model": {"ground_truth": str(g)}, "extra": {"w": s}}
         for q, s, g in SUMS],
        ["data.columns={question: prompt, answer: reward_model.ground_truth, solution: extra.w}"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_gold_answers_and_solutions_in_all_ways(gtpo: Run, tmp_path: Path, way: str) -> None:
    rows, settings = WAYS[way]
    write(tmp_path / "data.jsonl", rows)
    (tmp_path / "gold.py").write_text(GOLD)
    local = ["data={benchmark: local, path: data.jsonl, held_out: 0.2}", *settings, "run_name=one"]
    sft = gtpo(*typed("tiny_arithmetic", *local, "objective.name=sft", "training.max_steps=null"), "--dry-run").stdout
    assert "# references: 24, imitated" in sft
    assert "# prompts: 24\n" in gtpo(*typed("tiny_arithmetic", *local), "--dry-run", "--engine", "trl").stdout
    gtpo(*typed("tiny_arithmetic", *local, "objective.name=sft", "training.max_steps=1"), "--quiet")
    gtpo("eval", "runs/one", "--pass-k", "1", "--set", "evaluation.samples=1")
    held_out = evaluated(tmp_path / "runs/one")
    assert len(held_out) == 6
    assert held_out.items() <= {(question, str(gold)) for question, _, gold in SUMS}


def test_a_mixture_has_its_weights_and_resumes_bit_for_bit(gtpo: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"query": q, "response": f"{s}\n#### {g}"} for q, s, g in SUMS[:20]])
    write(tmp_path / "b.json", [{"query": q, "response": g} for q, _, g in SUMS])
    (tmp_path / "mix.yaml").write_text(
        "model: {name: 'builtin:tiny'}\n"
        "data:\n  mixture: {a.jsonl: 3, b.json: 1}\n"
        "  columns: {question: query, answer: response}\n  held_out: 0.25\n"
    )
    changes = [setting for setting in SMALL if setting != "data.limit=null"]
    train = [
        "train",
        "--recipe",
        "mix.yaml",
        *(p for one in (*changes, "training.max_steps=4", "run_name=whole") for p in ("--set", one)),
    ]
    planned = gtpo(*train, "--dry-run").stdout
    assert "# a.jsonl: 3 problems left out, because another part of the mixture holds them out" in planned
    assert "88 prompts an epoch: 66 of a.jsonl (12 problems, weight 3), 22 of b.json (22 problems, weight 1)" in planned
    gtpo(*train, "--quiet")
    whole, again = tmp_path / "runs/whole", tmp_path / "runs/again"
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints/step-000004")
    gtpo("train", "--quiet", "--resume", "runs/again")
    assert comparable(again) == comparable(whole)
    assert contents(again) == contents(whole)
    said = gtpo("eval", "runs/whole", "--pass-k", "1", "--set", "evaluation.samples=1", "--limit", "20").stdout
    assert "mixture test: 13 problems" in said  # 5 and 8
    assert not asked(whole) & evaluated(whole).keys()


README = "---\nconfigs:\n" + "".join(
    f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}.jsonl\n" for name in ("easy", "hard")
) + "---\n"  # fmt: skip


# All in one process: what costs is the start of one.
TYPE_ALL = """
import json, sys
from typer.testing import CliRunner
from gtpo_cli.cli.app import app
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, arguments)
    print("SAID", json.dumps([result.exit_code, result.output]))
"""


def test_a_data_set_of_the_hub_online_and_then_offline_from_its_cache(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"problem": q, "final": f"so \\boxed{{{g}}}"}) + "\n" for q, _, g in SUMS).encode()
    files = {"README.md": README.encode(), "easy.jsonl": rows, "hard.jsonl": rows}
    here = {key: value for key, value in environment().items() if "proxy" not in key.lower()}
    here |= {"HF_HOME": str(tmp_path / "cache"), "HF_UPDATE_DOWNLOAD_COUNTS": "0"}  # else it asks s3.amazonaws.com too

    def run(*asked: list[str], **more: str) -> list[tuple[int, str]]:
        commands = [[*typed("tiny_arithmetic", "data.benchmark=hub", *settings), "--dry-run"] for settings in asked]
        done = subprocess.run(
            [sys.executable, "-c", TYPE_ALL, json.dumps(commands)],
            cwd=tmp_path, env=here | more, capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        return [tuple(json.loads(line[5:])) for line in done.stdout.splitlines() if line.startswith("SAID ")]

    easy = "data.dataset=owner/sums:easy@v2"
    read = [easy, "data.columns={question: problem, answer: final}", "data.held_out=0.2"]
    with small_hub("owner/sums", files, revision="v2") as url:
        no_config, whole, no_split, no_revision = run(
            ["data.dataset=owner/sums@v2"], read, [*read, "data.split=test"],
            ["data.dataset=owner/sums@v9"], HF_ENDPOINT=url, HF_HUB_OFFLINE="0",
        )  # fmt: skip
    assert (no_config[0], no_split[0], no_revision[0]) == (1, 1, 1)
    assert (whole[0], "# prompts: 24\n" in whole[1]) == (0, True)
    assert "['easy', 'hard']" in no_config[1]
    assert "name one of them: data.dataset: owner/sums:CONFIGURATION" in no_config[1]
    assert "there is no split test: set data.split" in no_split[1]
    assert "has no revision v9 of it" in no_revision[1]
    cached, absent = run(read, ["data.dataset=owner/others"], HF_HUB_OFFLINE="1")
    assert (cached[0], "# prompts: 24\n" in cached[1]) == (0, True)
    assert "owner/others: the hub cannot be reached" in absent[1]
    assert "hf download --repo-type dataset owner/others --local-dir FOLDER" in absent[1]
