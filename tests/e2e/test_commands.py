"""The commands as typed: what they print, what they leave behind, how they fail."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Run, environment, metrics

from gtpo_cli.recipe import Recipe, build_recipe, shipped_recipes
from gtpo_cli.recipe.yaml_text import parse_yaml

QUICK = ["--set", "training.max_steps=3", "--set", "objective.probe.num_prompts=8", "--set", "data.limit=64"]


def test_help_recipes_check_and_completion_are_light_and_threads_will_not_spin(gtpo: Run) -> None:
    unset = {name: value for name, value in environment().items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    completing = {"_GTPO_COMPLETE": "complete_bash", "COMP_WORDS": "gtpo\ntrain\n-r\ntiny", "COMP_CWORD": "3"}
    for arguments, more, spins in (
        (["--help"], {}, "1000"),
        (["recipes", "check", "llama8b_gsm8k", "tiny_arithmetic"], {"OMP_WAIT_POLICY": "active"}, None),
        ([], completing | {"GOMP_SPINCOUNT": "7"}, "7"),
    ):
        code = (
            f"import os, sys; sys.argv = ['gtpo', *{arguments!r}]\n"
            "from gtpo_cli.cli.app import main\n"
            "try: main()\nexcept SystemExit: pass\n"
            "heavy = {'torch', 'transformers', 'datasets', 'wandb', 'sympy'} & set(sys.modules)\n"
            "print('heavy', sorted(heavy), 'spins', os.environ.get('GOMP_SPINCOUNT'), file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=unset | more)
        assert f"heavy [] spins {spins}\n" in done.stderr
        assert done.stdout.startswith("tiny_arithmetic\n") == (more.get("COMP_CWORD") == "3")


def test_every_declared_metric_that_applies_is_written(gtpo: Run, tmp_path: Path) -> None:
    from gtpo_cli.tracking import METRICS

    parts = (
        "objective.kl_coef=0.01", "objective.resample=1", "rollout.steps_per_generation=2", "data.rest_after=2",
        "objective.token_weights.rule=top_entropy",
    )  # fmt: skip
    all_parts = [word for part in parts for word in ("--set", part)]
    gtpo("train", "-q", "--recipe", "tiny_arithmetic", "--set", "run_name=all", *all_parts, *QUICK)
    ratios = {name for name in METRICS if name.startswith("ratio/")}  # from the first update after sampling on
    task = "tasks/arithmetic/accuracy_rate"  # declared as tasks/<benchmark>/accuracy_rate
    for row in metrics(tmp_path / "runs" / "all"):
        assert set(row) - {task} == set(METRICS) - (set() if row["samples/age"] else ratios)
        assert task in row


def test_dry_run_prints_recipe_prompts_and_steps_and_stops(gtpo: Run, tmp_path: Path) -> None:
    output = gtpo("train", "--recipe", "tiny_arithmetic", "--dry-run", "--set", "training.max_steps=null").stdout
    assert "learning_rate: 0.0002" in output
    assert "# prompts: 4800" in output
    assert "# steps: 600 (600 an epoch)" in output
    assert "# completions: 38400" in output
    assert not (tmp_path / "runs").exists()
    lines = output.splitlines()
    first_key = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert first_key <= 15, "the facts come first, on one screen"
    prompt = lines.index("# the first prompt, as the model gets it (10 tokens):")
    assert re.fullmatch(r"#   <s><user>\S+<assistant>", lines[prompt + 1])
    assert any(line.startswith("# entropy filter: ") for line in lines[:first_key])
    assert load_recipe_text(output).optimizer.learning_rate == 2e-4


def load_recipe_text(text: str) -> Recipe:
    return build_recipe(parse_yaml(text), where="the output")


def test_recipes_commands(gtpo: Run, tmp_path: Path) -> None:
    listed = [re.split(r" {2,}", line.rstrip()) for line in gtpo("recipes", "list").stdout.splitlines()]
    assert listed[0] == ["recipe", "what it is for, and what it needs"]
    assert [first for first, _ in listed[2:34:2]] == list(shipped_recipes())
    assert listed[2:4] == [
        ["llama8b_gsm8k", "GTPO on GSM8K with LLaMA-3.1-8B: the paper's settings (Listing 1)."],
        ["", "19.0 of 24 GiB GPU; 14 to 73 h; on an H100 15 to 31 h"],
    ]
    assert (
        "entropy_coef: 0.5" in gtpo("recipes", "show", "tiny_arithmetic", "--set", "objective.entropy_coef=0.5").stdout
    )
    gtpo("recipes", "copy", "tiny_arithmetic", "mine.yaml")
    assert "ok  mine.yaml" in gtpo("recipes", "check", "mine.yaml").stdout
    assert "exists already" in gtpo("recipes", "copy", "tiny_arithmetic", "mine.yaml", code=2).stderr
    (tmp_path / "bad.yaml").write_text("model: {name: builtin:tiny}\ndata: {benchmark: gsm8}\nrolout: {}\n")
    errors = gtpo("recipes", "check", "bad.yaml", code=2).stderr.splitlines()
    assert len(errors) == 2
    assert "did you mean gsm8k?" in errors[0] + errors[1]
    assert "rolout: unknown key; did you mean rollout?" in errors[0] + errors[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--recipe", "nope"], "no such file and no shipped recipe"),
        (["train", "--resume"], "there is no run here"),
        (["train", "--resume", "elsewhere"], "is not a run folder"),
        (
            ["train", "--recipe", "tiny_arithmetic", "--set", "model.name=builtin:huge"],
            "built in: builtin:tasks, builtin:tiny",
        ),
        (["train", "--recipe", "tiny_gsm8k", "--set", "data.path=absent.jsonl"], "absent.jsonl"),
        (["train", "--recipe", "tiny_arithmetic", "--set", "training.keep_best=train/acuracy"], "training.keep_best"),
        (["train", "--recipe", "tiny_arithmetic", "--set", "rewards.plugins=[{name: nowhere:f}]"], "nowhere"),
    ],
)
def test_errors_say_what_and_where_without_a_traceback(
    gtpo: Run, tmp_path: Path, arguments: list[str], words: str
) -> None:
    error = gtpo(*arguments, code=2).stderr
    assert words in error
    assert "Traceback" not in error
    assert not list(tmp_path.glob("runs/*"))  # a run that did not begin leaves nothing behind


def test_a_run_is_never_overwritten(gtpo: Run, tmp_path: Path) -> None:
    arguments = ["train", "-q", "--recipe", "tiny_arithmetic", "--set", "run_name=one", *QUICK]
    gtpo(*arguments)
    before = (tmp_path / "runs" / "one" / "metrics.jsonl").read_bytes()
    assert "there is a run here already" in gtpo(*arguments, code=2).stderr
    assert (tmp_path / "runs" / "one" / "metrics.jsonl").read_bytes() == before


def test_probe_entropy_prints_interval_rule_and_the_line_for_the_recipe(gtpo: Run, tmp_path: Path) -> None:
    text = gtpo("probe-entropy", "--set", "objective.probe.num_prompts=20").stdout
    assert "<H>_ini = " in text
    assert "the entropy filter will be on by the paper's rule" in text
    document = json.loads(gtpo("probe-entropy", "--json", "--set", "objective.probe.num_prompts=20").stdout)
    assert document["prompts"] == 20
    values = [value for group in document["entropies"] for value in group]
    assert document["initial_entropy"] == pytest.approx(sum(values) / 20, rel=1e-6)
    low, high = document["interval_95"]
    assert low < document["initial_entropy"] < high
    shares = [round(20 * document[name]) for name in ("accuracy", "strict_format")]
    assert 0 < shares[0] < shares[1]
    assert "right at first: {} of 20, in the format: {} of 20".format(*shares) in text
    hopeless = ("--set", "rollout.max_completion_tokens=3", "--set", "objective.probe.num_prompts=4")
    assert "right at first: 0 of 4, in the format: 0 of 4\nwhere no" in gtpo("probe-entropy", *hopeless).stdout
    assert "GTPO taught nothing that GRPO did not" in text
    assert "it would leave out" not in text
    assert document["above_threshold_share"] == sum(value > math.log(2) for value in values) / 20
    warm = ("--set", "rollout.temperature=2.0", "--set", "objective.filter.enabled=always")
    seldom = gtpo("probe-entropy", *warm, "--set", "objective.probe.num_prompts=20").stdout
    assert re.search("it would leave out [2-9][0-9] % of these completions", seldom)
    assert f"objective: {{initial_entropy: {document['initial_entropy']:.6f}}}" in text
    # given in the recipe, training does not probe, and records it
    given = f"objective.initial_entropy={document['initial_entropy']:.6f}"
    gtpo("train", "-q", "--recipe", "tiny_arithmetic", "--set", "run_name=given", "--set", given, *QUICK)
    recorded = json.loads((tmp_path / "runs" / "given" / "initial_entropy.json").read_text())
    assert recorded == {"initial_entropy": pytest.approx(document["initial_entropy"], abs=1e-6), "source": "recipe"}
    # and without options the latest run's recipe is probed
    text = gtpo("probe-entropy", "--set", "objective.probe.num_prompts=4").stdout
    assert "runs/given/recipe.yaml" in text
    command = shlex.split(text.splitlines()[-1].removeprefix("next: "))
    assert "done: runs/tiny-" in gtpo(*command[1:]).stdout  # a run of its own: the other one is there already


def test_user_reward_by_dotted_path(gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(
        "def short(problem, completion):\n    return -0.1 * len(completion.token_ids)\n"
        "def broken(problem, completion):\n    return float('nan')\n"
    )
    base = ["train", "-q", "--recipe", "tiny_arithmetic", *QUICK]
    gtpo(*base, "--set", "run_name=plug", "--set", "rewards.plugins=[{name: my_rewards:short, weight: 2.0}]")
    row = metrics(tmp_path / "runs" / "plug")[0]
    assert row["rewards/my_rewards:short_mean"] == pytest.approx(-0.1 * row["completions/length_mean"])
    broken = gtpo(*base, "--set", "run_name=bad", "--set", "rewards.plugins=[{name: my_rewards:broken}]", code=2)
    assert "my_rewards:broken" in broken.stderr
    assert "not finite" in broken.stderr
    assert "loading" not in broken.stdout, "it is called before the weights load"
    assert not (tmp_path / "runs" / "bad").exists()


def test_doctor_says_what_is_missing_and_its_exit_code_whether_training_can_start(gtpo: Run) -> None:
    output = gtpo("doctor").stdout
    assert output.splitlines()[-1] == "next: gtpo train"
    assert "the built-in model can start here" in output
    done = gtpo("doctor", "--recipe", "tiny_arithmetic", "--set", "model.name=nobody/nothing",
                "--set", "model.backend=unsloth", "--set", "model.lora={}", code=1)  # fmt: skip
    assert "--set changes a recipe; name it with --recipe" in gtpo("doctor", "--set", "seed=1", code=2).stderr
    assert "PROBLEM  unsloth" in done.stdout
    assert "nobody" not in done.stderr
    assert re.search(r"tiny_arithmetic cannot start here: .*unsloth", done.stdout)


def test_plan_adds_up_its_parts_and_says_what_fits(gtpo: Run) -> None:
    output = gtpo("plan", "--gpu", "8GiB").stdout
    assert "4,800 prompts, 600 steps, 38,400 completions" in output
    assert "fits 8 GiB: 64 completions in a training forward, 64 sampled at the same time" in output
    assert output.splitlines()[-1] == "next: gtpo train --recipe tiny_arithmetic"
    table = output.partition("GPU memory, GiB")[2].partition("\n\n")[0].splitlines()[1:]
    *parts, together = [[float(cell.replace("-", "0")) for cell in line.split()[-2:]] for line in table]
    for column in (0, 1):
        assert abs(sum(part[column] for part in parts) - together[column]) < 0.05


def test_plan_for_a_gpu_that_is_too_small(gtpo: Run) -> None:
    done = gtpo("plan", "--recipe", "llama8b_gsm8k", "--gpu", "12", code=1)
    assert "its published shape; the hub did not give its configuration" in done.stdout
    smaller = done.stdout.partition("or           --set model.name=unsloth/Llama-3.1-8B-Instruct-bnb-4bit\n")[2]
    assert smaller.startswith("             5.3 GiB of 4-bit weights: 9.6 GiB less to fetch and to store. The same NF4")
    assert "does not fit 12 GiB, even with one completion in a training forward" in done.stdout
    assert "raise rollout.gpu_memory_utilization" in done.stdout
    assert "steps and prompts use earlier counts, 7,473 of at most 287 tokens" in done.stdout
    assert "write e.g. 24GiB" in gtpo("plan", "--gpu", "big", code=2).stderr
