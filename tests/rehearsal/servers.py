"""The commands that are rehearsed, as typed, and who runs them: a process (rehearse.py) that works them off one after
the other, beside the other tests.

LLaMA's are those of examples/llama8b_gsm8k.ipynb. The paper's recipes are as they are but for the model's folder,
lengths, system prompt, steps and rank (and float16: Triton's interpreter has no bfloat16): NF4 weights in Unsloth's
policy and in vLLM's engine, which share them. SmolLM2 is whole and real, where `make real-model` has made it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from commands import ROOT, SHARED, environment
from environment import ENVIRONMENT
from gpu_notebook import commands as notebook_commands
from gpu_notebook import write_files

HERE = Path(__file__).resolve().parent
DATA = SHARED / "data/gsm8k"
REAL = ROOT / "build" / "smollm2-135m"
REAL_IS_HERE = (REAL / "model.safetensors").is_file()  # written last

FAMILIES = {
    "llama": ("llama8b_gsm8k", "llama-3.1", 69, {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]}),
    "qwen": ("qwen3b_gsm8k", "qwen2.5", 49, {"bos_token_id": 151643, "eos_token_id": [151645, 151643]}),
    "qwen3": ("qwen0.6b_gsm8k", "qwen2.5", 90, {"bos_token_id": 151643, "eos_token_id": [151645, 151643]}),
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

    def run(
        self, name: str, argv: list[str], *, terminate_after_step: int | None = None, run: str = "", no_room: int = 0
    ) -> Done:
        """`no_room`: at so many wake-ups, the first ones, the card has no memory left."""
        files = {key: str(self.folder / f"{name}.{key}") for key in ("out", "calls")}
        assert self._process.stdin is not None
        request = {"argv": argv, "cwd": str(self.folder), "no_room": no_room, **files}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        pid = self._answer()["pid"]
        if terminate_after_step is not None:
            file = self.folder / "runs" / run / "metrics.jsonl"
            command = Path(f"/proc/{pid}")  # gone once it has failed
            while command.exists() and (not file.exists() or len(file.read_text().splitlines()) < terminate_after_step):
                time.sleep(0.2)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        code = self._answer()["code"]
        return Done(code, Path(files["out"]).read_text(), json.loads(Path(files["calls"]).read_text()))

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Unsloth's banners come before
                return json.loads(line)
        raise AssertionError("rehearse.py has ended; what it said stands above")


def ended(server: Server, name: str, *, code: int = 0) -> Done:
    done = server.futures[name].result(timeout=900)
    assert done.code == code, done.out[-6000:]
    assert "Traceback" not in done.out
    assert "pause state" not in done.out  # vLLM's line whenever the engine sleeps or wakes
    return done


def engine_of(calls: list[str]) -> dict[str, str]:
    """The one engine of a process, which got what the recipe says, and slept, if it can, but while it sampled."""
    engines = [call for call in calls if call.startswith("engine ")]
    assert len(engines) == 1
    rest = calls[calls.index(engines[0]) + 1 :]
    options: dict[str, str] = json.loads(engines[0].removeprefix("engine "))
    if options["enable_sleep_mode"] == "False":
        assert not {"sleep", "wake"} & set(rest)
        return options
    awake = " ".join("sample" if call.startswith("sample") else call for call in rest)
    awake = awake.replace("sample wake sleep", "sampled")
    assert awake.startswith("sleep")  # from its start
    assert not re.search(r"\b(sample|wake)\b|sleep.*\bsleep\b", awake), awake
    assert not any("sample with gradients" in call for call in rest)
    return options


def changed(*changes: str) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def settings(family: str, folder: Path) -> list[str]:
    """The options of a command: what is not the paper's in the recipe of the family."""
    if family == "smollm":
        return REAL_SETTINGS
    _, _, prompt, _ = FAMILIES[family]
    return changed(
        f"model.name={folder / family}", "model.dtype=float16",
        f"model.max_seq_length={prompt + 2 * COMPLETION}", "model.lora={rank: 8, alpha: 8}",
        f"data.path={DATA}", "data.limit=200", "data.system_prompt=Answer.", f"data.max_prompt_tokens={prompt}",
        f"rollout.max_completion_tokens={COMPLETION}", f"evaluation.max_completion_tokens={COMPLETION}",
        f"rollout.standby={'always' if family == 'llama' else 'auto'}", "evaluation.limit=30",
        "objective.probe.num_prompts=2", "training.save_every=1", "tracking.wandb.mode=off",
    )  # fmt: skip


def save_family(family: str, folder: Path) -> None:
    """A random model of one block with the family's real tokenizer and vocabulary, saved in float16."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    _, tokenizer, _, ends = FAMILIES[family]
    loaded = AutoTokenizer.from_pretrained(SHARED / "models/tokenizers" / tokenizer)
    if family == "qwen3":  # whose template can switch thinking off
        loaded.chat_template = (SHARED / "cases/templates/qwen3.jinja").read_text()
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": (len(loaded) + 127) // 128 * 128, "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096,
        "head_dim": 64, "initializer_range": 0.1, "tie_word_embeddings": family != "llama",
    }  # fmt: skip
    config = AutoConfig.for_model("qwen2" if family == "qwen" else family, **shape, **ends)
    AutoModelForCausalLM.from_config(config).half().save_pretrained(folder / family)
    loaded.save_pretrained(folder / family)


# Two generations: steps 1 to 4, and step 5.
AHEAD = changed("rollout.steps_per_generation=4", "training.eval_every=5", "training.save_every=3")
# what the notebook's commands are given beside the settings
BESIDE = {
    "train": AHEAD,
    "eval": ["--data-path", str(DATA)],
    "generate": ["--max-tokens", "4"],
}
LLAMA = {name: [*argv, *BESIDE.get(name, [])] for name, argv in notebook_commands().items()} | {
    "terminated": ["train", "--recipe", "gsm8k.yaml", *changed("run_name=cut", "training.max_steps=5"), *AHEAD],
    "no room": ["train", "--resume", "runs/cut"],
    "resumed": ["train", "--resume", "runs/cut"],
}  # fmt: skip
CACHE = "fp8" if torch.cpu._is_avx512_supported() else "auto"  # vLLM for CPUs has no other FP8 cache
QWEN = {
    "probe": ["probe-entropy", "--recipe", "qwen3b_gsm8k"],
    "train": ["train", "--recipe", "qwen3b_gsm8k",
              *changed("run_name=long", "training.max_steps=1")],
    "kl": ["train", "--recipe", "qwen3b_gsm8k",
           *changed("run_name=kl", "training.max_steps=2", "objective.name=grpo", "objective.entropy_coef=0",
                    "objective.kl_coef=0.04", "optimizer.betas=[0.9, 0.95]", "rollout.max_num_seqs=24",
                    f"rollout.vllm={{enforce_eager: true, kv_cache_dtype: {CACHE}, max_num_batched_tokens: 3000}}",
                    "rollout.vllm.speculative_config={method: ngram, num_speculative_tokens: 3, prompt_lookup_min: 1, "
                    "prompt_lookup_max: 4}")],
    "sft": ["train", "--recipe", "qwen3b_gsm8k",
            *changed("run_name=sft", "training.max_steps=1", "objective.name=sft",
                     "objective.entropy_coef=0", "optimizer.betas=[0.9, 0.95]", "training.keep_best=optim/loss",
                     "rollout.max_completion_tokens=80", "model.max_seq_length=139")],
}  # fmt: skip
QWEN3 = {  # two prompts: vLLM puts its generator back where a step's prompts come in parts, and a CPU's cannot go back
    "train": ["train", "--recipe", "qwen0.6b_gsm8k",
              *changed("run_name=small", "training.max_steps=1", "rollout.prompts_per_step=2")],
}  # fmt: skip
# The real model repeats a number in tags, as one turn before it does, which half of its answers get right. The template
# opens the reasoning, as those of models that think. Few tokens, since the kernels are interpreted for 30 layers.
THINKS = """<|im_start|>system
Give the number.<|im_end|>
<|im_start|>user
5<|im_end|>
<|im_start|>assistant
<think>5</think><answer>5</answer><|im_end|>
{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>{% endif %}"""
REAL_SETTINGS = changed(
    "model.name=thinker", "model.load_in_4bit=true", "model.dtype=float16", "model.max_seq_length=96",
    "model.gradient_checkpointing=false", "model.lora={rank: 8, alpha: 16}", "optimizer.learning_rate=2e-3",
    "data={benchmark: local, path: numbers, system_prompt: null, max_prompt_tokens: 64}",
    "rewards.format.tags.reasoning=think", "objective.initial_entropy=1",
    "rollout.prompts_per_step=1", "rollout.group_size=4", "rollout.max_completion_tokens=12", "rollout.standby=always",
    "training.max_steps=2", "training.save_every=2", "tracking.log_completions_every=1",
    "evaluation={limit: 2, samples: 4, pass_k: [1], majority_k: [4], max_completion_tokens: 12}",
)  # fmt: skip


def save_thinker(folder: Path) -> None:
    """The real model with a template that opens `<think>`, and its problems."""
    (folder / "thinker").mkdir()
    for file in REAL.iterdir():
        (folder / "thinker" / file.name).symlink_to(file)
    template = folder / "thinker/chat_template.jinja"
    template.unlink()
    template.write_text(THINKS)
    (folder / "numbers").mkdir()
    for split, numbers in (("train", (3, 4, 6, 7)), ("test", (8, 9))):
        rows = [json.dumps({"question": str(number), "answer": str(number)}) for number in numbers]
        (folder / f"numbers/{split}.jsonl").write_text("\n".join(rows))


SMOLLM = {
    "train": ["train", "--recipe", "tiny_arithmetic", *changed("run_name=real")],
    "export": ["export", "runs/real", "--format", "merged"],
    "eval": ["eval", "runs/real", "--base"],
    "eval merged": ["eval", "runs/real/export/merged", "--data-path", "numbers"],
}  # fmt: skip
COMMANDS = {"llama": LLAMA, "qwen": QWEN, "qwen3": QWEN3, "smollm": SMOLLM}
FATES: dict[str, dict[str, Any]] = {
    "terminated": {"terminate_after_step": 1, "run": "cut"},
    "no room": {"no_room": 2},  # of the second generation, also when it is tried once more
}


def families(files: Collection[str]) -> list[str]:
    """Those that tests in these files ask for, and whose data or weights are here."""
    small = ["llama", "qwen", "qwen3"] if DATA.is_dir() and "test_typed.py" in files else []
    return small + (["smollm"] if REAL_IS_HERE and "test_typed_real.py" in files else [])


def typed(family: str, folder: Path, argv: list[str]) -> list[str]:
    """With the settings behind a recipe's name, so that what the command sets itself comes after them."""
    if "--recipe" not in argv:
        return argv
    place = argv.index("--recipe") + 2
    return [*argv[:place], *settings(family, folder), *argv[place:]]


def start(wanted: Sequence[str], new_folder: Callable[[str], Path]) -> Iterator[dict[str, Server]]:
    """At work from now on; `Server.futures` has each command's end."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "rehearse.py")], env=environment() | ENVIRONMENT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    made = {family: Server(new_folder(family), process) for family in wanted}
    for family, server in made.items():
        server.futures = {name: Future() for name in COMMANDS[family]}
        if family in FAMILIES:
            save_family(family, server.folder)
            write_files(server.folder)
        else:
            save_thinker(server.folder)
    threading.Thread(target=_work, args=(made,), daemon=True).start()
    yield made
    os.killpg(process.pid, signal.SIGKILL)  # with the command that it is at
    process.wait()


def _work(servers: dict[str, Server]) -> None:
    try:
        for family, server in servers.items():
            for name, argv in COMMANDS[family].items():
                beside = FATES.get(name, {})
                server.futures[name].set_result(server.run(name, typed(family, server.folder, argv), **beside))
    except Exception as error:  # noqa: BLE001  # the tests that wait raise it
        for future in (future for server in servers.values() for future in server.futures.values()):
            if not future.done():
                future.set_exception(error)
