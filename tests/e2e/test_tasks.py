"""Tasks as a user types them: the list, one of them, a run on several, its evaluation and its resume."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import Run, metrics

TASK = '''
class Sums:
    """Sums of four numbers, in the order of their digits."""

    def __init__(self, first=0):
        self.first = first

    def problems(self, split, seed):
        import random
        draw = random.Random(f"{split} {seed if split == 'train' else ''}")
        while True:
            numbers = [self.first or draw.randint(0, 9), *(draw.randint(0, 9) for _ in range(3))]
            yield {"question": "+".join(map(str, numbers)), "answer": sum(numbers), "numbers": numbers}

    def score(self, row, answer):
        return float(int(answer) == sum(row["numbers"]))
'''
MIXTURE = ["--set", "data.benchmark=mixture", "--set", "data.mixture={my_task.py:Sums: 1, arithmetic: 1}"]
MIXTURE += ["--set", "data.config={my_task.py:Sums: {first: 3}}", "--set", "data.limit=64"]


def test_tasks_are_listed_and_shown(gtpo: Run) -> None:
    pytest.importorskip("reasoning_gym")
    listed = json.loads(gtpo("tasks", "--json").stdout)["tasks"]
    names = [task["name"] for task in listed]
    assert names[:2] == ["arithmetic", "word_problems"]
    assert len([name for name in names if name.startswith("reasoning_gym/")]) == 106
    shown = gtpo("tasks", "reasoning_gym/chain_sum", "--set", "data.config={max_terms: 2, max_digits: 1}").stdout
    assert re.search(r"max_terms +2\b", shown)
    assert "levels of num_terms: 2, 3, 4" in shown
    problems = re.findall(r"problem: (\d) ([+-]) (\d) =\n-- answer\n(-?\d+)\n", shown)
    assert len(problems) == 2
    assert all(eval(f"{first}{sign}{second}") == int(gold) for first, sign, second, gold in problems)
    assert shown.rstrip().splitlines()[-1].startswith("next: ")


def test_a_task_of_the_user_s_own_is_trained_on_resumed_and_evaluated(gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(TASK)
    first = gtpo("tasks", "my_task.py:Sums", "--recipe", "tiny_arithmetic", "--set", "objective.probe.num_prompts=4")
    assert re.search(r"builtin:tiny at first, 32 completions of the first 4 problems: [\d.]+% right", first.stdout)
    quick = ["--quiet", "--recipe", "tiny_arithmetic", *MIXTURE, "--set", "objective.initial_entropy=0.1"]
    gtpo("train", *quick, "--name", "whole", "--set", "training.max_steps=4")
    gtpo("train", *quick, "--name", "parts", "--set", "training.max_steps=2")
    gtpo("train", "--quiet", "--resume", "runs/parts", "--set", "training.max_steps=4")
    whole, parts = (metrics(tmp_path / "runs" / name) for name in ("whole", "parts"))
    assert [row["optim/loss"] for row in whole] == [row["optim/loss"] for row in parts]
    assert all(row["rewards/errors"] >= 0.0 for row in whole)
    gtpo("eval", "runs/whole", "--limit", "3", "--pass-k", "2")
    gtpo("eval", "runs/whole", "--benchmark", "my_task.py:Sums", "--limit", "3", "--pass-k", "2")
    stored = sorted(path.parent.parent.name for path in (tmp_path / "runs/whole/evaluation").glob("*/*/results.json"))
    assert stored[0] == "mixture"
    assert stored[1].startswith("my_task.py-Sums-")
    samples = (tmp_path / "runs/whole/evaluation" / stored[1]).glob("*/samples.jsonl")
    questions = [json.loads(line)["question"] for file in samples for line in file.read_text().splitlines()]
    assert len(questions) == 3
    assert all(re.fullmatch(r"3\+\d\+\d\+\d", question) for question in questions)  # its configuration holds here too
    gtpo("report", "runs/whole")
    (page,) = (tmp_path / "runs/whole/report").glob("*.html")
    assert "my_task.py:Sums" in page.read_text()
