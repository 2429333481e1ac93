"""`gtpo try-reward`, and what `gtpo train` says about the reward before step 1 and after ten steps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean, stdev

from commands import Run, metrics
from terminal import OnTerminal

REWARD = """
def short(prompts, completions, answer, **columns):  # TRL's form
    assert prompts[0][-1]["content"] == columns["question"][0]
    return [-0.5 * len(completion[0]["content"]) for completion in completions]
"""
OWN = ["--set", "rewards.plugins=[{name: of_mine:short, weight: 0.1}]"]
# Two tokens hold no answer, and the format earns nothing: every reward is 0.
DEAD = ["--set", "rollout.max_completion_tokens=2", "--set", "rewards.format.weight=0"]


def test_completions_their_rewards_and_the_spread(on_terminal: OnTerminal, gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "of_mine.py").write_text(REWARD)
    command = ["try-reward", "--recipe", "tiny_arithmetic", "--n", "3", *OWN]
    groups = json.loads(gtpo(*command, "--json").stdout)["groups"]
    assert [len(group["completions"]) for group in groups] == [3, 3]
    terminal = on_terminal(*command)
    assert terminal.finish() == 0
    said = "\n".join(terminal.shown())
    for group in groups:
        assert group["prompt"] in said
        rewards = [one["reward"] for one in group["completions"]]
        for one in group["completions"]:
            parts = one["rewards"]
            assert parts["of_mine:short"] == -0.5 * len(one["text"])
            assert one["reward"] == parts["format"] + parts["accuracy"] + 0.1 * parts["of_mine:short"]
            terms = f"format {parts['format']:g} + accuracy {parts['accuracy']:g}"
            line = f"  reward   {one['reward']:g} = {terms} + of_mine:short {parts['of_mine:short']:g} x 0.1"
            assert f"{one['text']}\n  answer   {one['extracted']}\n" in said
            assert line in said
        assert (group["mean"], group["std"]) == (fmean(rewards), stdev(rewards))
        assert f"  spread   of the 3 rewards: mean {fmean(rewards):.3g}, std {stdev(rewards):.3g}\n" in said
    assert "groups with a spread: 2 of 2" in said
    assert "next: gtpo train --recipe tiny_arithmetic --set 'rewards.plugins=" in said


def test_a_reward_that_is_not_alive_is_told_before_step_1_and_after_ten(gtpo: Run, tmp_path: Path) -> None:
    dead = ["--recipe", "tiny_arithmetic", *DEAD]
    tried = gtpo("try-reward", "--prompts", "1", "--n", "3", *dead).stdout
    assert "  spread   of the 3 rewards: mean 0, no spread: nothing to learn from" in tried
    assert "groups with a spread: 0 of 1\ntry a larger rollout.max_completion_tokens (most are truncated), SFT" in tried
    assert tried.splitlines()[-1].endswith(" --n 3 --prompts 10")
    small = ["data.limit=64", "objective.probe.num_prompts=7", "tracking.wandb.mode=off", "run_name=dead"]
    steps = [part for key in (*small, "training.max_steps=11") for part in ("--set", key)]
    said = gtpo("train", *dead, *steps).stdout
    first = "right at first: 0 of 7, in the format: 0 of 7\n"
    assert said.index(first) < said.index("step  1/11")
    run = tmp_path / "runs" / "dead"
    measured = json.loads((run / "initial_entropy.json").read_text())
    assert (measured["accuracy"], measured["format"]) == (0.0, 0.0)
    (warning,) = re.findall(r"^warning: step (\d+): no learning signal: in the first 10 steps (.*)$", said, flags=re.M)
    assert warning[0] == "10"
    assert warning[1].endswith("or easier problems; gtpo try-reward shows the reward of each")
    resumed = gtpo("train", "--resume", "runs/dead", "--set", "training.max_steps=12").stdout
    assert "learning signal" not in resumed
    assert first not in resumed
    assert [row["guard/alarms"] for row in metrics(run)] == [0.0] * 9 + [1.0, 0.0, 0.0]
