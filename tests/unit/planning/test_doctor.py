"""The doctor on this machine: what it says is what is here."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from packaging.requirements import Requirement

from gtpo_cli.planning.doctor import _answers, _disk, _gpu, _package, _requirements, examine, memory_finding
from gtpo_cli.recipe import load_recipe


def test_the_built_in_model_can_start_wherever_the_tests_run(tmp_path: Path) -> None:
    findings = {finding.subject: finding for finding in examine(load_recipe("tiny_arithmetic"), output_dir=tmp_path)}
    assert [finding for finding in findings.values() if finding.state == "problem"] == []
    assert findings["torch"].words == version("torch")
    assert findings["wandb"].words == "off in the recipe"
    assert set(findings) >= {"python", "transformers", "peft", "GPU", "bitsandbytes", "unsloth", "vllm", "hub", "disk"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_an_8b_recipe_needs_a_gpu_and_the_built_in_model_does_not() -> None:
    (finding,) = _gpu(load_recipe("llama8b_gsm8k"))
    assert finding.state == "problem"
    assert "needs a GPU" in finding.remedy
    (finding,) = _gpu(load_recipe("tiny_arithmetic"))
    assert finding.state == "note"


def test_packages_against_their_pins() -> None:
    here = version("torch")
    assert _package(Requirement("torch>=2.7"), needed=True).state == "ok"
    wrong = _package(Requirement("torch>=99,<100"), needed=True)
    assert (wrong.state, wrong.words) == ("problem", f"{here}, not <100,>=99")
    assert wrong.remedy == "pip install 'torch<100,>=99'"
    assert _package(Requirement("torch>=99"), needed=False).state == "note"
    absent = _package(Requirement("gtpo-has-no-such-package>=1"), needed=True)
    assert (absent.state, absent.words) == ("problem", "not installed")
    assert _package(Requirement("gtpo-has-no-such-package>=1"), needed=False).state == "note"


def test_the_requirements_are_those_of_the_package() -> None:
    always = {requirement.name for requirement in _requirements(extra=None)}
    assert {"torch", "transformers", "math-verify", "matplotlib"} <= always
    assert not always & {"unsloth", "vllm", "pytest"}
    assert {requirement.name for requirement in _requirements(extra="tensorboard")} == {"tensorboard"}


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)  # whoever answers at all is there
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_host_that_answers_and_one_that_does_not() -> None:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert _answers(url)
        server.shutdown()
    assert not _answers(url)


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    finding = _disk(tmp_path / "a" / "b")
    assert "GiB free at" in finding.words
    assert finding.state in ("ok", "note")


def test_memory_is_held_against_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    enough, too_little = (memory_finding(load_recipe("llama8b_gsm8k"), size * 2**30) for size in (48, 12))
    assert enough.state == "ok"
    assert enough.words.endswith("GiB needed of 48; gtpo plan says for what")
    assert too_little.state == "problem"
    assert "gpu_memory_utilization" in too_little.remedy
