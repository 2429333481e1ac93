"""Everything that a GPU is wanted for, in one go: python3 campaign.py --work FOLDER, on the GPU machine.

Joins and installs the parts that lie beside it (pack.py), then runs the stages in order of worth. Each stage is a
process with a time limit of its own and a result of its own (FOLDER/results/NAME.json, and NAME.log); the next one
begins whatever became of it. Started again, it goes on: a stage that ended well is not repeated. Needs Python alone.

    python3 campaign.py --list                               the stages and their minutes
    setsid python3 campaign.py --work /tmp/gpu &             all of them, also after the terminal is gone
    python3 campaign.py --work /tmp/gpu --only decode        one of them
    python3 campaign.py --work /tmp/gpu --watch 560 --out D  wait, write D/results.tar.gz, print the end of the logs
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
PACKAGES = (
    "torch", "triton", "transformers", "peft", "trl", "vllm", "vllm-bnb-plugin", "unsloth", "unsloth-zoo",
    "bitsandbytes", "gguf",
)  # fmt: skip


class Stage(NamedTuple):
    """`minutes`: it is ended after these."""

    name: str
    minutes: float
    what: str


STAGES = (
    Stage("contracts", 5, "gtpo doctor, and tests/gpu/test_contracts.py: samplers and gradients against the CPU's"),
    Stage("learns", 14, "SmolLM2-135M in 4 bits, SFT then GTPO: accuracy before and after; exported, resumed"),
    Stage("decode", 8, "LLaMA-3.1-8B's shape: ms a token by base weights, batch and adapter; sleep; a profile"),
    Stage("full", 13, "llama8b_gsm8k at full size beside the plan; resumed; evaluated"),
    Stage("card24", 7, "the same while another process has all of the card but 24 GiB"),
    Stage("flashinfer", 4, "SmolLM2 with vLLM's FlashInfer sampler on"),
    Stage("head", 6, "SmolLM2 in bfloat16 with vLLM's output layer in bfloat16 and in float32"),
    Stage("peers", 12, "TRL and Unsloth's own GRPO on the same model, prompts and lengths, in turns"),
    Stage("full16", 9, "llama8b_gsm8k_80gb at full size beside the plan: base weights in 16 bits"),
    Stage("others", 9, "the transformers policy, vLLM beside it, generate, tests/gpu/test_full_size.py"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [stage.name for stage in STAGES]
    parser.add_argument("--list", action="store_true", help="print the stages and their minutes")
    parser.add_argument("--work", type=Path, help="folder for everything: 25 GiB free for all stages")
    parser.add_argument("--here", action="store_true", help="no parts: this checkout, and what this Python has")
    parser.add_argument("--only", action="append", choices=names, help="only this stage")
    parser.add_argument(
        "--minutes",
        type=float,
        default=13,
        help="until the end (default: 13): a stage gets what is left, if half of its limit",
    )
    parser.add_argument("--limit", action="append", default=[], metavar="STAGE=MINUTES", help="in place of its own")
    parser.add_argument("--limit-factor", type=float, default=1.0, help="of the stages' time limits")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="only wait for a campaign that runs in --work")
    parser.add_argument("--out", type=Path, help="with --watch: where results.tar.gz is written")
    parser.add_argument("rest", nargs="*", metavar="-- OPTIONS", help="for scripts/gpu/stages.py, as --small")
    arguments = parser.parse_args()
    if arguments.list:
        for stage in STAGES:
            print(f"{stage.name:<10} {stage.minutes:>3.0f} min  {stage.what}")
        return 0
    if arguments.work is None:
        parser.error("--work FOLDER is missing")
    work = arguments.work.resolve()
    (work / "results").mkdir(parents=True, exist_ok=True)
    if arguments.watch is not None:
        return watch(work, arguments.watch, arguments.out)
    if (HERE / "stages.py").is_file() != arguments.here:
        parser.error("on a GPU machine start the campaign.py beside the parts; a checkout's own wants --here")
    limits = {stage.name: stage.minutes for stage in STAGES}
    for name, _, minutes in (limit.partition("=") for limit in arguments.limit):
        if name not in limits:
            parser.error(f"--limit {name}: one of {', '.join(names)}")
        limits[name] = float(minutes)

    lock = (work / "lock").open("w")
    if not _locked(lock):
        sys.exit(f"a campaign runs in {work} already: --watch SECONDS shows it")
    end_what_was_left(work)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the stage is ended with it
    end = time.monotonic() + 60 * arguments.minutes
    checkout, environment = (HERE.parents[1], dict(os.environ)) if arguments.here else unpack(work)
    environment |= {"VLLM_LOGGING_STREAM": "ext://sys.stderr", "PYTHONUNBUFFERED": "1"}
    (work / "results/machine.json").write_text(json.dumps(machine(checkout, environment), indent=1) + "\n")
    failed = []
    for name in arguments.only or names:
        result = work / "results" / f"{name}.json"
        if result.is_file() and json.loads(result.read_text()).get("ended") == "well":
            print(f"{name}: ended well before", flush=True)
            continue
        limit, left = 60 * limits[name] * arguments.limit_factor, end - time.monotonic()
        if left < limit / 2:
            print(f"{name}: no time left", flush=True)
            continue
        print(f"{name}: {min(limit, left) / 60:.1f} minutes at most", flush=True)
        ended = run(name, checkout, work, environment, limit=min(limit, left), options=arguments.rest)
        print(f"{name}: {ended}", flush=True)
        failed += [name] if ended != "well" else []
    return 1 if failed else 0


def _locked(lock: Any) -> bool:
    """Whether this process holds the lock now; it goes with the process."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def end_what_was_left(work: Path) -> None:
    """The stage of a campaign that was killed goes on without it, and holds the card."""
    if (work / "stage.pid").is_file():
        pid = int((work / "stage.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and b"stages.py" in command.read_bytes():  # else another process has its number by now
            os.killpg(pid, signal.SIGKILL)


def unpack(work: Path) -> tuple[Path, dict[str, str]]:
    """The checkout and the environment of the stages."""
    checkout, site = work / "gtpo", work / "site"
    environment = os.environ | {
        "PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CACHE_ROOT": str(work / "cache/vllm"),
    }  # fmt: skip
    if (work / "unpacked").is_file():
        return checkout, environment
    started = time.monotonic()
    lines = (HERE / "SHA256SUMS").read_text().splitlines()
    parts = [HERE / line.split()[1] for line in lines]
    for line, part in zip(lines, parts, strict=True):
        if not part.is_file() or hashlib.sha256(part.read_bytes()).hexdigest() != line.split()[0]:
            sys.exit(f"{part}: is missing or damaged; copy it again")
    joined = work / "parts.tar.xz"
    with joined.open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    with tarfile.open(joined) as tar:
        tar.extractall(work, filter="data")
    joined.unlink()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    install += ["--no-cache-dir", "--upgrade", "--target"]
    # FlashInfer lies apart: only the stage of its name finds it
    for folder, into in (("wheels", site), ("apart", work / "flashinfer")):
        if wheels := sorted(map(str, (work / folder).glob("*.whl"))):
            subprocess.run([*install, str(into), *wheels], check=True)
        shutil.rmtree(work / folder, ignore_errors=True)
    print(f"joined and installed in {time.monotonic() - started:.0f} s", flush=True)
    (work / "unpacked").touch()
    return checkout, environment


def machine(checkout: Path, environment: dict[str, str]) -> dict[str, Any]:
    """The card, its driver, the versions of the libraries, gtpo's commit, the day."""

    def said(*command: str) -> str | None:
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
        except (OSError, subprocess.CalledProcessError):
            return None

    card = said("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    name, memory, driver = card.splitlines()[0].split(", ") if card else (None, None, None)
    path = [*environment.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    found = {name: next(iter(metadata.distributions(name=name, path=path)), None) for name in PACKAGES}
    packed = checkout / "COMMIT"
    commit = packed.read_text().strip() if packed.is_file() else said("git", "-C", str(checkout), "rev-parse", "HEAD")
    versions = {name: each.version if each else None for name, each in found.items()}
    return {
        "card": name, "memory": memory, "driver": driver, "date": time.strftime("%Y-%m-%d"), "commit": commit,
        "versions": {"python": sys.version.split()[0]} | versions,
    }  # fmt: skip


def run(name: str, checkout: Path, work: Path, environment: dict[str, str], *, limit: float, options: list[str]) -> str:
    """Run a stage; how it ended: well, failed or out of time. Its figures so far are in its result in any case."""
    result = work / "results" / f"{name}.json"
    for file in (result, result.with_suffix(".log")):
        if file.is_file():  # from an earlier start
            file.replace(file.with_stem(f"{name}-{file.stat().st_mtime:.0f}"))
    command = [sys.executable, str(checkout / "scripts/gpu/stages.py"), name, "--work", str(work)]
    started, ended = time.monotonic(), "cut off"
    with result.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--seconds", f"{limit:.0f}", *options], cwd=work, env=environment, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        (work / "stage.pid").write_text(str(process.pid))
        try:
            ended = "well" if process.wait(limit) == 0 else "failed"
        except subprocess.TimeoutExpired:
            ended = "out of time"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with what it started
                process.wait()
            found: dict[str, Any] = json.loads(result.read_text()) if result.is_file() else {"figures": []}
            (what,) = (stage.what for stage in STAGES if stage.name == name)
            seconds = round(time.monotonic() - started, 1)
            found |= {"stage": name, "what": what, "ended": ended, "seconds": seconds}
            result.write_text(json.dumps(found, indent=1) + "\n")
    return ended


def watch(work: Path, seconds: float, out: Path | None) -> int:
    """Bring the results along, until the campaign has ended or the seconds are over; then print the end of its logs."""
    started, ended = time.monotonic(), False
    while not ended and time.monotonic() < started + seconds:
        time.sleep(min(5.0, seconds))
        with (work / "lock").open("a") as lock:
            ended = _locked(lock) and time.monotonic() > started + 10  # one that was started just now gets its time
        if out is not None:
            archive(work, out)
    logs = sorted((work / "results").glob("*.log"), key=lambda log: log.stat().st_mtime)
    for log in logs[-2:]:
        print(f"== {log.name}", *log.read_text(errors="replace").splitlines()[-30:], sep="\n")
    print("the campaign has ended" if ended else "the campaign goes on")
    return 0


def archive(work: Path, out: Path) -> None:
    """`out`/results.tar.gz: the results, and the metrics of all runs."""
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out / "results.tmp", "w:gz") as tar:
        for file in (*work.glob("results/*.json"), *work.glob("results/*.log")):
            tar.add(file, f"results/{file.name}")
        for file in work.glob("runs/*/metrics.jsonl"):
            tar.add(file, f"results/{file.parent.name}-metrics.jsonl")
    (out / "results.tmp").replace(out / "results.tar.gz")


if __name__ == "__main__":
    sys.exit(main())
