"""Keys in the environment reach no file and no output, whatever command was run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import forks
from commands import GTPO, environment
from small_runs import train

SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_thisIsNoTokenButASecret",
    "AWS_SECRET_ACCESS_KEY": "s3cr3t/of/the/cloud",
}


def test_no_key_is_written_or_said(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    known = environment() | SECRETS | {"HOME": str(home), "WANDB_MODE": "offline"}
    commands = [
        (train("one", "tracking.wandb.mode=offline", "training.max_steps=4"), {0}),
        (["eval", "runs/one", "--pass-k", "2", "--limit", "4"], {0}),
        (["report", "runs/one"], {0}),
        (["export", "runs/one"], {0}),
        (["inspect", "runs/one", "--step", "1"], {0}),
        (["doctor", "--recipe", "tiny_arithmetic"], {0, 1}),
        (["--debug", "train", "--recipe", "tiny_arithmetic", "--set", "data.limit=0"], {1}),
    ]
    said = ""
    for number, (arguments, codes) in enumerate(commands):
        command = [*GTPO, *arguments]
        if number == 0:  # started anew, so that what libraries say when they are imported is read too
            done = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True)
        else:
            done = forks.run(command, cwd=tmp_path, env=known)
        assert done.returncode in codes, done.stderr
        said += done.stdout + done.stderr
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    written = {"recipe.yaml", "environment.json", "metrics.jsonl", "report.html", "export.json"}
    assert written <= {file.name for file in files}
    assert any(file.suffix == ".wandb" for file in files)
    for name, secret in SECRETS.items():
        assert secret not in said, name
        assert [file.name for file in files if secret.encode() in file.read_bytes()] == [], name
