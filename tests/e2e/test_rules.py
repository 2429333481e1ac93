"""Rules that a recipe names, built in and of the user's own."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import forks
import pytest
from commands import ROOT, SIGNALLED, Run, comparable, contents, environment, metrics

# the example of the documentation, and what is wrong
(EXAMPLE,) = re.findall(
    r"```python\n(from gtpo_cli import Ratio.*?)```", (ROOT / "docs/objective.md").read_text(), re.S
)
RULES = (
    EXAMPLE
    + """

def short(tokens):
    return tokens.mask[..., :1].float()


def fails(tokens):
    return tokens.no_such_thing


CALLS = []


def tires(ratio):
    CALLS.append(ratio.mask.ndim)  # 2 in a run, 3 when it is tried before
    return ratio.coefficients * (ratio.value if CALLS.count(2) < 4 else 1.0)
"""
)
SMALL = [
    "training.max_steps=2", "training.save_every=1", "rollout.prompts_per_step=2", "rollout.group_size=6",
    "rollout.max_completion_tokens=16", "objective.initial_entropy=0.1", "rollout.temperature=1.3",
    "tracking.log_completions_every=1",
]  # fmt: skip
OWN = [
    "objective.name=grpo", "objective.advantages={rule: 'rules.py:above_half', config: {high: 2}}",
    "objective.token_weights={rule: 'rules.py:late', config: {share: 0.25}}", "objective.loss.rule=rules.py:unclipped",
]  # fmt: skip


def train(*changes: str) -> list[str]:
    settings = [word for change in [*SMALL, *changes] for word in ("--set", change)]
    return ["train", "--quiet", "--recipe", "tiny_arithmetic", *settings]


def stored(run: Path, step: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / f"samples/step-{step:06d}.jsonl").read_text().splitlines()]


def test_a_rule_of_ones_own_for_each_key(gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    gtpo(*train(*OWN), "--name", "own")
    run = tmp_path / "runs" / "own"
    for step in (1, 2):
        rows = stored(run, step)
        assert len(rows) == 12
        for first in (0, 6):
            best = max(row["reward"] for row in rows[first : first + 6])
            for row in rows[first : first + 6]:
                assert row["advantage"] == 2.0 * (row["reward"] > best / 2)
                length = len(row["tokens"])
                assert row["lambda"] == [float(place + 1 > 0.25 * length) for place in range(length)]
    assert "lambda of the rule rules.py:late with share 0.25" in gtpo("inspect", "runs/own").stdout

    (tmp_path / "rules.py").write_text(RULES + "# edited")
    resume = ["train", "--quiet", "--resume", "runs/own", "--set", "training.max_steps=3"]
    said = " ".join(gtpo(*resume, code=2).stderr.split())
    names = "rules.py:above_half, rules.py:unclipped, rules.py:late"
    assert f"runs/own: {names}: the code changed since the run began; put it back as it was, or go on with" in said
    assert len(metrics(run)) == 2
    gtpo(*resume, "--force")
    gtpo(*resume[:-1], "training.max_steps=4")  # with the code that it went on with
    assert len(metrics(run)) == 4


def test_a_rule_of_the_whole_step_is_measured_and_repeated_after_a_resume(gtpo: Run, tmp_path: Path) -> None:
    weights = "objective.token_weights={rule: clip_cov, config: {share: 0.2, low: 0}, control: random}"
    changes = ["objective.name=grpo", weights, "rollout.steps_per_generation=2"]
    gtpo(*train(*changes), "--name", "whole")
    killed = [SIGNALLED, str(int(signal.SIGKILL)), "2", *train(*changes), "--name", "resumed"]
    assert forks.run(killed, cwd=tmp_path, env=environment()).returncode == -signal.SIGKILL
    gtpo("train", "--quiet", "--resume", "runs/resumed")
    whole, resumed = (tmp_path / "runs" / name for name in ("whole", "resumed"))
    assert all(row["time/weigh"] > 0 for row in metrics(whole))
    zeros = [row["lambda"].count(0.0) for step in (1, 2) for row in stored(whole, step)]
    assert sum(zeros) > 0
    assert comparable(whole) == comparable(resumed)
    assert contents(whole) == contents(resumed)
    said = gtpo("inspect", "runs/whole").stdout
    assert "lambda of the rule clip_cov with share 0.2, low 0, its weights on random tokens of the same" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            "objective.token_weights.rule=rules.py:short",
            r"token_weights\.rule: gave the shape \(3, 4, 1\); expected one number for",
        ),
        ("objective.token_weights.rule=rules.py:fails", r"rules\.py:fails: at rules\.py:\d+ in fails: AttributeError"),
        ("objective.token_weights.rule=rules.py:absent", r"rules\.py:absent: module rules\.py has no function absent"),
        ("objective.advantages={rule: quantile, config: {k: 2}}", r"config: quantile: k: input should be less than or"),
        ("objective.loss.rule=kl_cov", r"objective\.loss\.rule: kl_cov does what token does as long as the ratio is 1"),
        ("objective.loss.rule=soft", r"objective\.loss\.rule: soft does what token does as long as the ratio is 1"),
        ("objective.loss.rule=sopft", r"objective\.loss\.rule: 'sopft' is not one of .*did you mean soft"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_before_weights_load(
    gtpo: Run, tmp_path: Path, changes: str, said: str
) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    failed = gtpo(*train(changes), "--name", "refused", code=2)
    assert re.search(said, " ".join(failed.stderr.split())), failed.stderr
    assert not (tmp_path / "runs" / "refused").exists()


def test_a_rule_that_fails_after_some_steps_ends_the_run_with_its_error(gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    failed = gtpo(*train("objective.loss.rule=rules.py:tires", "training.max_steps=9"), "--name", "tires", code=2)
    assert "objective.loss.rule: gave nothing with a gradient" in " ".join(failed.stderr.split())
    assert "Traceback" not in failed.stderr
    assert 1 <= len(metrics(tmp_path / "runs" / "tires")) < 9


def test_a_rule_that_cannot_work_is_found_before_a_start(gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    small = "model: {name: 'builtin:tiny'}\ndata: {benchmark: arithmetic}\nobjective: {token_weights: "
    (tmp_path / "wrong.yaml").write_text(small + "{config: {negativ: 1}}}")
    (tmp_path / "absent.yaml").write_text(small + "{rule: 'rules.py:absent'}}")
    for recipe, said in (
        ("wrong.yaml", "objective.token_weights.config: conflict: got an unexpected keyword argument 'negativ'"),
        ("absent.yaml", "objective.token_weights.rule: rules.py:absent: module rules.py has no function absent"),
    ):
        assert f"# cannot start here: {said}" in gtpo("train", "--recipe", recipe, "--dry-run").stdout
        assert said in gtpo("recipes", "check", recipe, code=2).stderr
