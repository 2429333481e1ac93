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
    later_tests: tuple[str, ...]  # in the stage `others`
    sft: tuple[str, ...]  # changes of its recipe
    steps: int  # of the run that learns
    further: int  # steps after its resume
    samples: int  # completions a problem in its evaluations
    problems: int  # in an evaluation
    exported: int  # completions a problem of the export
    probe: int  # prompts of the entropy probe
    evaluated: int  # completions a problem in the evaluation of the 8B model
    generation: int  # steps a generation of llama8b_gsm8k_80gb
    batches: tuple[int, ...]  # of the decode matrix
    tokens: int  # decoded in each of its cells
    turns: tuple[str, ...]  # who trains, in which order
    peers: tuple[str, ...]  # options of grpo_peers.py
    completion: int | None  # tokens at most; None: as the recipe has it


# Last the tests of vLLM beside a policy, which came to no end on the first card.
FULL = Sizes(
    tests="tests/gpu/test_contracts.py",
    later_tests=("tests/gpu/test_full_size.py", "tests/gpu/test_contracts.py::TestPlainVllm"), sft=(),
    steps=40, further=20, samples=16, problems=60, exported=8, probe=32, evaluated=64, generation=8,
    batches=(8, 64, 256), tokens=64,
    turns=("gtpo", "TRL", "Unsloth", "Unsloth-unfolded", "Unsloth-unfolded", "Unsloth", "TRL", "gtpo"),
    peers=("--steps", "12"), completion=None,
)  # fmt: skip
SMALL = Sizes(
    tests="tests/gpu/test_contracts.py::TestTransformersPolicy", later_tests=FULL.later_tests[1:],
    sft=("training.max_steps=1",), steps=2, further=1, samples=2, problems=2, exported=2, probe=2, evaluated=2,
    generation=1, batches=(2,), tokens=3, turns=("gtpo", "TRL", "Unsloth", "Unsloth-unfolded"),
    peers=("--steps", "1", "--prompts", "1", "--group", "2", "--tokens", "6", "--dtype", "float16"), completion=6,
)  # fmt: skip
LEFT = 24  # GiB that the stage `card24` leaves of the card


class CommandError(Exception):
    """A command failed."""


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
    found: dict[str, Any] = field(
        default_factory=lambda: {"notes": [], "commands": [], "figures": [], "tables": {}, "failed": []}
    )

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

    def note(self, text: str) -> None:
        self.found["notes"].append(text)
        self._write()

    def _write(self) -> None:
        file = self.work / "results" / f"{self.name}.json"
        aside = file.with_suffix(".tmp")
        aside.write_text(json.dumps(self.found, indent=1))
        aside.replace(file)

    # -- what it runs ----------------------------------------------------------------------------------------------

    def program(self, path: Path, *arguments: str) -> list[str]:
        return [sys.executable, *([] if self.through is None else [str(self.through)]), str(path), *arguments]

    def run(self, command: list[str], *, words: str, watch: Callable[[], None] = lambda: None) -> str:
        """What a command printed on standard output; the log gets it as it comes. `watch` is called all the while."""
        print(f"$ {words}", flush=True)
        started = time.monotonic()
        noted: dict[str, Any] = {"command": words}  # it stays so where the stage is cut off
        self.found["commands"].append(noted)
        self._write()
        file = self.work / f"{self.name}.out"  # a file: a command blocks on a pipe that nobody reads
        with file.open("wb") as out, file.open(encoding="utf-8", errors="replace") as shown:
            process = subprocess.Popen(command, cwd=self.work, stdout=out)
            running = True
            while running:
                time.sleep(0.1)
                running = process.poll() is None
                print(shown.read(), end="", flush=True)
                watch()
        noted |= {"seconds": round(time.monotonic() - started, 1), "code": process.returncode}
        self._write()
        if process.returncode:
            raise CommandError(f"{words}: ended with {process.returncode}")
        return file.read_text(encoding="utf-8", errors="replace")

    def gtpo(self, *words: str, **how: Any) -> str:
        command = (
            [sys.executable, "-m", "gtpo_cli"] if self.through is None else self.program(ROOT / "gtpo_cli/__main__.py")
        )
        return self.run([*command, *words], words=" ".join(["gtpo", *words]), **how)

    def tests(self, *words: str) -> None:
        """pytest, and its last line in the table of tests."""
        pytest = Path(importlib.util.find_spec("pytest").origin).with_name("__main__.py")  # type: ignore[union-attr,arg-type]
        limit = ["--timeout", "240"] if importlib.util.find_spec("pytest_timeout") else []
        command = self.program(pytest, "-rs", "-p", "no:cacheprovider", *limit, str(ROOT / words[0]), *words[1:])
        try:
            self.run(command, words=" ".join(["pytest", *words]))
        finally:
            lines = (self.work / f"{self.name}.out").read_text(errors="replace").splitlines()
            done = self.found["tables"].get("tests", [])
            self.table("tests", [*done, *({"tests": words[0], "summary": line} for line in lines[-1:])])

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

    def of_8b(self) -> list[str]:
        """The 8B model and its data. The entropy of random weights is near 11: it need not be probed."""
        return [f"model.name={self.large}", self.gsm8k, "objective.initial_entropy=11"]

    @contextmanager
    def taken(self, left: float) -> Iterator[float]:
        """Another process has the card's memory but for `left` GiB; how many GiB it took."""
        command = [sys.executable, str(HERE / "taken.py"), str(left)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield float(process.stdout.readline())
            # here its standard input is closed, and it ends


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
        campaign.tests(campaign.sizes.tests, "-k", "not PlainVllm")  # `others` has those, at its end


def learns(campaign: Campaign) -> None:
    """The resume comes last: it starts an engine once more, and is left out where there is no time for that."""
    sizes = campaign.sizes
    model = [f"model.name={campaign.model}", "model.load_in_4bit=true", "model.backend=unsloth"]
    engines = [*model, "rollout.engine=vllm", "training.micro_batch_size=auto",
               f"objective.probe.num_prompts={sizes.probe}"]  # fmt: skip
    evaluation = f"evaluation={{limit: {sizes.problems}, samples: 8, pass_k: [1, 8], majority_k: [8]}}"

    def curve() -> None:
        keys = (
            "step",
            "train/reward_mean",
            "train/accuracy_rate",
            "train/strict_format_rate",
            "entropy/mean",
            "time/step",
        )
        campaign.table("curve", [{key: row.get(key) for key in keys} for row in campaign.metrics("gtpo")])

    with campaign.attempt("SFT"):
        campaign.train("sft", "smollm135m_words_sft", *model, evaluation, *sizes.sft)
    started = time.monotonic()
    with campaign.attempt("GTPO"):
        last = f"training.max_steps={sizes.steps}"
        rows = campaign.train("gtpo", "smollm135m_words", *engines, evaluation, last, start="runs/sft", watch=curve)
        _steps(campaign, "SmolLM2, NF4, 64 completions a step", rows)
    trained_in = time.monotonic() - started
    scores: list[dict[str, Any]] = []
    for run, base, trained in (("gtpo", [], "after GTPO"), ("sft", ["--base"], "after SFT")):
        with campaign.attempt(f"evaluation {trained}"):
            measure = ["--pass-k", str(sizes.samples), "--maj-k", str(sizes.samples), *campaign.lengths()]
            scores += _scores(campaign.gtpo("eval", f"runs/{run}", *base, *measure, "--json"), trained=trained)
            campaign.table("accuracy", scores)
    with campaign.attempt("export"):
        campaign.gtpo("export", "runs/gtpo", "--format", "merged")
        measure = ["--pass-k", str(sizes.exported), "--limit", str(sizes.problems), *campaign.lengths()]
        found = campaign.gtpo("eval", "runs/gtpo/export/merged", *measure, "--json")  # without an adapter: transformers
        campaign.table("accuracy", scores + _scores(found, base="exported"))
    if campaign.end - time.monotonic() < trained_in:
        campaign.note("There was no time for the resume.")
        return
    with campaign.attempt("resume"):
        more = _set([f"training.max_steps={sizes.steps + sizes.further}"])
        campaign.gtpo("train", "--quiet", "--resume", "runs/gtpo", *more, watch=curve)
        campaign.figure("steps after the resume", len(campaign.metrics("gtpo")))


def decode(campaign: Campaign) -> None:
    """Milliseconds for a token of all sequences, by base weights, batch and adapter."""
    for bits in (16, 4):
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
    """The paper's recipe as `auto` has it: two steps, one more after a resume, and an evaluation."""
    with campaign.attempt("llama8b_gsm8k"):
        large_run(campaign, "full", "llama8b_gsm8k", "training.max_steps=2")
    with campaign.attempt("resume"):
        campaign.gtpo("train", "--quiet", "--resume", "runs/full", *_set(["training.max_steps=3"]))
        campaign.figure("steps after the resume", len(campaign.metrics("full")))
    with campaign.attempt("evaluation"):
        measure = ["--limit", "8", "--pass-k", str(campaign.sizes.evaluated), *campaign.lengths()]
        found = campaign.gtpo("eval", "runs/full", *measure, "--json")
        campaign.table("accuracy of random weights", _scores(found, trained="after three steps"))


def card24(campaign: Campaign) -> None:
    """The paper's recipe on what is left of the card when another process has the rest, with the keys that `auto` has
    on a card of that size. gtpo goes by the size of the whole card, so they are named here."""
    recipe = "llama8b_gsm8k"
    with campaign.attempt(f"{recipe}, {LEFT} GiB"):
        settings = [*campaign.settings, *campaign.limits(recipe), *campaign.of_8b()]
        plan = ["plan", "--recipe", recipe, "--gpu", f"{LEFT}GiB", *_set(settings), "--json"]
        keys = _json(campaign.gtpo(*plan))["decided"]
        with campaign.taken(LEFT) as gib:
            campaign.figure("taken by another process", gib, "GiB")
            campaign.table(f"what auto is on {LEFT} GiB", [{"key": key, "value": str(keys[key])} for key in keys])
            changes = [f"{key}={str(value).lower()}" for key, value in keys.items()]
            large_run(campaign, "card24", recipe, "training.max_steps=2", *changes, gpu=f"{LEFT}GiB")


def full16(campaign: Campaign) -> None:
    ahead = campaign.sizes.generation
    with campaign.attempt("llama8b_gsm8k_80gb"):
        changes = [f"rollout.steps_per_generation={ahead}", f"training.max_steps={2 * ahead}"]
        large_run(campaign, "full16", "llama8b_gsm8k_80gb", *changes, generation=ahead)


def large_run(
    campaign: Campaign, run: str, recipe: str, *changes: str, generation: int = 1, gpu: str | None = None
) -> None:
    """Train the 8B model by a recipe of the paper, and put what it took beside the plan."""
    changes = (*campaign.of_8b(), *changes)
    rows = campaign.train(run, recipe, *changes)
    _steps(campaign, recipe, rows, generation=generation)
    decided = json.loads((campaign.work / "runs" / run / "environment.json").read_text())["decided"]
    campaign.table("what auto was", [{"key": key, "value": str(decided[key])} for key in decided])
    settings = _set([*campaign.settings, *campaign.limits(recipe), *changes])
    card = [] if gpu is None else ["--gpu", gpu]
    plan = _json(campaign.gtpo("plan", "--recipe", recipe, *card, *settings, "--json"))
    campaign.figure(f"{recipe}: planned memory", _peak(plan["memory"]["training"]) / 2**30, "GiB")
    campaign.figure(f"{recipe}: planned memory of an evaluation", _peak(plan["memory"]["eval"]) / 2**30, "GiB")


def _peak(memory: dict[str, float]) -> float:
    return max(memory["sampling"], memory["forward"])


def head(campaign: Campaign) -> None:
    """SmolLM2 in bfloat16: does vLLM's output layer in float32 bring the sampler closer to the policy, and what does it
    cost?"""
    changes = [f"model.name={campaign.model}", "model.backend=unsloth", "rollout.engine=vllm",
               "model.load_in_4bit=false", "objective.initial_entropy=0.5", "training.max_steps=3"]  # fmt: skip
    for wanted, words in (("0", "bfloat16"), ("1", "float32")):
        os.environ["UNSLOTH_VLLM_FP32_LM_HEAD"] = wanted
        with campaign.attempt(f"the engine's output layer in {words}"):
            rows = campaign.train(f"head{wanted}", "smollm135m_words", *changes)
            _steps(campaign, f"SmolLM2, output layer in {words}", rows)


def flashinfer(campaign: Campaign) -> None:
    """One start with FlashInfer on, as vLLM has it where FlashInfer is installed. vLLM draws by it only for top-k and
    top-p, and never for a completion with a seed of its own, which gtpo gives to each."""
    apart = campaign.work / "flashinfer"  # where campaign.py installs it, so that the other stages do without
    sys.path.insert(0, str(apart))
    if importlib.util.find_spec("flashinfer") is None:
        campaign.note("FlashInfer is not installed here, so nothing was started.")
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([str(apart), os.environ.get("PYTHONPATH", "")])
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "1"
    with campaign.attempt("a start with FlashInfer"):
        model = [f"model.name={campaign.model}", "model.backend=unsloth", "rollout.engine=vllm"]
        changes = [*model, "objective.initial_entropy=0.5", "training.max_steps=2"]
        _steps(campaign, "SmolLM2 with FlashInfer", campaign.train("flashinfer", "smollm135m_words", *changes))


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
    plain = [f"model.name={campaign.model}", "model.backend=transformers", "objective.initial_entropy=0.5",
             "training.max_steps=2"]  # fmt: skip
    with campaign.attempt("transformers policy"):
        rows = campaign.train("plain", "smollm135m_words", *plain, "rollout.engine=transformers")
        _steps(campaign, "transformers policy and sampler", rows)
        campaign.gtpo("generate", "runs/plain", "What is 2 + 2?", "--max-tokens", "8")
    with campaign.attempt("vLLM beside a policy"):
        beside = ["rollout.engine=vllm", "rollout.gpu_memory_utilization=0.3", "rollout.vllm={enforce_eager: true}"]
        rows = campaign.train("beside", "smollm135m_words", *plain, "model.dtype=bfloat16", *beside)
        _steps(campaign, "transformers policy, vLLM beside it, no graphs", rows)
    for tests in campaign.sizes.later_tests:
        with campaign.attempt(tests):
            campaign.tests(tests)


STAGES = {
    stage.__name__: stage
    for stage in (contracts, learns, decode, full, card24, flashinfer, head, peers, full16, others)
}


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
