"""A run folder: the only thing that training, evaluation and reports share.

<output_dir>/<run_name>/
  recipe.yaml        the resolved recipe
  environment.json   versions, machine, model, data
  start/             the weights it started from, if another run's or an adapter's
  initial_entropy.json   <H>_ini and how it was measured
  metrics.jsonl      one JSON object a step
  samples/           completions of some steps, with advantages, masks, lambda
  checkpoints/       step-000500/, ...
  evaluation/        graded completions and scores of gtpo eval
  report/            what gtpo report draws
  export/            what gtpo export writes
  trl/               what TRL resumes from, if it trained the run
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from gtpo_cli.errors import CheckpointError, RecipeError, disk_is_full, ended_with, system_words
from gtpo_cli.recipe import Recipe, dump_recipe, load_recipe
from gtpo_cli.recipe.data import SourceRecipe
from gtpo_cli.recipe.section import code_names
from gtpo_cli.runs.files import locked, making_run, read_json, refuse_links, step_of, write_aside
from gtpo_cli.text import one_line

RUNS = Path("runs")  # default output_dir, where commands look for the latest run
RECIPE_FILE = "recipe.yaml"
_LONGEST_NAME = 57  # characters; 60 with a number
_LONGEST_DATA = 14
# Format suffixes of a model's name, which a run's name drops.
_FORMAT = re.compile(r"[-_](instruct|chat|it|hf|unsloth|bnb|4bit)(?=[-_]|$)")
_PACKAGES = (
    "gtpo_cli", "torch", "triton", "transformers", "peft", "datasets", "bitsandbytes", "math-verify", "unsloth",
    "unsloth_zoo", "vllm", "vllm-bnb-plugin",
)  # fmt: skip


# wandb replaces the first kind and no longer writes to the folders of the second.
_WANDB_LINKS = re.compile(r"wandb/(latest-run|debug[^/]*)|wandb/[^/]*run-[^/]*/logs/debug[^/]*")


class Trust(NamedTuple):
    """The foreign code that a user allows: code that comes with the model, and code in run folders."""

    remote_code: bool = False
    run_code: bool = False


NO_TRUST = Trust()


class RunFolder:
    """The paths of a run and its small files. Constructing it does not touch the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / RECIPE_FILE
        self.environment_file = path / "environment.json"
        self.initial_entropy_file = path / "initial_entropy.json"
        self.problems_file = path / "problems.json"
        self.metrics_file = path / "metrics.jsonl"
        self.lock_file = path / ".lock"
        self.start = path / "start"
        self.samples = path / "samples"
        self.checkpoints = path / "checkpoints"
        self.evaluation = path / "evaluation"
        self.report = path / "report"
        self.export = path / "export"
        self.trl = path / "trl"

    @property
    def name(self) -> str:
        return self.path.name or self.path.resolve().name  # "." has none

    @contextlib.contextmanager
    def held(self, recipe: Recipe | None) -> Iterator[None]:
        """Hold the folder during training, so that no other process trains in it.

        With a `recipe` (None: resume) it creates the run, and removes it again if it fails before its first step.

        Raises CheckpointError if another process holds the folder or it cannot be written, RecipeError if it has a run
        already, and Terminated, with what is lost, for a signal that ends the run at once.
        """
        held = CheckpointError(
            f"{self.path}: another process is training this run; wait for it, stop it, or choose another --name"
        )
        self.check_links()
        with locked(self.lock_file, held=held):
            if recipe is not None:
                self.create(recipe)
            with ended_with(self._lost):
                try:
                    yield
                except BaseException as error:
                    lost = self._lost() if disk_is_full(error) and isinstance(error, OSError) else None
                    if recipe is not None:
                        self.discard_if_not_begun()
                    if lost is None:
                        raise
                    where = one_line(str(getattr(error, "filename", None) or self.path))
                    raise CheckpointError(
                        f"{where}: {system_words(error)}; free some space. The run ended{lost}"
                    ) from error

    def _lost(self) -> str:
        """Describe the work that a run loses if it is ended at once."""
        if not self.metrics_file.is_file():
            return " before the first step: nothing was trained, and the same command starts again"
        reached = self.metrics_file.read_bytes().count(b"\n")
        saved = max((step_of(path.name) or 0 for path in self.checkpoints.glob("step-*")), default=0)
        steps = f"step {reached}" if reached == saved + 1 else f"steps {saved + 1} to {reached}"
        lost = f"{steps} and the current step are lost" if reached > saved else "only the current step is lost"
        return f": {lost}; gtpo train --resume {self.path} continues from step {saved}"

    def create(self, recipe: Recipe) -> None:
        """Create the folder and write the recipe. Raises RecipeError if it has a run already.

        Call it under `held`, so that only one of two processes succeeds.
        """
        if self.recipe_file.exists():
            raise RecipeError(
                f"{self.path}: there is a run here already; continue it with gtpo train --resume {self.path}, "
                "or choose another --name"
            )
        with making_run(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._write(self.recipe_file, dump_recipe(recipe))

    def discard_if_not_begun(self) -> None:
        """Remove the files of a run that failed before its first step, so that a corrected recipe can reuse its name.

        It removes only the run's own small files, and the folder if that leaves it empty.
        """
        if self.checkpoints.exists() or (self.metrics_file.exists() and self.metrics_file.stat().st_size):
            return
        small = (self.recipe_file, self.environment_file, self.initial_entropy_file, self.problems_file)
        for file in (*small, self.metrics_file, self.lock_file):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.start, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty
            self.path.rmdir()

    def check_links(self) -> None:
        """Raise CheckpointError if anything in the folder is a link, which would lead writes elsewhere."""
        try:
            refuse_links(self.path, but=_WANDB_LINKS)
        except (FileNotFoundError, NotADirectoryError):  # there is no run yet
            return
        except OSError as error:
            raise CheckpointError(
                f"{one_line(str(error.filename))}: {error.strerror}, which a run folder must not contain; copy the "
                "files themselves there (cp -rL); to use another disk, move the whole run or set output_dir"
                if error.errno == errno.ELOOP
                else f"{self.path}: cannot be searched for links ({error.strerror})"
            ) from error

    def recipe(self) -> Recipe:
        """Load the run's recipe for showing and comparing.

        Every command that loads a run or writes to it begins here, so this also refuses links.

        Raises RecipeError, CheckpointError for a link.
        """
        self.check_links()
        return load_recipe(self.recipe_file)

    def change(self, recipe: Recipe, *, made: int, total: int) -> None:
        """Write the recipe that a run continues with. Raises RecipeError if the run is already past its end."""
        if total < made:
            raise RecipeError(f"{self.path}: has made {made} steps, so it cannot end at step {total}; set a later end")
        self._write(self.recipe_file, dump_recipe(recipe))

    def recipe_to_run(self, overrides: Sequence[str] = (), *, trust: Trust = NO_TRUST) -> Recipe:
        """Load the run's recipe with overrides, for loading its model.

        Raises RecipeError, also if the folder, which may be a stranger's, would run code that the user has not allowed.
        """
        own = self.recipe()
        recipe = load_recipe(self.recipe_file, overrides) if overrides else own
        problems = []
        if own.model.trust_remote_code and recipe.model.trust_remote_code and not trust.remote_code:
            problems.append(
                f"{self.recipe_file}: model.trust_remote_code is on in this run's recipe, so code that comes with "
                f"{one_line(own.model.name)} would run; read that code, and if you trust it, add --trust-remote-code"
            )
        used = {name for _, name in code_names(recipe)}  # code that an override names is the user's choice
        for key, name in () if trust.run_code else code_names(own):
            from gtpo_cli.runs.user_code import why_not

            if name in used and (why := why_not(name, self.path)) is not None:
                problems.append(
                    f"{self.recipe_file}: {key}: the code {one_line(name)} {why}; read it, and if you trust it, add "
                    "--trust-run-code"
                )
        if problems:
            raise RecipeError(problems)
        return recipe

    def write_environment(self, facts: dict[str, Any]) -> None:
        """Record versions and machine, and `facts` about model and data. Never environment variables or keys."""
        document = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "processors": os.cpu_count(),
            "packages": package_versions(),
            **facts,
        }
        self._write(self.environment_file, json.dumps(document, indent=2) + "\n")

    def environment(self) -> Environment:
        """Read what the last start recorded. This is informative, so what is missing or damaged is None."""
        with contextlib.suppress(CheckpointError):
            return read_json(self.environment_file, Environment, CheckpointError)
        return Environment()

    def write_initial_entropy(self, document: dict[str, Any]) -> None:
        self._write(self.initial_entropy_file, json.dumps(document, indent=2) + "\n")

    def keep_beginning(self, digests: Sequence[str], code: Mapping[str, str]) -> None:
        """Record what the run trains on: a digest of each problem's question and gold answer, and of the user's own
        code by its name in the recipe."""
        self._write(self.problems_file, json.dumps({"digests": list(digests), "code": dict(code)}) + "\n")

    def beginning(self) -> Beginning | None:
        """Read what the run trains on; None if nothing was recorded yet. Raises CheckpointError."""
        file = self.problems_file
        if not os.path.lexists(file):
            return None
        return read_json(
            file, Beginning, lambda why: CheckpointError(f"{file}: cannot be read ({why}); put it back as it was")
        )

    def _write(self, file: Path, text: str) -> None:
        with making_run(self.path):
            write_aside(file, text)

    def initial_entropy(self) -> float | None:
        """Read the recorded <H>_ini, nats; None if it has not been measured yet. Raises CheckpointError."""
        file = self.initial_entropy_file
        remedy = "put the file back as it was: a trained policy cannot be measured again"
        if not os.path.lexists(file):
            return None
        stored = read_json(
            file, _InitialEntropy, lambda why: CheckpointError(f"{file}: cannot be read ({why}); {remedy}")
        )
        return stored.initial_entropy


@dataclass(frozen=True, slots=True)
class _InitialEntropy:
    initial_entropy: Annotated[float, Field(ge=0.0, le=1e3)]  # nats; the logarithm of any vocabulary size is far below


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run began with: `digests` of its problems, and of the user's own `code` by its name in the recipe."""

    digests: tuple[str, ...]
    code: dict[str, str]


@dataclass(frozen=True, slots=True)
class Environment:
    """`total_steps`: the planned last step. `products`: the type of the output layer's products on that machine.
    `model_commit`: of the base on the hub, at the first start."""

    total_steps: Annotated[int, Field(ge=1)] | None = None
    products: str | None = None
    model_commit: str | None = None


def new_run(recipe: Recipe) -> tuple[Recipe, RunFolder]:
    """Return the recipe with its run's name, and the folder.

    A recipe without a name gets the first free one of `default_names`. Its folder is created at once, so that no other
    start takes the same name. Raises CheckpointError.
    """
    if recipe.run_name is not None:
        return recipe, RunFolder(Path(recipe.output_dir) / recipe.run_name)
    for name in default_names(recipe):
        folder = RunFolder(Path(recipe.output_dir) / name)
        with making_run(folder.path):
            try:
                folder.path.mkdir(parents=True)
            except FileExistsError:
                continue
        return recipe.model_copy(update={"run_name": name}), folder
    raise AssertionError("default_names never ends")


def default_names(recipe: Recipe) -> Iterator[str]:
    """Yield `smollm2-135m-gsm8k-gtpo-20261123-1832`, then the same with -2, -3, ... for starts in the same minute.

    Names of one recipe sort by time. They have at most 60 characters of a-z, 0-9, `.`, `_` and `-`.
    """
    model = Path(recipe.model.name.removeprefix("builtin:")).absolute()
    data = _plain("-".join(map(_of_data, recipe.data.sources)))[:_LONGEST_DATA].strip("-._")
    rest = f"-{data or recipe.data.benchmark}-{recipe.objective.name}-{time.strftime('%Y%m%d-%H%M')}"
    name = _FORMAT.sub("", _plain(model.name))[: _LONGEST_NAME - len(rest)].strip("-._") or "model"
    yield name + rest
    for number in count(2):
        yield f"{name}{rest}-{number}"


def _of_data(source: SourceRecipe) -> str:
    return Path(source.path).stem if source.path else source.name.rpartition("/")[2]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._")


def last_touched(run: RunFolder) -> float:
    """Return when the run was started or continued last, in seconds since 1970."""
    return (run.metrics_file if run.metrics_file.exists() else run.recipe_file).stat().st_mtime


def latest_run(output_dir: Path) -> RunFolder | None:
    """Return the run that was started or continued last, by the time of its metrics; None without runs."""

    runs = [RunFolder(path.parent) for path in output_dir.glob(f"*/{RECIPE_FILE}")]
    return max(runs, key=last_touched, default=None)


def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect a run's result."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
