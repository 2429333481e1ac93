"""Is what `python -m build` made what a user should get? `make dist` runs both:

    check_dist.py contents FOLDER        its wheel and sdist hold the tracked files that they should, byte for byte
    check_dist.py demo ENVIRONMENT       the gtpo installed there, in an empty folder, on five steps

The wheel is made of the unpacked sdist, as `python -m build` does it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = {"gtpo_cli": "gtpo_cli", "recipes": "gtpo_cli/_recipes"}  # folder in the checkout -> in the wheel
BESIDE = ("LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "constraints.txt", "constraints-cuda.txt")
BUILD = ("pyproject.toml", ".gitignore")
Files = dict[str, bytes]


def check_contents(folder: Path) -> list[str]:
    """What is wrong, a line each."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    tracked = {name: (ROOT / name).read_bytes() for name in _tracked(*PACKAGE)}
    there, metadata = _of_wheel(wheel)
    wrong = _differences(wheel.name, there, {_in_wheel(name): data for name, data in tracked.items()})
    if metadata.get("licenses/LICENSE") != (ROOT / "LICENSE").read_bytes():
        wrong.append(f"{wheel.name}: no LICENSE")
    unpacked = _of_sdist(sdist)
    about = unpacked.pop("PKG-INFO", b"")
    beside = {name: (ROOT / name).read_bytes() for name in BESIDE + BUILD}
    wrong += _differences(sdist.name, unpacked, tracked | beside)
    if about != metadata.get("METADATA"):
        wrong.append(f"{sdist.name}: PKG-INFO is not the wheel's METADATA")
    everything = there | metadata | unpacked
    return wrong + [f"{name}: holds the path {ROOT}" for name, data in everything.items() if bytes(ROOT) in data]


def _tracked(*folders: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.rstrip("\0").split("\0")


def _in_wheel(name: str) -> str:
    folder, _, rest = name.partition("/")
    return f"{PACKAGE[folder]}/{rest}"


def _of_wheel(path: Path) -> tuple[Files, Files]:
    """The package's files, and those of its .dist-info."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    about = "-".join(path.name.split("-")[:2]) + ".dist-info/"
    metadata = {name.removeprefix(about): files.pop(name) for name in list(files) if name.startswith(about)}
    return files, metadata


def _of_sdist(path: Path) -> Files:
    top = path.name.removesuffix(".tar.gz") + "/"
    with tarfile.open(path) as archive:
        members = [(member.name.removeprefix(top), archive.extractfile(member)) for member in archive]
        return {name: file.read() for name, file in members if file is not None}


def _differences(archive: str, there: Files, wanted: Files) -> list[str]:
    lines = [f"{archive}: {name} is not in it" for name in wanted.keys() - there.keys()]
    lines += [f"{archive}: {name} does not belong in it" for name in there.keys() - wanted.keys()]
    both = there.keys() & wanted.keys()
    return sorted(lines + [f"{archive}: {name} is changed" for name in both if there[name] != wanted[name]])


def try_demo(environment: Path) -> None:
    """The recipes, the model's weights and every template come from the installed package, or a command fails; what is
    not installed, TRL, is asked for."""
    bin_folder = environment.absolute() / "bin"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    kept |= {"PATH": os.pathsep.join([str(bin_folder), os.environ["PATH"]]), "HF_HUB_OFFLINE": "1"}
    short = ["training.max_steps=5", "objective.probe.num_prompts=8", "evaluation.limit=8", "run_name=demo"]
    settings = [word for change in short for word in ("--set", change)]
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: str) -> str:
            print("$", *command, flush=True)
            done = subprocess.run(command, cwd=folder, env=kept, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit(f"{done.stdout}\nexit code {done.returncode}: {' '.join(command)}")
            return done.stdout

        home = Path(run("python", "-c", "import gtpo_cli; print(gtpo_cli.__file__)").strip())
        if environment.absolute() not in home.parents:
            sys.exit(f"gtpo_cli is imported from {home}, not from {environment}")
        print(run("gtpo", "--version"), run("gtpo", "recipes", "list"))
        print(run("gtpo", "train", "--recipe", "tiny_arithmetic", *settings))
        run("gtpo", "eval", "runs/demo", "--limit", "8")
        run("gtpo", "report", "runs/demo")
        run("gtpo", "inspect", "runs/demo")
        run("gtpo", "export", "runs/demo")
        without_trl = ["gtpo", "train", "--recipe", "tiny_arithmetic", "--engine", "trl"]
        refused = subprocess.run(without_trl, cwd=folder, env=kept, capture_output=True, text=True)
        if refused.returncode != 2 or "pip install '.[trl]' in gtpo's checkout" not in refused.stderr:
            sys.exit(f"without TRL: exit code {refused.returncode}, {refused.stderr}")


def main(job: str, folder: str) -> None:
    if job == "demo":
        try_demo(Path(folder))
    elif wrong := check_contents(Path(folder)):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
