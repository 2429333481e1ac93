"""A completion that is a page of its own does nothing where gtpo shows it: opened in a real browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from small_runs import gtpo, train

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--virtual-time-budget=3000", "--dump-dom",
]  # fmt: skip
RUN = "document.documentElement.setAttribute('data-ran', 'yes')"
HOSTILE = (
    f'</td></script><script>{RUN}</script><img src=x onerror="{RUN}"><svg onload="{RUN}"></svg>'
    f'\'" onmouseover="{RUN}" autofocus onfocus="{RUN}" <a href="javascript:{RUN}">18</a>'
)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


def opened(page: Path, profile: Path) -> str:
    """The page as the browser has it after its scripts have run."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "<html" in done.stdout, done.stderr
    return done.stdout


def spoil(file: Path) -> None:
    """Every text of a stored line, down to the tokens, becomes the hostile one."""

    def change(value: object, name: str = "") -> object:
        if isinstance(value, dict):
            return {key: change(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [change(item, name) for item in value]
        return (
            HOSTILE if name in ("text", "tokens", "question", "extracted", "gold") and isinstance(value, str) else value
        )

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(change(line)) + "\n" for line in lines))


def test_the_check_would_see_it(tmp_path: Path) -> None:
    page = tmp_path / "bare.html"
    page.write_text(f"<html><body><table><tr><td>{HOSTILE}</td></tr></table></body></html>")
    assert 'data-ran="yes"' in opened(page, tmp_path / "profile")


def test_hostile_completions_do_nothing_in_report_and_inspection(tmp_path: Path) -> None:
    gtpo(tmp_path, train("one", "training.max_steps=3"))
    gtpo(tmp_path, ["eval", "runs/one", "--pass-k", "2", "--limit", "4"])
    run = tmp_path / "runs" / "one"
    stored = [*(run / "samples").glob("*.jsonl"), *(run / "evaluation").rglob("samples.jsonl")]
    assert len(stored) >= 4
    for file in stored:
        spoil(file)
    gtpo(tmp_path, ["report", "runs/one"])
    gtpo(tmp_path, ["inspect", "runs/one", "--step", "3", "--html"])
    pages = list((run / "report").rglob("*.html"))
    assert len(pages) == 2
    for page in pages:
        assert "data-ran" in page.read_text(), f"{page.name} does not show the completions"
        assert 'data-ran="yes"' not in opened(page, tmp_path / "profile"), page.name
