"""Pages derived from the code are up to date, and what the pages name exists."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from site_pages import ELSEWHERE, linked

from gtpo_cli.cli.app import app
from gtpo_cli.recipe import load_recipe, shipped_recipes

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("script", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("scripts/*/write_*.py")))
def test_written_pages_and_recipes_are_up_to_date(script: str) -> None:
    done = subprocess.run([sys.executable, script, "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_recipe_page_shows_a_recipe_with_every_default(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "recipe.md").read_text(), re.M | re.S)
    shown = shown.replace("  name:  #", "  name: a/b  #", 1)
    shown = shown.replace("  benchmark:\n", "  benchmark: gsm8k\n", 1)
    (tmp_path / "shown.yaml").write_text(shown)
    (tmp_path / "bare.yaml").write_text("model: {name: a/b}\ndata: {benchmark: gsm8k}\n")
    recipes = [load_recipe(str(tmp_path / name)).model_dump() for name in ("shown.yaml", "bare.yaml")]
    assert recipes[0] == recipes[1]
    keys = re.findall(r"^\s*(\w+):", shown, re.M)
    assert len(keys) > 100
    assert {"run_name", "format_drop", "log_completions_every"} <= set(keys)


def test_files_that_documents_name_exist() -> None:
    missing = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name in re.findall(
            r"`((?:docs|scripts|tests|benchmarks|recipes|examples|gtpo_cli)/[\w./-]+\.\w+)`", page.read_text()
        ):
            if not (ROOT / name).exists():
                missing.append(f"{page.name}: {name}")
    assert missing == []


def test_recipes_that_the_first_pages_name_load() -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "start.md").read_text()
    named = set(re.findall(r"--recipe ([\w.]+)", text)) - {"my.yaml"}
    assert {"tiny_arithmetic", "llama8b_gsm8k.yaml"} <= named
    for name in named:
        load_recipe(name)
        assert name.removesuffix(".yaml") in shipped_recipes()


def shell_lines(page: Path) -> list[str]:
    """What follows `gtpo` in the fences of a page, without their prompt, or behind `!` in a notebook."""
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(page.read_text())["cells"] if cell["cell_type"] == "code"]
        source = "\n".join("".join(cell["source"]) for cell in cells)
        settings = dict(re.findall(r'^([A-Z]+) = "?(\w+)', source, flags=re.M))
        return [line.format(**settings) for line in re.findall(r"^!gtpo (.*)", source, flags=re.M)]
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    shell = "\n".join(text for language, text in fences if not language).replace("\\\n", " ")
    return re.findall(r"^(?:\$ |\.venv/bin/)?gtpo (.*)", shell, flags=re.M)


SHOWN = [
    pytest.param(line, id=f"{page.name}: gtpo {line}")
    for pattern in ("README.md", "docs/*.md", "examples/*/README.md", "examples/*.ipynb")
    for page in sorted(ROOT.glob(pattern))
    for line in shell_lines(page)
]


@pytest.mark.parametrize("line", SHOWN)
def test_a_command_that_a_page_shows_exists_with_its_options(line: str) -> None:
    """The program's own parser takes it; nothing is run."""
    words = shlex.split(re.split(r" [|] |; ", line)[0], comments=True)
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands
        _, command, words = command.resolve_command(typer.Context(command), words)
    command.make_context("gtpo", words)


def test_the_notebooks_show_commands() -> None:
    pages = {line.id.partition(":")[0] for line in SHOWN}
    assert pages >= {"README.md", "start.md", "quickstart.ipynb", "llama8b_gsm8k.ipynb"}
    with pytest.raises(Exception, match="No such option"):
        test_a_command_that_a_page_shows_exists_with_its_options("eval --nonsense")


def test_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "start.md"):
        named = set(re.findall(r"make ([\w-]+)", page.read_text()))
        assert named <= targets, page.name


def links(text: str) -> list[str]:
    """The paths of the links of a page; none to other sites or within the page."""
    return [path for path in re.findall(r"\]\(([^)#\s]+)", text) if not re.match(r"\w+:", path)]


def test_readme_links_each_page_that_it_names_on_github_and_on_the_site() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"`[\w/]+\.(?:md|ipynb)`", text) == []
    on_github, on_site = links(text), links(linked(text, "index.md"))
    assert len(on_github) == len(on_site) > 25
    site = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.*")}
    site |= {place: ROOT / path for place, path in ELSEWHERE.items()}
    for here, there in zip(on_github, on_site, strict=True):
        assert (ROOT / here).is_file(), here
        assert site[there] == ROOT / here


def test_a_link_leads_from_its_place_in_the_repository_to_the_same_page_of_the_site() -> None:
    text = "[a](../../README.md), [b](https://a.b/c.md), [c](#d), `docs/trl.md`, `docs/no.md`, "
    text += "`scripts/gpu/README.md`, [e](../start.md#f)"
    assert linked(text, "claims/x.md") == (
        "[a](../index.md), [b](https://a.b/c.md), [c](#d), [`docs/trl.md`](../trl.md), `docs/no.md`, "
        "`scripts/gpu/README.md`, [e](../start.md#f)"
    )
    assert linked("[a](../../docs/data.md)", "json_extraction.md") == "[a](data.md)"  # stands in examples/


def test_code_on_the_site_ends_before_the_right_edge() -> None:
    """The site shows 84 characters of a block at 1600 pixels; the paper's prompt is as long."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in pages:
        for block in re.findall(r"^```\w*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
            assert not [line for line in block.splitlines() if len(line) > 84], page.name


def test_every_page_stands_in_the_site_s_navigation_or_is_led_to_from_it() -> None:
    nav = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(nav) == sorted({*nav})
    assert [page for page in nav if page.startswith("claims")] == ["claims.md"]
    reached, todo = set(ELSEWHERE), [page for page in nav if page not in ELSEWHERE]
    while todo:
        page = todo.pop()
        reached.add(page)
        text = linked((ROOT / "docs" / page).read_text(encoding="utf-8"), page)
        led = {posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) for path in links(text)}
        todo += [path for path in led - reached if path.endswith(".md")]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - reached == set()
