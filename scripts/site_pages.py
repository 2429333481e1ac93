"""What mkdocs.yml adds to docs/ for the site, so that each page is written once, as one reads it in the repository.

Pages that stand elsewhere come along, and where a page names another one as `docs/objective.md`, the site has a link.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Outside of ``` fences: links to docs/ lead from there, names of pages become links, and a list may follow a line
    of text, as it may in the repository (Python-Markdown wants an empty line between)."""
    parts = FENCED.split(markdown)
    parts[::2] = [_linked(LIST_AFTER_TEXT.sub(r"\1\n\n", part)) for part in parts[::2]]
    return "".join(parts)


def _linked(text: str) -> str:
    return re.sub(r"`([\w/]+\.md)`", _link, text.replace("](docs/", "]("))


def _link(name: re.Match[str]) -> str:
    path = name.group(1)
    page = PAGE_OF.get(path) or path.removeprefix("docs/")
    return f"[{name.group()}]({page})" if (ROOT / path).is_file() else name.group()
