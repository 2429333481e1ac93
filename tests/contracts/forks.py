"""Commands in processes forked from one that has imported the libraries.

A short command spends most of its time importing torch and transformers. Here that is done once: `run` asks a server
(this file as a program), which forks a process for each command. That process has the arguments, folder, streams and
exit code of one started anew, and it imports gtpo's own modules itself, in the order in which the command needs them.
`Command` is one that goes on beside the test, which may kill it; with `terminal` it has one of its own. What is about
starts, limits and redirected streams starts a process of its own (subprocess, commands.GTPO).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIBRARIES = (
    "torch._dynamo", "transformers.models.llama.modeling_llama", "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto", "peft", "math_verify", "matplotlib.figure", "rich.console",
    "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "typer.main", "typer._completion_classes",
    "pydantic.dataclasses", "pydantic.root_model", "pydantic.type_adapter", "transformers.conversion_mapping",
    "tabulate", "packaging.requirements", "PIL.PngImagePlugin",
)  # fmt: skip
BESIDE = "GTPO_TESTS_IMPORT"  # modules that a server imports beside these
WITH_TRL = {"CI": "1", "OMP_NUM_THREADS": "1", BESIDE: "trl.trainer.grpo_trainer"}  # of TRL's tests
STREAMS = ("stdin", "stdout", "stderr")

Environment = frozenset[tuple[str, str]]
_idle: dict[Environment, list[subprocess.Popen[str]]] = {}  # servers; one more is started for a command beside another


class Command:
    """A command that runs: what the tests need of subprocess.Popen; it has ended only when `wait` was called.

    `command` is the file of a Python program, or `python -m MODULE`, and its arguments. Libraries read `env` when they
    are imported: each has servers of its own. `more` is set in the process itself, for what is read later; None
    removes a name. `terminal`: the device that is its streams and that it belongs to.
    """

    def __init__(
        self,
        command: list[str],
        *,
        cwd: Path,
        env: dict[str, str],
        more: Mapping[str, str | None] | None = None,
        input: bytes = b"",
        terminal: str = "",
    ) -> None:
        self._idle = _idle.setdefault(frozenset(env.items()), [])
        self._server = self._idle.pop() if self._idle else _started(env)
        self._folder = tempfile.TemporaryDirectory()
        files = {name: Path(self._folder.name) / name for name in STREAMS}
        files["stdin"].write_bytes(input)
        for name in ("stdout", "stderr"):  # also there where it is killed before it has opened them
            files[name].touch()
        streams = {name: terminal or str(file) for name, file in files.items()}
        request = {"command": command, "cwd": str(cwd), "more": dict(more or {}), "terminal": terminal, **streams}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        self._command, self._files = command, files
        self.pid = _answer(self._server)

    def runs(self) -> bool:
        """False once it has ended by itself."""
        return not select.select([self._server.stdout], [], [], 0)[0]

    def wait(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Its exit code and what it said; killed after `timeout` seconds."""
        clock = threading.Timer(timeout, os.kill, (self.pid, signal.SIGKILL))
        clock.start()
        code = _answer(self._server)
        clock.cancel()
        self._idle.append(self._server)
        with self._folder:
            said = {name: self._files[name].read_bytes().decode() for name in ("stdout", "stderr")}
        return subprocess.CompletedProcess(self._command, code, **said)


def run(command: list[str], *, timeout: float = 300, **settings: Any) -> subprocess.CompletedProcess[str]:
    """As subprocess.run with text output, killed after `timeout` seconds; see `Command` for the settings."""
    return Command(command, **settings).wait(timeout)


def run_distributed(command: list[str], processes: int, **settings: Any) -> list[subprocess.CompletedProcess[str]]:
    """The command in several processes that find each other, with the variables that torchrun sets in each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(processes)}
    known["LOCAL_WORLD_SIZE"] = known["WORLD_SIZE"]
    running = [
        Command(command, more=known | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, **settings)
        for rank in range(processes)
    ]
    return [process.wait() for process in running]


def _started(env: dict[str, str]) -> subprocess.Popen[str]:
    program = [sys.executable, __file__]
    server = subprocess.Popen(program, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)  # it ends with its input
    return server


def _answer(server: subprocess.Popen[str]) -> int:
    assert server.stdout is not None
    return int(server.stdout.readline())


def _serve() -> dict[str, Any]:
    """The request, in each process that is forked for one; the server itself ends with its input."""
    for name in (*LIBRARIES, *os.environ.get(BESIDE, "").split()):
        importlib.import_module(name)
    sys.modules["transformers.conversion_mapping"].get_checkpoint_conversion_mapping("llama")  # made once
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            request: dict[str, Any] = json.loads(line)
            return request
        _say(pid)
        _say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _become(request: dict[str, Any]) -> None:
    if request["terminal"]:
        os.setsid()  # the terminal that it opens then is its own
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for number, name in enumerate(STREAMS):
        file = os.open(request[name], os.O_RDONLY if number == 0 else os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)  # the server's has read ahead
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it,
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup this one
    os.chdir(request["cwd"])
    for name, value in request["more"].items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    program, *arguments = request["command"]
    try:
        if program == sys.executable:
            _, module, *arguments = arguments
            sys.argv, sys.path[0] = [module, *arguments], request["cwd"]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = request["command"], str(Path(program).parent)
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        # As Python ends, except that it does not take the libraries apart object by object: that is half a second.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)


if __name__ == "__main__":
    _become(_serve())
