"""gtpo export as typed: what plain transformers make of it, without gtpo, and what reaches a hub."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import forks
import pytest
from commands import GTPO, Prepared, Run, environment

from gtpo_cli.tools.export.gguf import SCRIPT

TOKEN = "hf_thisIsNoTokenButASecret"
QUESTIONS = ["3+8-2+5", "9-9+9-1", "2+2+2+2", "9+9+9+9", "1-8-7+4", "7+7-3-3"]
TRAIN = [
    "train", "-q", "--recipe", "tiny_arithmetic", "--set", "run_name=one", "--set", "training.max_steps=6",
    "--set", "objective.initial_entropy=0.16", "--set", "optimizer.learning_rate=1.0e-3", "--set", "data.limit=64",
]  # fmt: skip
LORA = ["--set", "model.lora={rank: 8, alpha: 16}", "--set", "optimizer.learning_rate=5.0e-3"]
PLAIN = """
import json, sys
assert "gtpo_cli" not in sys.modules
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "gtpo_cli":
            raise ImportError(name + " is not to be used here")
sys.meta_path.insert(0, Blocked())
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(1)
folder, *questions = sys.argv[1:]
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
for question in questions:
    messages = [{"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    row = model.generate(**ids, max_new_tokens=64, do_sample=False)[0, ids["input_ids"].shape[1]:]
    print(json.dumps(tokenizer.decode(row, skip_special_tokens=True)))
"""


def by_plain_transformers(folder: Path) -> list[str]:
    program = folder.with_name("plain.py")
    program.write_text(PLAIN)
    done = forks.run([str(program), str(folder), *QUESTIONS], cwd=folder.parent, env=environment())
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def by_the_lines(said: str, export: Path) -> str:
    """What the lines print that the terminal and then the card give, as they stand but for the question, in a folder
    of their own."""
    typed = said.partition(" has the rest):\n")[2].partition("next: ")[0]
    assert typed.count("AutoTokenizer.from_pretrained(") == 1
    card = (export / "README.md").read_text().split("```python\n")[1].split("\n```\n")[0]
    program = export.parents[3] / "elsewhere" / "program.py"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"{typed}print(model.num_parameters())\n{card.replace('QUESTION', QUESTIONS[0])}\n")
    done = forks.run([str(program)], cwd=program.parent, env=environment())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[0]) > 100_000
    return done.stdout.splitlines()[1]


def by_the_policy(folder: Path, run: str) -> list[str]:
    typed = "\n".join(QUESTIONS) + "\n"
    done = forks.run([*GTPO, "generate", run, "--greedy"], cwd=folder, input=typed.encode(), env=environment())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return [lines[i + 1] for i, line in enumerate(lines) if line.startswith("question> ")]


@pytest.mark.parametrize("changes", [[], LORA], ids=["all weights", "adapter"])
def test_plain_transformers_give_the_policy_s_answers(
    changes: list[str], gtpo: Run, prepared: Prepared, tmp_path: Path
) -> None:
    prepared([*TRAIN, *changes])
    expected = by_the_policy(tmp_path, "runs/one")
    assert len(set(expected)) == len(QUESTIONS)
    said = merged = gtpo("export", "runs/one", "--dtype", "float32").stdout
    assert "runs/one/export/merged: merged, float32, " in said
    assert "compared with the policy on its greedy answers to 8 questions: log-probabilities differ by " in said
    assert said.splitlines()[-1] == "next: gtpo eval runs/one"
    assert by_plain_transformers(tmp_path / "runs" / "one" / "export" / "merged") == expected
    assert by_the_policy(tmp_path, "runs/one/export/merged") == expected

    gtpo("export", "--out", "sixteen")
    record = json.loads((tmp_path / "sixteen" / "export.json").read_text())
    assert (record["dtype"], record["step"]) == ("bfloat16", 6)
    assert 0 < record["difference_from_policy"]["mean"] < 0.1
    again = by_plain_transformers(tmp_path / "sixteen")
    assert sum(a == b for a, b in zip(again, expected, strict=True)) >= len(QUESTIONS) - 1  # a tie may fall otherwise

    code = 0 if changes else 2
    adapter = gtpo("export", "--format", "adapter", code=code)
    assert ("trained all weights, so there is no adapter" in adapter.stderr) == (not changes)

    # The adapter on its base, or all weights in float32, is the policy itself: it samples the run's completions.
    figures = ["--pass-k", "2", "--limit", "24", "--json"]
    base, run = json.loads(gtpo("eval", "runs/one", "--base", *figures).stdout)["evaluations"]
    format = "adapter" if changes else "merged"
    *_, own = json.loads(gtpo("eval", f"runs/one/export/{format}", *figures).stdout)["evaluations"]
    assert own["folder"].startswith(f"runs/models/runs-one-export-{format}/evaluation/arithmetic/")
    assert (own["subject"], own["model"]) == (
        ("step-000006", "builtin:tiny") if changes else ("base", "runs/one/export/merged")
    )
    drawn = [(tmp_path / one["folder"] / "samples.jsonl").read_bytes() for one in (run, own, base)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert own["scores"] == run["scores"]
    said = gtpo("eval", f"runs/one/export/{format}", "--base", *figures[:-1]).stdout.splitlines()
    assert said[0].startswith(f"runs/one/export/{format}: export of the run one, step 6")
    assert said[0].endswith("; with the run's prompts and rewards")
    labels = {
        "adapter": "base is builtin:tiny, untrained, with the trained one's prompts and rewards",
        "merged": "base is runs/one/export/merged",
    }
    assert said[1] == labels[format]
    lines = adapter.stdout if changes else merged
    assert by_the_lines(lines, tmp_path / f"runs/one/export/{format}") == expected[0]
    if changes:
        assert by_the_policy(tmp_path, "runs/one/export/adapter") == expected
    else:
        (tmp_path / "sixteen" / "export.json").unlink()
        asked = ["generate", "sixteen", "1+1", "--max-tokens", "2"]
        assert (
            "sixteen: not an export of gtpo, so it gets gtpo's default system prompt, in the model's own chat "
            "template; " in gtpo(*asked).stdout
        )


def test_a_base_in_a_folder_named_relatively_is_found_from_any_other(gtpo: Run, shared: Path, tmp_path: Path) -> None:
    shutil.copytree(shared / "models" / "stories260k", tmp_path / "base")
    gtpo(*TRAIN, *LORA, "--set", "model.name=base", "--set", "model.max_seq_length=256",
         "--set", "model.load_in_4bit=false", "--set", "data.max_prompt_tokens=200", "--set", "training.max_steps=2",
         "--set", "objective.name=sft")  # fmt: skip
    said = gtpo("export", "runs/one", "--format", "adapter").stdout
    assert f'\nbase = AutoModelForCausalLM.from_pretrained("{tmp_path}/base")\n' in said
    asked = [QUESTIONS[0], "--greedy"]
    own = gtpo("generate", "runs/one", *asked).stdout
    answer = by_the_lines(said, tmp_path / "runs/one/export/adapter").strip()
    assert answer
    assert answer in own
    command = [*GTPO, "generate", "../runs/one/export/adapter", *asked]
    done = forks.run(command, cwd=tmp_path / "elsewhere", env=environment())
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout


@pytest.mark.skipif(
    shutil.which(SCRIPT) is None or importlib.util.find_spec("gguf") is None,
    reason=f"needs llama.cpp's {SCRIPT} on PATH, and the package gguf",
)
def test_gguf_by_the_real_converter(gtpo: Run, shared: Path, tmp_path: Path) -> None:
    base = ["--set", f"model.name={shared / 'models' / 'stories260k'}", "--set", "model.max_seq_length=256"]
    gtpo(*TRAIN, *LORA, *base, "--set", "model.load_in_4bit=false", "--set", "data.max_prompt_tokens=200",
         "--set", "training.max_steps=2", "--set", "objective.name=sft")  # fmt: skip
    gtpo("export", "--format", "gguf", "--dtype", "float32")
    out = tmp_path / "runs" / "one" / "export" / "gguf"
    assert {file.name for file in out.iterdir()} == {"README.md", "export.json", "one-float32.gguf"}
    record = json.loads((out / "export.json").read_text())
    assert record["difference_from_policy"]["mean"] < 1e-4
    assert record["difference_from_policy"]["kept"] == pytest.approx(1.0, abs=1e-2)


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload asks for: the repository, which files are small, the commit."""

    files: dict[str, Any]
    asked: list[tuple[str, str]]
    made: dict[str, Any]
    public = False

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, document: Any, code: int = 200, **headers: str) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        for name, value in ({"Content-Type": "application/json", "Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self._answer({})

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization", "")))
        if "/tree/" in self.path:
            self._answer([{"type": "file", "path": name, "oid": "0" * 40, "size": 1} for name in self.files])
        elif self.public or self.made:
            self._answer({"id": "me/demo", "private": not self.public, "sha": "0" * 40, "siblings": []})
        else:
            self._answer({}, 404, **{"X-Error-Code": "RepoNotFound"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, self.headers.get("Authorization", "")))
        if self.path == "/api/repos/create":
            self.made.update(json.loads(body))
            self._answer({"url": f"http://{self.headers['Host']}/me/demo"})
        elif "/preupload/" in self.path:
            files = [file["path"] for file in json.loads(body)["files"]]
            self._answer({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in files]})
        elif "/commit/" in self.path:
            for line in body.splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    self.files[row["value"]["path"]] = row["value"]["content"]
                elif row["key"] == "deletedFile":
                    del self.files[row["value"]["path"]]
            self._answer(
                {"commitUrl": f"http://{self.headers['Host']}/me/demo/commit/{'0' * 40}", "commitOid": "0" * 40}
            )
        else:
            self._answer({})


@pytest.fixture(scope="module")
def hub_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of all pushes, since libraries read them when they are imported. Nobody answers there but while a test has
    `hub`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    home = str(tmp_path_factory.mktemp("hf"))
    return {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": home, "HF_HUB_DISABLE_XET": "1"}


@pytest.fixture
def hub(hub_settings: dict[str, str]) -> Iterator[type[Hub]]:
    class Fresh(Hub):
        files, asked, made = {}, [], {}

    port = int(hub_settings["HF_ENDPOINT"].rpartition(":")[2])
    with ThreadingHTTPServer(("127.0.0.1", port), Fresh) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Fresh
        server.shutdown()


def push(settings: dict[str, str], folder: Path, *, code: int = 0, token: str | None = TOKEN) -> str:
    done = forks.run(
        [*GTPO, "export", "--push", "me/demo"], cwd=folder, env=environment() | settings,
        more={"HF_TOKEN": token} if token else {},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_a_push_reaches_the_hub_private_and_the_token_nothing_else(
    prepared: Prepared, hub: type[Hub], hub_settings: dict[str, str], tmp_path: Path
) -> None:
    prepared(TRAIN)
    hub.files.update(dict.fromkeys(("LICENSE", "adapter_config.json", "adapter_model.safetensors", "config.json"), ""))
    said = push(hub_settings, tmp_path)
    assert f"pushed to {hub_settings['HF_ENDPOINT']}/me/demo" in said
    assert hub.made.get("visibility") == "private" or hub.made.get("private") is True  # by the library's age
    out = tmp_path / "runs" / "one" / "export" / "merged"
    assert set(hub.files) == {file.name for file in out.iterdir()} | {
        "LICENSE"
    }  # an adapter's files of before are gone
    assert hub.files["config.json"]
    writing = [
        key for path, key in hub.asked if path.endswith("/create") or "/preupload/" in path or "/commit/" in path
    ]
    assert len(writing) >= 3
    assert set(writing) == {f"Bearer {TOKEN}"}
    assert 'from_pretrained("me/demo")' in (out / "README.md").read_text()
    assert TOKEN not in said
    files = [
        file for folder in (tmp_path, Path(hub_settings["HF_HOME"])) for file in folder.rglob("*") if file.is_file()
    ]
    assert [file.name for file in files if TOKEN.encode() in file.read_bytes()] == []

    hub.public = True
    refused = push(hub_settings, tmp_path, code=2)
    assert "is already public" in refused
    assert "--public" in refused
    assert "there is no token" in push(hub_settings, tmp_path, code=2, token=None)
