"""Weights & Biases: online with a key, offline without one, never a prompt, never the end of a run.

All files stay in the run folder (`<run>/wandb`). An offline run is uploaded later with `wandb sync`. Only the recipe
and the metrics are handed over: no code, no git state, no console output, nothing about the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

# Seconds. A network that is away must not hold up training for long, at the start or at the end.
INIT_TIMEOUT = 30.0
FINISH_TIMEOUT = 60.0


class WandbTracker:
    """Logs each step to wandb, under the declared names, with `step` as wandb's step too.

    `mode`: "auto" is online when wandb finds a key (WANDB_API_KEY, netrc, `wandb login`) and WANDB_MODE does not say
    otherwise, else offline. When going online fails (no key in mode "online", no network, a refused key), `warn` is
    told and the run is recorded offline. `resume_id` continues the wandb run of that id (`run_id` of the first part).
    Raises whatever wandb raises when it cannot even record offline; the caller decides what that is worth.
    """

    def __init__(
        self,
        recipe: Mapping[str, Any],
        run_name: str,
        run_dir: Path,
        *,
        mode: Literal["auto", "online", "offline"] = "auto",
        project: str = "gtpo",
        entity: str | None = None,
        tags: Sequence[str] = (),
        resume_id: str | None = None,
        warn: Callable[[str], None],
    ) -> None:
        # wandb sends usage statistics even for offline runs, unless this variable, which has no setting, says no.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # the library: absolute imports do not see this module under that name

        def start(where: Any) -> Any:
            return wandb.init(
                mode=where,
                project=project,
                entity=entity,
                name=run_name,
                tags=list(tags),
                config=dict(recipe),
                dir=run_dir,
                id=resume_id,
                resume="allow" if resume_id else None,
                settings=_settings(),
            )

        (run_dir / "wandb").mkdir(parents=True, exist_ok=True)  # else wandb would go to a temporary folder
        wandb.setup(settings=_settings())
        try:
            self._run = start(_resolve(mode))
        except wandb.Error as error:
            if mode == "offline":
                raise
            reason = " ".join(str(error).split())
            later = f"upload later with `wandb sync {run_dir}/wandb/offline-*`"
            warn(f"wandb: not online ({reason}); recording offline, {later}")
            self._run = start("offline")

    @property
    def run_id(self) -> str:
        """wandb's id of the run, to resume it by."""
        return str(self._run.id)

    @property
    def offline(self) -> bool:
        return bool(self._run.offline)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics}, step=step)

    def close(self) -> None:
        """Upload what is left, for a minute at most; the files stay in the run folder in any case."""
        self._run.finish()


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
    raise wandb.Error("no API key is configured: run `wandb login`, or set WANDB_API_KEY")


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
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        init_timeout=INIT_TIMEOUT,
        finish_timeout=FINISH_TIMEOUT,
    )
