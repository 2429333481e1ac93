"""A completion that is a page of its own does nothing where gtpo shows it: opened in a real browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from mutations import restore
from small_runs import gtpo
from typer.testing import CliRunner

from gtpo_cli.cli.app import app
from gtpo_cli.errors import GtpoError
from gtpo_cli.evaluation.store import find_evaluations
from gtpo_cli.pages.run_record import read_run
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tools.report.inspection import read_step
from gtpo_cli.tools.report.page import render

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


def opened(page: Path, profile: Path, *, root: str = "html") -> str:
    """The page as the browser has it after its scripts have run."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert f"<{root}" in done.stdout, done.stderr
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


def test_no_field_of_a_run_folder_runs_in_a_page_or_names_a_file(real: Path, tmp_path: Path) -> None:
    """Every value and every name in every file of a run is replaced, by script and by paths: what the readers refuse is
    an error of ours, and all that they take stands in the pages together, and does nothing."""
    original, run = real / "runs" / "one", tmp_path / "runs" / "<img src=x onerror='document.title=1'>"
    restore(run, original)
    taken = [field for field in fields(original) if is_taken(original, run, field)]
    names = {f"{field.file.name}:{'.'.join(map(str, field.place))}" for field in taken}
    for name in ("model", "benchmark", "settings.data.system_prompt", "subject", "split", "grader"):
        assert f"conditions.json:{name}" in names
    assert {"environment.json:packages.torch", "recipe.yaml:model.name", "step-000002.jsonl:question"} <= names
    escaped = tmp_path / "escaped"
    for payload in (HOSTILE, "../../../../../escaped", str(escaped), "a" * 5000, "x|y\n\n# z\n<b>", "$\\frac{1}{$"):
        restore(run, original)
        for number, field in enumerate(taken):
            field.put(run, f"{payload}{number}")
        before = {*tmp_path.rglob("*")}
        out = tmp_path / "out" / str(len(before))
        for arguments in (
            ["report", str(run), "--out", str(out)],
            ["inspect", str(run), "--html", "--out", str(out / "inspect.html")],
            ["compare", *[str(run)] * 2],
        ):
            result = CliRunner().invoke(app, arguments)
            assert result.exception is None or isinstance(result.exception, (GtpoError, SystemExit)), arguments
            assert arguments[0] == "compare" or result.exit_code == 0, (payload[:50], result.exception)
        assert all(path.is_relative_to(out) for path in {*tmp_path.rglob("*")} - before - {out.parent})
        assert not escaped.exists()
        if payload is not HOSTILE:
            continue
        pages = [out / "report.html", out / "inspect.html", *sorted((out / "charts").glob("*_at_k.svg"))[:2]]
        assert len(pages) == 4
        rendered = MarkdownIt("commonmark").enable("table").render((out / "table.md").read_text())
        pages.append(out / "table.html")
        pages[-1].write_text(f"<html><body>{rendered}</body></html>")
        for page in pages:
            assert "data-ran" in page.read_text() or page.suffix == ".svg", f"{page.name} shows nothing of it"
            assert 'data-ran="yes"' not in opened(page, tmp_path / "profile", root=page.suffix[1:]), page.name


@dataclass(frozen=True)
class Field:
    """A value, or the name of one, in a document of a run: the file, the line of JSON Lines, where in the document."""

    file: Path
    line: int | None
    place: tuple[str | int, ...]
    is_name: bool

    def put(self, run: Path, payload: str) -> None:
        file = run / self.file
        lines = [file.read_text()] if self.line is None else file.read_text().splitlines()
        index = self.line or 0
        yaml_file = file.suffix == ".yaml"
        document = yaml.safe_load(lines[index]) if yaml_file else json.loads(lines[index])
        container, place = document, list(self.place)
        for part in place[:-1]:
            if not isinstance(container, (dict, list)) or (isinstance(container, dict) and part not in container):
                return  # a name above it was replaced before
            container = container[part]
        if not isinstance(container, (dict, list)) or (isinstance(container, dict) and place[-1] not in container):
            return
        if self.is_name:
            container[payload] = container[place[-1]]
        else:
            container[place[-1]] = payload
        lines[index] = yaml.safe_dump(document) if yaml_file else json.dumps(document)
        file.write_text("\n".join(lines) + ("" if self.line is None else "\n"))


def fields(run: Path) -> Iterator[Field]:
    """Every value and every name in the run's files; of lists the first item, of lines the first of the newest file."""
    files = [run / name for name in ("recipe.yaml", "environment.json", "initial_entropy.json", "metrics.jsonl")]
    files += [max((run / "samples").iterdir()), *sorted((run / "evaluation").rglob("*.json*"))]
    for file in files:
        line = 0 if file.suffix == ".jsonl" else None
        text = file.read_text()
        document = (
            yaml.safe_load(text) if file.suffix == ".yaml" else json.loads(text.splitlines()[0] if line == 0 else text)
        )
        for place in _places(document):
            for is_name in (False, True) if isinstance(place[-1], str) else (False,):
                yield Field(file.relative_to(run), line, place, is_name)


def _places(document: object, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = (
        document.items()
        if isinstance(document, dict)
        else [(0, document[0])]
        if document and isinstance(document, list)
        else ()
    )
    for key, value in items:
        yield (*above, key)
        yield from _places(value, (*above, key))


def is_taken(original: Path, run: Path, field: Field) -> bool:
    """Whether this copy of a run is read at all with the field replaced. Another error than ours is raised."""
    field.put(run, HOSTILE)
    folder = RunFolder(run)
    try:
        render([read_run(folder)], [])
        read_step(folder)
        for stored in find_evaluations(folder):
            stored.problems()
    except GtpoError:
        return False
    finally:
        shutil.copyfile(original / field.file, run / field.file)
    return True


def test_hostile_completions_do_nothing_in_report_and_inspection(real: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    shutil.copytree(real / "runs" / "one", run)
    stored = [*(run / "samples").glob("*.jsonl"), *(run / "evaluation").rglob("samples.jsonl")]
    assert len(stored) >= 4
    for file in stored:
        spoil(file)
    gtpo(tmp_path, ["report", "runs/one"])
    gtpo(tmp_path, ["inspect", "runs/one", "--step", "2", "--html"])
    pages = list((run / "report").rglob("*.html"))
    assert len(pages) == 2
    for page in pages:
        assert "data-ran" in page.read_text(), f"{page.name} does not show the completions"
        assert 'data-ran="yes"' not in opened(page, tmp_path / "profile"), page.name
