"""A hub on this machine with one data set, as far as `datasets` asks it: its files, their list, its revision."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "a" * 40


@contextmanager
def small_hub(name: str, files: Mapping[str, bytes], *, revision: str = "main") -> Iterator[str]:
    """Its address, while it answers. `revision`: the only branch there is."""

    def entry(path: str) -> dict[str, object]:
        oid = hashlib.sha1(files[path], usedforsecurity=False).hexdigest()
        return {"type": "file", "path": path, "size": len(files[path]), "oid": oid}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0])
            at = f"/api/datasets/{name}"
            for known in (revision, COMMIT):
                if path in (f"{at}/revision/{known}", at):
                    siblings = [{"rfilename": file} for file in files]
                    return self.answer(json.dumps({"id": name, "sha": COMMIT, "siblings": siblings, "tags": []}))
                if path.startswith(f"{at}/tree/{known}"):
                    return self.answer(json.dumps([entry(file) for file in files]))
                if path.startswith(f"{at}/paths-info/{known}"):
                    asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["paths"]
                    return self.answer(json.dumps([entry(file) for file in asked if file in files]))
                file = path.removeprefix(f"/datasets/{name}/resolve/{known}/")
                if file in files:
                    return self.answer(files[file], ETag=f'"{entry(file)["oid"]}"', **{"X-Repo-Commit": COMMIT})
                if file != path:
                    return self.answer("", 404, **{"X-Error-Code": "EntryNotFound"})
            here = path.startswith((at, f"/datasets/{name}/"))
            return self.answer("", 404, **{"X-Error-Code": "RevisionNotFound" if here else "RepoNotFound"})

        do_HEAD = do_POST = do_GET

        def answer(self, body: str | bytes, status: int = 200, **headers: str) -> None:
            body = body.encode() if isinstance(body, str) else body
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
