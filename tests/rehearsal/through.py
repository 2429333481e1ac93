"""What campaign.py runs its programs through in the rehearsal: PROGRAM ARGUMENTS in a process that is forked from one
which has imported Unsloth and vLLM on the card that is not there (their imports take half a minute).

    python through.py --serve SOCKET        that process, until it is killed
    GTPO_REHEARSAL=SOCKET python through.py PROGRAM ARGUMENTS

`grpo_peers.py TRL` goes to a twin at SOCKET.plain, in which Unsloth has replaced nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path


def serve(path: str) -> None:
    import card

    card.insert()
    if os.fork() == 0:
        path = f"{path}.plain"
        card.fit_vllm()
        import trl  # noqa: F401
    else:
        card.start()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        while True:
            with listening.accept()[0] as client:
                request, streams, _, _ = socket.recv_fds(client, 1 << 16, 2)
                pid = os.fork()
                if pid == 0:
                    listening.close()
                    _become(**json.loads(request), streams=streams)
                for stream in streams:
                    os.close(stream)
                _tell(client, pid)
                _tell(client, _ended(pid, client))


def _tell(client: socket.socket, number: int) -> None:
    with contextlib.suppress(ConnectionError):  # it was killed: _ended sees that
        client.send(f"{number}\n".encode())


def _ended(pid: int, client: socket.socket) -> int:
    """Wait for the process; it is killed once its client is gone, as a process of the client would be."""
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if select.select([client], [], [], 0.05)[0]:  # it never says anything more: this is its end
            os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(done[1])


def _become(argv: list[str], cwd: str, switches: dict[str, str], streams: list[int]) -> None:
    code = 1
    try:
        os.environ.update(switches)
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        os.chdir(cwd)
        sys.argv = argv
        sys.path[0] = str(Path(argv[0]).parent) if "gtpo_cli" not in argv[0] else sys.path[0]
        runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001  # as Python itself would end
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        os._exit(code)


def ask(argv: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["GTPO_REHEARSAL"] + (".plain" if argv[1:2] == ["TRL"] else ""))
        switches = {name: value for name, value in os.environ.items() if name.startswith("UNSLOTH_VLLM_")}
        request = {"argv": argv, "cwd": str(Path.cwd()), "switches": switches}
        socket.send_fds(server, [json.dumps(request).encode()], [1, 2])
        answers = server.makefile()
        pid = int(answers.readline())
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
        return int(answers.readline())


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    sys.exit(ask(sys.argv[1:]))
