"""One `gtpo train` finds each part of its recipe once."""

from __future__ import annotations

import json
from pathlib import Path

import forks
import pytest
from commands import environment
from policy_contract import save_model

COUNTED = """
import collections, json, sys
from transformers import AutoConfig, AutoTokenizer
from gtpo_cli.data.preparation import prepare
from gtpo_cli.policy.engines import choose_engines

counted = (AutoConfig.from_pretrained, AutoTokenizer.from_pretrained, choose_engines, prepare)
names = {function.__code__: function.__qualname__ for function in counted}
calls = collections.Counter(dict.fromkeys(names.values(), 0))

def count(frame, event, argument):
    if event == "call" and names and frame.f_code in names:
        calls[names[frame.f_code]] += 1

from gtpo_cli.cli.app import main
sys.argv = ["gtpo", *sys.argv[1:]]
sys.setprofile(count)
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
sys.setprofile(None)
print(json.dumps(calls))
"""
SMALL = ("rollout.max_completion_tokens=16", "training.max_steps=1", "data.max_prompt_tokens=32",
         "objective.probe.num_prompts=4", "data.limit=32", "tracking.wandb.mode=off")  # fmt: skip


@pytest.mark.parametrize("builtin", [True, False], ids=["builtin:tiny", "a folder"])
def test_engines_configuration_tokenizer_and_data_are_found_once(builtin: bool, tmp_path: Path) -> None:
    name = "builtin:tiny" if builtin else str(save_model(tmp_path / "model"))
    model = [
        f"model={{name: '{name}', max_seq_length: 64, lora: null, load_in_4bit: false}}",
        "data.system_prompt=null",
    ]
    settings = [part for setting in (*model, *SMALL) for part in ("--set", setting)]
    (tmp_path / "counted.py").write_text(COUNTED)
    command = [str(tmp_path / "counted.py"), "train", "-q", "--recipe", "tiny_arithmetic", *settings]
    done = forks.run(command, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "AutoConfig.from_pretrained": 1,
        "AutoTokenizer.from_pretrained": 1,
        "choose_engines": 1,
        "prepare": 1,
    }
