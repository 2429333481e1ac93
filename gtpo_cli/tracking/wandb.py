"""Weights & Biases: online with a key, offline without one. It never prompts and never ends a run.

All files stay in the run folder (`<run>/wandb`). `wandb sync` uploads an offline run later. wandb gets only the recipe,
the metrics, tables of sample completions and evaluations, and the machine's load (GPU, CPU, memory, disk, network). It
gets no code, git state or console output, and neither the machine's name nor its hardware.
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
from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.runs.files import own_folder, read_bytes, write_aside
from gtpo_cli.runs.user_code import stands_in_a_run
from gtpo_cli.text import one_line
from gtpo_cli.tracking.tracker import TableRow, TableTracker, Tracker

# Seconds. A missing network must not delay the start or the end of training for long.
INIT_TIMEOUT = 30.0
FINISH_TIMEOUT = 60.0
_BEHIND = 1000  # steps that may wait; a tracker further behind counts as stuck


class WandbTracker:
    """Logs each step to wandb under the declared names, with `step` as the axis of all charts.

    wandb's own step only counts calls. Given an earlier step, it drops the call (online) or moves it (`wandb sync`). A
    run that is resumed from an older checkpoint logs earlier steps again.

    Tables become wandb tables with `step` as their first column, so that those of many steps can be combined.

    Mode "auto" is online if wandb finds a key (WANDB_API_KEY, netrc, `wandb login`) and WANDB_MODE allows it, else
    offline. If going online fails (no key in mode "online", no network, a refused key), `warn` is called and the run is
    recorded offline. `resumed`: continue under the id in the run's folder. Raises any exception of wandb if it cannot
    even record offline.
    """

    def __init__(
        self,
        recipe: Recipe,
        run_dir: Path,
        *,
        resumed: bool = False,
        warn: Callable[[str], None],
    ) -> None:
        # wandb sends usage statistics even for offline runs. Only this variable, which has no setting, prevents that.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # the library; an absolute import does not find this module

        for name in ("wandb/settings", ".wandb/settings"):
            if stands_in_a_run() and os.path.lexists(name):
                raise GtpoError(
                    f"{name} in the working folder would tell wandb where to send your key, but that folder is a run, "
                    "which may be a stranger's; call gtpo from another folder"
                )
        settings = recipe.tracking.wandb
        folder = run_dir / "wandb"
        own_folder(folder)  # otherwise wandb would use a temporary folder
        # Folder for tables before their upload; only this variable sets it, and the default is in the user's home.
        os.environ["WANDB_DATA_DIR"] = str(folder.absolute())
        id_file = folder / "run_id"
        resume_id = read_bytes(id_file).decode().strip() if resumed and id_file.is_file() else None

        def start(mode: Any) -> Any:
            return wandb.init(
                mode=mode, project=settings.project, name=run_dir.absolute().name,
                config=recipe.model_dump(mode="json"), dir=run_dir, id=resume_id,
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
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        write_aside(id_file, f"{self._run.id}\n".encode())

    @property
    def is_offline(self) -> bool:
        """Whether the record stays local; false also if wandb is disabled by its own switch."""
        return bool(self._run.offline)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def log_table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        import wandb

        # wandb does not accept subclasses of str, such as CodeName, as names
        table = wandb.Table(columns=["step", *map(str, rows[0])], data=[[step, *row.values()] for row in rows])
        self._run.log({"step": step, name: table})

    def close(self) -> None:
        """Upload the rest, for a minute at most. The files stay in the run folder in any case."""
        self._run.finish()


class BackgroundTracker:
    """Runs a tracker that may block (a network, another process) in a thread, so that training never waits for it.

    The next call raises errors of the tracker. `log` returns at once; it raises TimeoutError if the tracker is a
    thousand steps behind. `close` waits at most `close_seconds` for the rest, and raises TimeoutError if that is not
    enough.
    """

    def __init__(self, tracker: Tracker, *, close_seconds: float) -> None:
        self.tracker = tracker
        self._close_seconds = close_seconds
        self._steps: queue.Queue[Callable[[], None] | None] = queue.Queue(_BEHIND)
        self._failure: Exception | None = None
        self._stuck = False
        # A daemon, so that the process can end even if the tracker hangs.
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
        """Wait for the tracker, unless it is already known to be stuck."""
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
        except Exception as error:  # noqa: BLE001 - a tracker is foreign code; the next call raises it
            self._failure = error
        try:
            self.tracker.close()
        except Exception as error:  # noqa: BLE001 - as above; the first failure counts
            self._failure = self._failure or error


def sync_command(run_dir: Path) -> str:
    """Return the shell command that uploads all offline records of a run that are not on wandb yet."""
    return f"{program('wandb')} sync {shlex.quote(str(run_dir / 'wandb'))}/offline-run-*"


def waits_for_upload(run_dir: Path) -> bool:
    """Return whether the run has an offline record that was not uploaded. `wandb sync` marks those that were."""
    return any(not any(part.glob("*.synced")) for part in run_dir.glob("wandb/offline-run-*"))


def _resolve(mode: str) -> str:
    """Choose the mode to start in, without a prompt. Raises wandb.Error for "online" without a usable key."""
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
        host="",  # do not send the machine's name
        console="off",  # wrapping stdout would interfere with the progress display
        disable_code=True,
        save_code=False,
        disable_git=True,
        disable_job_creation=True,
        x_disable_meta=True,  # do not send the hardware and programs, only the load
        x_save_requirements=False,
        init_timeout=INIT_TIMEOUT,
        finish_timeout=FINISH_TIMEOUT,
    )
