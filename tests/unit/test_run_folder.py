"""The run folder: created once, found again, taken back only when nothing happened in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from gtpo_cli.errors import CheckpointError, RecipeError
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.runs.files import write_aside
from gtpo_cli.runs.folder import RunFolder, Trust, latest_run, new_run


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("tiny_arithmetic", ["objective.entropy_coef=0.25"])


def test_environment_has_versions_and_no_secrets(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t-k3y")
    run = RunFolder(tmp_path / "run")
    run.create(recipe)
    run.write_environment({"model": "m"})
    document = json.loads(run.environment_file.read_text())
    assert document["model"] == "m"
    assert {"torch", "transformers", "gtpo_cli"} <= set(document["packages"])
    assert not [file for file in run.path.iterdir() if "s3cr3t-k3y" in file.read_text()]


def test_latest_is_the_run_that_logged_last(tmp_path: Path, recipe: Recipe) -> None:
    assert latest_run(tmp_path / "absent") is None
    for age, name in ((30, "old"), (10, "new"), (20, "middle")):
        run = RunFolder(tmp_path / name)
        run.create(recipe)
        run.metrics_file.write_text('{"step": 1}\n')
        stamp = 1_000_000_000 - age
        os.utime(run.metrics_file, (stamp, stamp))
    (tmp_path / "no run").mkdir()
    found = latest_run(tmp_path)
    assert found is not None
    assert found.name == "new"


def test_runs_that_start_in_the_same_minute_get_names_of_their_own(tmp_path: Path) -> None:
    """Eight at the same moment; the recipe of each says its name, and a name that was chosen is kept."""
    recipe = load_recipe("tiny_arithmetic", [f"output_dir={tmp_path}"])
    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda _: new_run(recipe), range(8)))
    folders = {run.path for _, run in started}
    assert len(folders) == 8
    assert folders == set(tmp_path.iterdir())
    assert [named.run_name for named, _ in started] == [run.name for _, run in started]
    named = recipe.model_copy(update={"run_name": "mine"})
    assert new_run(named)[1].path == tmp_path / "mine"
    assert not (tmp_path / "mine").exists()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot write the run folder"):
        new_run(recipe.model_copy(update={"output_dir": str(tmp_path / "file")}))


def test_only_a_run_that_did_not_begin_is_taken_back(tmp_path: Path, recipe: Recipe) -> None:
    run = RunFolder(tmp_path / "run")
    run.create(recipe)
    run.write_environment({})
    run.metrics_file.touch()
    run.discard_if_not_begun()
    assert not run.path.exists()

    run.create(recipe)
    run.metrics_file.write_text('{"step": 1}\n')
    run.discard_if_not_begun()
    assert run.recipe_file.exists()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_aside(file, "one")
    write_aside(file, "two")
    assert file.read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


HOLD = """
import sys, time
from pathlib import Path
from uuid import uuid4
from gtpo_cli.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).held(None):
    print("held", flush=True)
    time.sleep(100)
"""


def test_one_process_trains_a_run_and_its_end_frees_it(tmp_path: Path, recipe: Recipe) -> None:
    run = RunFolder(tmp_path / "run")
    command = [sys.executable, "-c", HOLD, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match="run: another process is training this run"), run.held(None):
            pass
        other.kill()

    def fail() -> None:
        assert run.recipe_file.exists()
        raise RecipeError("no such model")

    with pytest.raises(RecipeError, match="no such model"), run.held(recipe):
        fail()
    assert not run.path.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(
            CheckpointError, match=r"file/run: cannot write the run folder \(Not a directory\); see output_dir"
        ),
        RunFolder(tmp_path / "file" / "run").held(None),
    ):
        pass


# -- a folder that may be anybody's -----------------------------------------------------------------------------------


def test_code_that_a_run_folder_asks_for_is_not_run_unless_its_user_asks_too(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create(load_recipe("tiny_arithmetic", ["model.trust_remote_code=true"]))
    for overrides in ([], ["model.trust_remote_code=true"], ["seed=2"]):
        with pytest.raises(
            RecipeError, match=r"model\.trust_remote_code is on in this run's recipe.*--trust-remote-code"
        ):
            run.recipe_to_run(overrides)
    assert run.recipe_to_run(trust=Trust(remote_code=True)).model.trust_remote_code
    assert not run.recipe_to_run(["model.trust_remote_code=false"]).model.trust_remote_code
    plain = RunFolder(tmp_path / "plain")
    plain.create(load_recipe("tiny_arithmetic"))
    assert not plain.recipe_to_run(trust=Trust(remote_code=True)).model.trust_remote_code
    assert plain.recipe_to_run(["model.trust_remote_code=true"]).model.trust_remote_code


# Every key that can name code, as an override of a recipe with this code.
KEYS_OF_CODE = {
    "rewards.plugins.0.name": "rewards.plugins=[{{name: '{0}'}}]",
    "data.gold": "data={{benchmark: local, path: x.jsonl, gold: '{0}'}}",
    **{f"objective.{part}.rule": f"objective.{part}.rule='{{0}}'" for part in ("advantages", "token_weights", "loss")},
}


def run_asking_for(name: str, override: str, where: str = "runs/theirs") -> RunFolder:
    run = RunFolder(Path(where))
    run.create(load_recipe("tiny_arithmetic", [override.format(name)]))
    (run.path / "evil.py").write_text("raise SystemExit('it ran')")
    return run


@pytest.mark.parametrize("key", KEYS_OF_CODE)
@pytest.mark.parametrize(
    "name",
    [
        "runs.theirs.evil:f", "runs.theirs:f", "linked.evil:f", "runs.other.evil:f", "runs.beside:f", "old.run.evil:f",
        "runs/theirs/evil.py:f", "./runs/../runs/other/evil.py:f", "subprocess:call", "os:system", "sympy:sympify",
        "math_verify:parse",
    ],
)  # fmt: skip
def test_code_that_may_have_come_with_runs_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, key: str
) -> None:
    if ".py:" in name and key.startswith("rewards"):
        pytest.skip("a reward is named by its module")
    monkeypatch.chdir(tmp_path)
    run_asking_for("my_rewards:f", KEYS_OF_CODE[key], "runs/other")
    run_asking_for("my_rewards:f", KEYS_OF_CODE[key], "old/run")
    run = run_asking_for(name, KEYS_OF_CODE[key])
    Path("runs/beside.py").touch()
    Path("linked").symlink_to("runs/theirs")
    for _ in range(2):
        with pytest.raises(RecipeError, match=rf"recipe\.yaml: {re.escape(key)}: the code .* add --trust-run-code$"):
            run.recipe_to_run(trust=Trust(remote_code=True))
        Path("recipe.yaml").write_text("{}")  # a user's own beside it changes nothing
    assert run.recipe_to_run(trust=Trust(run_code=True)) == run.recipe()
    assert run.recipe_to_run([KEYS_OF_CODE[key].format("my_rewards:f")]) is not None, "other code is the user's word"


@pytest.mark.parametrize("key", KEYS_OF_CODE)
def test_code_of_the_user_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "on_the_path.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    for name in ("my_rewards:f", "mine.rewards:f", "on_the_path:f"):
        Path("mine").mkdir(exist_ok=True)
        Path("mine/rewards.py").touch()
        Path("my_rewards.py").touch()
        Path("recipe.yaml").write_text("{}")  # a user may call theirs so
        for output_dir in ("runs", "."):
            run = run_asking_for(name, KEYS_OF_CODE[key], f"{output_dir}/{uuid4().hex}")
            assert run.recipe_to_run() == run.recipe()
