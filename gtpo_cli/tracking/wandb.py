"""Weights & Biases: online with a key, offline without one, never a prompt, never the end of a run.

All files stay in the run folder (`<run>/wandb`). An offline run is uploaded later with `wandb sync`. Only the recipe,
the metrics, tables of sample completions and evaluations, and how busy the machine is (GPU, CPU, memory, disk, network:
numbers) are handed over: no code, no git state, no console output, neither the machine's name nor what it is.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gtpo_cli.errors import GtpoError, program
from gtpo_cli.files import own_folder, read_bytes, write_aside
from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.text import one_line
from gtpo_cli.tracking.tracker import TableRow, TableTracker, Tracker
from gtpo_cli.user_code import stands_in_a_run

# Seconds. A network that is away must not hold up training for long, at the start or at the end.
INIT_TIMEOUT = 30.0
FINISH_TIMEOUT = 60.0
_BEHIND = 1000  # steps that may wait; a tracker that is further behind is stuck


class WandbTracker:
    """Logs each step to wandb, under the declared names, with `step` as wandb's step too; tables as wandb's own, with
    `step` as their first column, so that those of many steps can be put together.

    Mode "auto" is online when wandb finds a key (WANDB_API_KEY, netrc, `wandb login`) and WANDB_MODE does not say
    otherwise, else offline. When going online fails (no key in mode "online", no network, a refused key),
    `warn` is told and the run is recorded offline. `resumed`: go on under the id that the run's first part left in its
    folder. Raises whatever wandb raises when it cannot even record offline; the caller decides what that is worth.
    """

    def __init__(
        self,
        recipe: Recipe,
        run_dir: Path,
        *,
        resumed: bool = False,
        warn: Callable[[str], None],
    ) -> None:
        # wandb sends usage statistics even for offline runs, unless this variable, which has no setting, says no.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # the library: absolute imports do not see this module under that name

        for name in ("wandb/settings", ".wandb/settings"):
            if stands_in_a_run() and os.path.lexists(name):
                raise GtpoError(
                    f"{name} in the working folder would tell wandb where to send your key, and that folder is a run, "
                    "which may be anybody's: call gtpo from another folder"
                )
        settings = recipe.tracking.wandb
        folder = run_dir / "wandb"
        own_folder(folder)  # else wandb would go to a temporary folder
        # Where tables wait for their upload, which only this variable says; else in the user's home.
        os.environ["WANDB_DATA_DIR"] = str(folder.absolute())
        id_file = folder / "run_id"
        resume_id = read_bytes(id_file).decode().strip() if resumed and id_file.is_file() else None

        def start(mode: Any) -> Any:
            return wandb.init(
                mode=mode, project=settings.project, entity=settings.entity, name=run_dir.absolute().name,
                tags=list(settings.tags), config=recipe.model_dump(mode="json"), dir=run_dir, id=resume_id,
                resume="allow" if resume_id else None, settings=_settings(),
            )  # fmt: skip

        wandb.setup(settings=_settings())
        try:
            self._run = start(_resolve(settings.mode))
        except wandb.Error as error:
            if settings.mode == "offline":
                raise
            reason = one_line(str(error))
            warn(f"wandb: not online ({reason}); recording offline")
            self._run = start("offline")
        write_aside(id_file, f"{self._run.id}\n".encode())

    @property
    def is_offline(self) -> bool:
        """Whether all of it stays here; false also where wandb is disabled by its own switch."""
        return bool(self._run.offline)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics}, step=step)

    def log_table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        import wandb

        # wandb takes no names of a type of ours, such as a reward's, CodeName
        table = wandb.Table(columns=["step", *map(str, rows[0])], data=[[step, *row.values()] for row in rows])
        self._run.log({name: table}, step=step)

    def close(self) -> None:
        """Upload what is left, for a minute at most; the files stay in the run folder in any case."""
        self._run.finish()


class BackgroundTracker:
    """A tracker that may block (a network, another process) behind a thread, so that training never waits for it.

    Errors of the tracker behind it are raised by the next call.

    `log` returns at once; it raises TimeoutError when the tracker is a thousand steps behind. `close` waits
    `close_seconds` at most for what is left, and raises TimeoutError when that is not enough.
    """

    def __init__(self, tracker: Tracker, *, close_seconds: float) -> None:
        self.tracker = tracker
        self._close_seconds = close_seconds
        self._steps: queue.Queue[Callable[[], None] | None] = queue.Queue(_BEHIND)
        self._failure: Exception | None = None
        self._stuck = False
        # A daemon: where the tracker hangs for ever, the process can still end.
        self._thread = threading.Thread(target=self._work, name=f"gtpo-{type(tracker).__name__}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._put(partial(self.tracker.log, step, dict(metrics)))

    def log_table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        if isinstance(self.tracker, TableTracker):
            self._put(partial(self.tracker.log_table, step, name, rows))

    def _put(self, call: Callable[[], None]) -> None:
        self._raise_failure()
        try:
            self._steps.put_nowait(call)
        except queue.Full:
            self._stuck = True
            raise TimeoutError(f"it has not answered for {_BEHIND} steps") from None

    def close(self) -> None:
        """Waits for a tracker that answers; one that was found stuck is left behind at once."""
        deadline = time.monotonic() + (0.0 if self._stuck else self._close_seconds)
        with contextlib.suppress(queue.Full):  # then the thread is alive below
            self._steps.put(None, timeout=max(0.0, deadline - time.monotonic()))
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            raise TimeoutError(f"it was not done within {self._close_seconds:.0f} s")
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _work(self) -> None:
        try:
            while (call := self._steps.get()) is not None:
                call()
        except Exception as error:  # noqa: BLE001 - a tracker is foreign code; told by the next call
            self._failure = error
        try:
            self.tracker.close()
        except Exception as error:  # noqa: BLE001 - as above; the first failure counts
            self._failure = self._failure or error


def sync_command(run_dir: Path) -> str:
    """What uploads the offline records of a run, to be typed in a shell: of all its parts, of which those that are on
    wandb already are left out."""
    return f"{program('wandb')} sync {shlex.quote(str(run_dir / 'wandb'))}/offline-run-*"


def waits_for_upload(run_dir: Path) -> bool:
    """Whether the run has an offline record that was not uploaded: `wandb sync` leaves a mark beside what was."""
    return any(not any(part.glob("*.synced")) for part in run_dir.glob("wandb/offline-run-*"))


def _resolve(mode: str) -> str:
    """The mode to start in, without a prompt. Raises wandb.Error for "online" without a usable key."""
    import wandb

    if mode == "offline":
        return mode
    wanted = wandb.setup().settings.mode  # "online", unless the user's WANDB_MODE or settings file says otherwise
    if mode == "auto" and wanted != "online":
        return str(wanted)
    if wandb.login(prompt=False, verify=False):
        return "online"
    if mode == "auto":
        return "offline"
    raise wandb.Error(f"no API key is configured: run `{program('wandb')} login`, or set WANDB_API_KEY")


def _settings() -> Any:
    import wandb

    return wandb.Settings(
        silent=True,
        host="",  # else the name of the machine goes along
        console="off",  # wrapping stdout would fight with the progress display
        disable_code=True,
        save_code=False,
        disable_git=True,
        disable_job_creation=True,
        x_disable_meta=True,  # what the machine is and what runs on it; how busy it is goes along
        x_save_requirements=False,
        init_timeout=INIT_TIMEOUT,
        finish_timeout=FINISH_TIMEOUT,
    )
