"""The stages of campaign.py, each a process: python stages.py NAME --work FOLDER [--small ...].

A stage types commands, as a user would, and writes what it finds to FOLDER/results/NAME.json as it goes, so that
nothing is lost where it is ended. What fails is noted there, and the rest of the stage goes on. The model is
SmolLM2-135M-Instruct, the large one has LLaMA-3.1-8B's shape and tokenizer and random weights: both are made in FOLDER
from what the parts hold, unless they are named.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Sizes:
    """How much of each thing; `--small` is for a rehearsal, `--size NAME=VALUE` changes one."""

    tests: str
    plain_tests: str  # of vLLM beside a policy, which came to no end on the first card
    sft: tuple[str, ...]  # changes of its recipe
    steps: int  # of the run that learns
    samples: int  # completions a problem in its evaluations
    problems: int  # in an evaluation
    exported: int  # completions a problem of the export
    probe: int  # prompts of the entropy probe
    generation: int  # steps a generation at full size
    batches: tuple[int, ...]  # of the decode matrix
    tokens: int  # decoded in each of its cells
    turns: tuple[str, ...]  # who trains, in which order
    peers: tuple[str, ...]  # options of grpo_peers.py
    completion: int | None  # tokens at most; None: as the recipe has it


FULL = Sizes(
    tests="tests/gpu", plain_tests="tests/gpu/test_contracts.py::TestPlainVllm", sft=(), steps=60, samples=64,
    problems=120, exported=8, probe=32, generation=8, batches=(8, 64, 256), tokens=64,
    turns=("gtpo", "TRL", "Unsloth", "Unsloth", "TRL", "gtpo"), peers=("--steps", "12"), completion=None,
)  # fmt: skip
SMALL = Sizes(
    tests="tests/gpu/test_contracts.py::TestTransformersPolicy", plain_tests=FULL.plain_tests,
    sft=("training.max_steps=1",), steps=4, samples=2, problems=2, exported=2, probe=2, generation=2, batches=(2, 4),
    tokens=3, turns=("gtpo", "TRL", "Unsloth"),
    peers=("--steps", "1", "--prompts", "1", "--group", "2", "--tokens", "6", "--dtype", "float16"), completion=6,
)  # fmt: skip


class CommandError(Exception):
    """A command ended with another exit code than it should."""


@dataclass
class Campaign:
    """A stage at work."""

    name: str
    work: Path
    sizes: Sizes
    own_model: Path | None
    own_large: Path | None
    settings: list[str]  # K=V, for every recipe
    through: Path | None  # a program that runs the others
    end: float  # when the stage's time is over, by time.monotonic()
    found: dict[str, Any] = field(default_factory=lambda: {"commands": [], "figures": [], "tables": {}, "failed": []})

    # -- what it finds ---------------------------------------------------------------------------------------------

    def figure(self, name: str, value: float, unit: str = "") -> None:
        self.found["figures"].append({"name": name, "value": value, "unit": unit})
        self._write()

    def table(self, name: str, rows: list[dict[str, Any]]) -> None:
        if self.found["tables"].get(name) != rows:
            self.found["tables"][name] = list(rows)
            self._write()

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """What fails in here is noted, and the stage goes on after it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is, the rest is wanted
            traceback.print_exc()
            self.found["failed"].append(f"{what}: {error or type(error).__name__}")
            self._write()

    def _write(self) -> None:
        file = self.work / "results" / f"{self.name}.json"
        aside = file.with_suffix(".tmp")
        aside.write_text(json.dumps(self.found, indent=1))
        aside.replace(file)

    # -- what it runs ----------------------------------------------------------------------------------------------

    def program(self, path: Path, *arguments: str) -> list[str]:
        return [sys.executable, *([] if self.through is None else [str(self.through)]), str(path), *arguments]

    def run(
        self, command: list[str], *, words: str, code: int = 0, watch: Callable[[], bool | None] | None = None
    ) -> str:
        """What a command printed on standard output; the log gets it as it comes. `watch` is called all the while: once
        it is true the command is sent SIGTERM, and should end with `code`."""
        print(f"$ {words}", flush=True)
        started = time.monotonic()
        file = self.work / f"{self.name}.out"  # a file: a command blocks on a pipe that nobody reads
        with file.open("wb") as out, file.open(encoding="utf-8", errors="replace") as shown:
            process = subprocess.Popen(command, cwd=self.work, stdout=out)
            running = True
            while running:
                time.sleep(0.1)
                running = process.poll() is None
                print(shown.read(), end="", flush=True)
                if watch is not None and watch() and running:
                    process.send_signal(signal.SIGTERM)
                    watch = None
        seconds = round(time.monotonic() - started, 1)
        self.found["commands"].append({"command": words, "seconds": seconds, "code": process.returncode})
        self._write()
        if process.returncode != code:
            raise CommandError(f"{words}: ended with {process.returncode}, not {code}")
        return file.read_text(encoding="utf-8", errors="replace")

    def gtpo(self, *words: str, **how: Any) -> str:
        command = (
            [sys.executable, "-m", "gtpo_cli"] if self.through is None else self.program(ROOT / "gtpo_cli/__main__.py")
        )
        return self.run([*command, *words], words=" ".join(["gtpo", *words]), **how)

    def tests(self, *words: str) -> None:
        """pytest, and its last line."""
        pytest = Path(importlib.util.find_spec("pytest").origin).with_name("__main__.py")  # type: ignore[union-attr,arg-type]
        limit = ["--timeout", "240"] if importlib.util.find_spec("pytest_timeout") else []
        command = self.program(pytest, "-rs", "-p", "no:cacheprovider", *limit, *words)
        try:
            self.run(command, words=" ".join(["pytest", *words]).replace(f"{ROOT}/", ""))
        finally:
            lines = (self.work / f"{self.name}.out").read_text(errors="replace").splitlines()
            self.table("tests", [{"summary": line} for line in lines[-1:]])

    def train(self, run: str, recipe: str, *changes: str, start: str | None = None, **how: Any) -> list[dict[str, Any]]:
        """A new run; its metrics."""
        shutil.rmtree(self.work / "runs" / run, ignore_errors=True)
        begin = [] if start is None else ["--from", start]
        settings = _set([*self.settings, *self.limits(recipe), *changes, f"run_name={run}", "tracking.wandb.mode=off"])
        self.gtpo("train", "--quiet", "--recipe", recipe, *begin, *settings, **how)
        return self.metrics(run)

    def limits(self, recipe: str) -> list[str]:
        """In a rehearsal: how long completions may be, where they are sampled."""
        if self.sizes.completion is None or recipe.endswith("_sft"):
            return []
        return [f"{part}.max_completion_tokens={self.sizes.completion}" for part in ("rollout", "evaluation")]

    def lengths(self) -> list[str]:
        """The same for `gtpo eval`."""
        length = self.sizes.completion
        return [] if length is None else ["--set", f"evaluation.max_completion_tokens={length}"]

    def metrics(self, run: str) -> list[dict[str, Any]]:
        file = self.work / "runs" / run / "metrics.jsonl"
        whole = file.read_text().split("\n")[:-1] if file.exists() else []  # the last line may be on its way
        return [json.loads(line) for line in whole]

    # -- what it works with ----------------------------------------------------------------------------------------

    @property
    def model(self) -> Path:
        if self.own_model is not None:
            return self.own_model
        folder = self.work / "smollm2"
        if not (folder / "model.safetensors").is_file():
            sys.path.insert(0, str(ROOT / "scripts/models"))
            import real_model

            real_model.convert(self.work / "model.gguf", folder)
        return folder

    @property
    def large(self) -> Path:
        if self.own_large is not None:
            return self.own_large
        folder = self.work / "llama8b"
        if not (folder / "model.safetensors.index.json").is_file():
            self.run(self.program(HERE / "large_model.py", str(folder), str(self.tokenizer)), words="large_model.py")
        return folder

    @property
    def tokenizer(self) -> Path:
        return self.work / "shared/models/tokenizers/llama-3.1"

    @property
    def gsm8k(self) -> str:
        here = self.work / "shared/data/gsm8k"
        return f"data.path={here if here.is_dir() else ROOT.parent / 'shared/data/gsm8k'}"


def _set(changes: Sequence[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def _steps(campaign: Campaign, name: str, rows: list[dict[str, Any]], *, generation: int = 1) -> None:
    """What a step takes in the mean, and what the run took of the card's memory. The steps of the first generation warm
    up and are not counted; the others are whole generations, of which the first step samples for all."""
    counted = rows[generation:]
    for key in ("time/step", "time/sample", "time/train"):
        campaign.figure(f"{name}: {key}, mean", statistics.fmean(row[key] for row in counted), "s")
    tokens = sum(row["speed/tokens_per_second"] * row["time/step"] for row in counted)
    campaign.figure(f"{name}: tokens a second", tokens / sum(row["time/step"] for row in counted), "tokens/s")
    campaign.figure(f"{name}: sampler/gap_mean", statistics.fmean(row["sampler/gap_mean"] for row in rows), "nats")
    campaign.figure(f"{name}: sampler/gap_max", max(row["sampler/gap_max"] for row in rows), "nats")
    campaign.figure(f"{name}: memory/peak_bytes", rows[-1]["memory/peak_bytes"] / 2**30, "GiB")


def _json(out: str) -> dict[str, Any]:
    """The document of a command with --json; libraries may print after it."""
    start = re.search(r"^{", out, re.MULTILINE)
    if start is None:
        raise CommandError("it printed no JSON")
    found: dict[str, Any] = json.JSONDecoder().raw_decode(out, start.start())[0]
    return found


def _scores(out: str, **names: str) -> list[dict[str, Any]]:
    """What `gtpo eval --json` found; `names` gives checkpoints a name that says more."""
    rows = []
    for evaluation in _json(out)["evaluations"]:
        for score, found in evaluation["scores"].items():
            low, high = found["interval_95"] or (None, None)
            subject = names.get("base" if evaluation["subject"] == "base" else "trained", evaluation["subject"])
            rows.append({"model": subject, "score": score, "estimate": found["estimate"], "from": low, "to": high})
    return rows


# -- the stages --------------------------------------------------------------------------------------------------------


def contracts(campaign: Campaign) -> None:
    with campaign.attempt("doctor"):
        campaign.gtpo("doctor")
    with campaign.attempt("tests"):
        campaign.tests(str(ROOT / campaign.sizes.tests), "-k", "not PlainVllm")  # `others` has those, at its end


def learns(campaign: Campaign) -> None:
    sizes = campaign.sizes
    model = [f"model.name={campaign.model}", "model.load_in_4bit=true", "model.backend=unsloth"]
    engines = [*model, "rollout.engine=vllm", "training.micro_batch_size=auto",
               f"objective.probe.num_prompts={sizes.probe}"]  # fmt: skip
    evaluation = f"evaluation={{limit: {sizes.problems}, samples: 8, pass_k: [1, 8], majority_k: [8]}}"

    def curve() -> list[dict[str, Any]]:
        rows = campaign.metrics("gtpo")
        keys = (
            "step",
            "train/reward_mean",
            "train/accuracy_rate",
            "train/strict_format_rate",
            "entropy/mean",
            "time/step",
        )
        campaign.table("curve", [{key: row[key] for key in keys} for row in rows])
        return rows

    with campaign.attempt("SFT"):
        campaign.train("sft", "smollm135m_words_sft", *model, evaluation, *sizes.sft)
    with campaign.attempt("GTPO, stopped halfway"):
        campaign.train(
            "gtpo", "smollm135m_words", *engines, evaluation, f"training.max_steps={sizes.steps}", start="runs/sft",
            code=143, watch=lambda: len(campaign.metrics("gtpo")) >= sizes.steps // 2,
        )  # fmt: skip
    campaign.figure("stopped after step", len(curve()))
    with campaign.attempt("resume"):
        campaign.gtpo("train", "--quiet", "--resume", "runs/gtpo")
    campaign.figure("steps after the resume", len(curve()))
    with campaign.attempt("seconds a step"):
        _steps(campaign, "SmolLM2, NF4, 64 completions a step", curve())
    scores: list[dict[str, Any]] = []
    for run, base, trained in (("sft", ["--base"], "after SFT"), ("gtpo", [], "after GTPO")):
        with campaign.attempt(f"evaluation {trained}"):
            measure = ["--pass-k", str(sizes.samples), "--maj-k", str(sizes.samples), *campaign.lengths()]
            scores += _scores(campaign.gtpo("eval", f"runs/{run}", *base, *measure, "--json"), trained=trained)
            campaign.table("accuracy", scores)
    with campaign.attempt("export"):
        campaign.gtpo("export", "runs/gtpo", "--format", "merged")
        measure = ["--pass-k", str(sizes.exported), "--limit", str(sizes.problems), *campaign.lengths()]
        found = campaign.gtpo("eval", "runs/gtpo/export/merged", *measure, "--json")
        campaign.table("accuracy", scores + _scores(found, base="exported"))


def decode(campaign: Campaign) -> None:
    """Milliseconds for a token of all sequences, by base weights, batch and adapter."""
    for bits in (4, 16):
        out = campaign.work / f"decode-{bits}.json"
        out.unlink(missing_ok=True)

        def found(out: Path = out, bits: int = bits) -> None:
            for name, rows in json.loads(out.read_text()).items() if out.is_file() else ():
                campaign.table(f"{name}, {bits} bits", rows)

        with campaign.attempt(f"decode, {bits} bits"):
            campaign.run(
                campaign.program(
                    HERE / "decode.py", "--model", str(campaign.large), "--bits", str(bits), "--out", str(out),
                    "--tokens", str(campaign.sizes.tokens), "--batches", *map(str, campaign.sizes.batches),
                    "--set", *campaign.settings,
                ),
                words=f"decode.py --bits {bits}", watch=found,
            )  # fmt: skip


def full(campaign: Campaign) -> None:
    """The paper's recipe at full size, beside the plan. The entropy is probed once; later runs start near it."""
    ahead = campaign.sizes.generation
    runs = {
        "llama8b_gsm8k": ("llama8b_gsm8k", 1, 3, f"objective.probe.num_prompts={campaign.sizes.probe}"),
        f"llama8b_gsm8k, {ahead} steps a generation": (
            "llama8b_gsm8k", ahead, 2 * ahead, "objective.initial_entropy=11",
        ),
        "llama8b_gsm8k_80gb": ("llama8b_gsm8k_80gb", ahead, 2 * ahead, "objective.initial_entropy=11"),
    }  # fmt: skip
    for number, (name, (recipe, generation, steps, entropy)) in enumerate(runs.items()):
        with campaign.attempt(name):
            changes = [
                f"model.name={campaign.large}", campaign.gsm8k, entropy, f"rollout.steps_per_generation={generation}"
            ]  # fmt: skip
            rows = campaign.train(f"full{number}", recipe, *changes, f"training.max_steps={steps}")
            _steps(campaign, name, rows, generation=generation)
            settings = _set([*campaign.settings, *campaign.limits(recipe), *changes])
            plan = _json(campaign.gtpo("plan", "--recipe", recipe, *settings, "--json"))
            campaign.figure(f"{name}: planned memory", plan["memory_bytes"]["training"] / 2**30, "GiB")


def peers(campaign: Campaign) -> None:
    """Whole GRPO steps in turns: each peer once, and again while there is time."""
    rows: list[dict[str, Any]] = []
    longest, once = 0.0, len(set(campaign.sizes.turns))
    for number, name in enumerate(campaign.sizes.turns):
        started = time.monotonic()
        if number >= once and campaign.end - started < 1.2 * longest:
            break
        out = campaign.work / "peer.json"
        out.unlink(missing_ok=True)
        words = ["--model", str(campaign.model), "--out", str(out), *campaign.sizes.peers]
        with campaign.attempt(f"{name}, turn {number + 1}"):
            campaign.run(campaign.program(HERE / "grpo_peers.py", name, *words), words=f"grpo_peers.py {name}")
        rows.append({"peer": name} | (json.loads(out.read_text()) if out.is_file() else {"failed": "see the log"}))
        campaign.table("whole GRPO steps", rows)
        longest = max(longest, time.monotonic() - started)


def others(campaign: Campaign) -> None:
    sizes, model = campaign.sizes, f"model.name={campaign.model}"
    plain = [model, "model.backend=transformers", "objective.initial_entropy=0.5", "training.max_steps=2"]
    with campaign.attempt("probe-entropy"):
        asked = [f"objective.probe.num_prompts={sizes.probe}", *campaign.limits("smollm135m_words")]
        probe = _set([*campaign.settings, model, *asked])
        probed = _json(campaign.gtpo("probe-entropy", "--recipe", "smollm135m_words", *probe, "--json"))
        campaign.figure("initial entropy", probed["initial_entropy"], "nats")
    with campaign.attempt("transformers policy"):
        rows = campaign.train("plain", "smollm135m_words", *plain, "rollout.engine=transformers")
        _steps(campaign, "transformers policy and sampler", rows)
        campaign.gtpo("generate", "runs/plain", "What is 2 + 2?", "--max-tokens", "8")
    with campaign.attempt("vLLM beside a policy"):
        beside = ["rollout.engine=vllm", "rollout.gpu_memory_utilization=0.3", "rollout.vllm={enforce_eager: true}"]
        rows = campaign.train("beside", "smollm135m_words", *plain, "model.dtype=bfloat16", *beside)
        _steps(campaign, "transformers policy, vLLM beside it, no graphs", rows)
    with campaign.attempt("tests of vLLM beside a policy"):
        campaign.tests(str(ROOT / sizes.plain_tests))


STAGES = {stage.__name__: stage for stage in (contracts, learns, decode, full, peers, others)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1e9, help="that the stage has")
    parser.add_argument("--small", action="store_true", help="a rehearsal: a few steps, tokens and problems")
    parser.add_argument(
        "--size", action="append", default=[], metavar="NAME=VALUE", help="such as steps=30, batches=8,64"
    )
    parser.add_argument("--model", type=Path, help="in place of SmolLM2")
    parser.add_argument("--large", type=Path, help="in place of random weights of LLaMA-3.1-8B's shape")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="for every recipe")
    parser.add_argument("--through", type=Path, help="a program that runs the others, given to it by path")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        changed = {name: ast.literal_eval(value) for name, _, value in (size.partition("=") for size in arguments.size)}
        sizes = replace(SMALL if arguments.small else FULL, **changed)
    except (TypeError, ValueError, SyntaxError) as error:
        parser.error(f"--size: {error}")
    campaign = Campaign(
        arguments.stage, arguments.work, sizes, arguments.model, arguments.large, arguments.set, arguments.through,
        time.monotonic() + arguments.seconds,
    )  # fmt: skip
    with campaign.attempt(arguments.stage):
        STAGES[arguments.stage](campaign)
    return 1 if campaign.found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
