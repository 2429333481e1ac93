"""The commands that are rehearsed, as typed, and who runs them: a process (rehearse.py) that works them off one after
the other, beside the other tests.

LLaMA's are those of examples/llama8b_gsm8k.ipynb. The paper's recipes are as they are but for the model's folder,
lengths, steps and rank (and float16: Triton's interpreter has no bfloat16): NF4 weights in Unsloth's policy and in
vLLM's engine, which share them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch
from commands import SHARED, environment
from environment import ENVIRONMENT
from gpu_notebook import commands as notebook_commands
from gpu_notebook import write_files

HERE = Path(__file__).resolve().parent
DATA = SHARED / "data/gsm8k"

FAMILIES = {
    "llama": ("llama8b_gsm8k", "llama-3.1", 110, {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]}),
    "qwen": ("qwen3b_gsm8k", "qwen2.5", 90, {"bos_token_id": 151643, "eos_token_id": [151645, 151643]}),
}
COMPLETION = 6


class Done(NamedTuple):
    """How a command ended: exit code, what it printed, what it did in order (rehearse.py)."""

    code: int
    out: str
    calls: list[str]


class Server:
    """A family's folder and commands, each of which is a process of its own; all families share one rehearse.py."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self._process = folder, process
        self.futures: dict[str, Future[Done]] = {}

    def run(self, name: str, argv: list[str], *, terminate_after_step: int | None = None, run: str = "") -> Done:
        files = {key: str(self.folder / f"{name}.{key}") for key in ("out", "calls")}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"argv": argv, "cwd": str(self.folder), **files}) + "\n")
        self._process.stdin.flush()
        pid = self._answer()["pid"]
        if terminate_after_step is not None:
            file = self.folder / "runs" / run / "metrics.jsonl"
            while not file.exists() or len(file.read_text().splitlines()) < terminate_after_step:
                time.sleep(0.2)
            os.kill(pid, signal.SIGTERM)
        code = self._answer()["code"]
        return Done(code, Path(files["out"]).read_text(), json.loads(Path(files["calls"]).read_text()))

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Unsloth's banners come before
                return json.loads(line)
        raise AssertionError("rehearse.py has ended; what it said stands above")


def changed(*changes: str) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def settings(family: str, folder: Path) -> list[str]:
    """The options of a command: what is not the paper's in the recipe of the family."""
    _, _, prompt, _ = FAMILIES[family]
    return changed(
        f"model.name={folder / family}", "model.dtype=float16",
        f"model.max_seq_length={prompt + 2 * COMPLETION}", "model.lora={rank: 8, alpha: 8}",
        f"data.path={DATA}", "data.limit=200", f"data.max_prompt_tokens={prompt}",
        f"rollout.max_completion_tokens={COMPLETION}", f"evaluation.max_completion_tokens={COMPLETION}",
        "evaluation.limit=2", "objective.probe.num_prompts=2", "training.save_every=1", "tracking.wandb.mode=off",
    )  # fmt: skip


def save_family(family: str, folder: Path) -> None:
    """A random model of one block with the family's real tokenizer and vocabulary, saved in float16."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    _, tokenizer, _, ends = FAMILIES[family]
    loaded = AutoTokenizer.from_pretrained(SHARED / "models/tokenizers" / tokenizer)
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": (len(loaded) + 127) // 128 * 128, "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096,
        "initializer_range": 0.1, "tie_word_embeddings": family == "qwen",
    }  # fmt: skip
    is_llama = family == "llama"
    config: Any = (LlamaConfig if is_llama else Qwen2Config)(**shape, **ends)
    model: Any = (LlamaForCausalLM if is_llama else Qwen2ForCausalLM)(config)
    model.half().save_pretrained(folder / family)
    loaded.save_pretrained(folder / family)


# what the notebook's commands are given beside the settings
BESIDE = {
    "train": changed("training.eval_every=2"),
    "eval": ["--data-path", str(DATA)],
    "generate": ["--max-tokens", "4"],
}
LLAMA = {name: [*argv, *BESIDE.get(name, [])] for name, argv in notebook_commands().items()} | {
    "terminated": ["train", "--recipe", "gsm8k.yaml",
                   *changed("run_name=cut", "training.max_steps=3", "training.eval_every=2")],
    "resumed": ["train", "--resume", "runs/cut"],
}  # fmt: skip
QWEN = {
    "probe": ["probe-entropy", "--recipe", "qwen3b_gsm8k"],
    "train": ["train", "--recipe", "qwen3b_gsm8k",
              *changed("run_name=long", "training.max_steps=1", "training.stress_step=true")],
    "kl": ["train", "--recipe", "qwen3b_gsm8k",
           *changed("run_name=kl", "training.max_steps=2", "objective.name=grpo", "objective.entropy_coef=0",
                    "objective.kl_coef=0.04", "optimizer.betas=[0.9, 0.95]")],
    "sft": ["train", "--recipe", "qwen3b_gsm8k",
            *changed("run_name=sft", "training.max_steps=1", "training.stress_step=true", "objective.name=sft",
                     "objective.entropy_coef=0", "optimizer.betas=[0.9, 0.95]", "training.keep_best=optim/loss",
                     "rollout.max_completion_tokens=80", "model.max_seq_length=180")],
}  # fmt: skip
COMMANDS = {"llama": LLAMA, "qwen": QWEN}


def typed(family: str, folder: Path, argv: list[str]) -> list[str]:
    """With the settings behind a recipe's name, so that what the command sets itself comes after them."""
    if "--recipe" not in argv:
        return argv
    place = argv.index("--recipe") + 2
    return [*argv[:place], *settings(family, folder), *argv[place:]]


def start(new_folder: Callable[[str], Path]) -> Iterator[dict[str, Server]]:
    """At work from now on; `Server.futures` has each command's end."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "rehearse.py")], env=environment() | ENVIRONMENT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    made = {family: Server(new_folder(family), process) for family in COMMANDS}
    for family, server in made.items():
        server.futures = {name: Future() for name in COMMANDS[family]}
        save_family(family, server.folder)
        write_files(server.folder)
    threading.Thread(target=_work, args=(made,), daemon=True).start()
    yield made
    os.killpg(process.pid, signal.SIGKILL)  # with the command that it is at
    process.wait()


def _work(servers: dict[str, Server]) -> None:
    try:
        for family, server in servers.items():
            for name, argv in COMMANDS[family].items():
                cut: dict[str, Any] = {"terminate_after_step": 1, "run": "cut"} if name == "terminated" else {}
                server.futures[name].set_result(server.run(name, typed(family, server.folder, argv), **cut))
    except Exception as error:  # noqa: BLE001  # the tests that wait raise it
        for future in (future for server in servers.values() for future in server.futures.values()):
            if not future.done():
                future.set_exception(error)
