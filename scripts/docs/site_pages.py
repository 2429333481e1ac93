"""What mkdocs.yml adds to docs/ for the site, so that each page is written once, as one reads it in the repository.

Pages that stand elsewhere come along, and where a page names another one as `docs/objective.md`, the site has a link.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "index.md": "README.md",
    "SECURITY.md": "SECURITY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "json_extraction.md": "examples/json_extraction/README.md",
}
PAGE_OF = {path: page for page, path in ELSEWHERE.items()}
LIST_AFTER_TEXT = re.compile(r"^(?![-|#]|\s)(.+)\n(?=- )", re.MULTILINE)
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    for page, path in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Outside of ``` fences: links to docs/ lead from there, names of pages become links, and a list may follow a line
    of text, as it may in the repository (Python-Markdown wants an empty line between)."""
    folder = posixpath.dirname(page.file.src_uri)
    parts = FENCED.split(markdown)
    parts[::2] = [_linked(LIST_AFTER_TEXT.sub(r"\1\n\n", part), folder) for part in parts[::2]]
    return "".join(parts)


def _linked(text: str, folder: str) -> str:
    def link(name: re.Match[str]) -> str:
        path = name.group(1)
        target = posixpath.relpath(PAGE_OF.get(path) or path.removeprefix("docs/"), folder or ".")
        return f"[{name.group()}]({target})" if (ROOT / path).is_file() else name.group()

    return re.sub(r"`([\w/]+\.md)`", link, text.replace("](docs/", "]("))
