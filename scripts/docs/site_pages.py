"""What mkdocs.yml adds to docs/ for the site, so that each page is written once, as one reads it in the repository.

Files that stand elsewhere come along, links lead to where they stand on the site, and a page that is only named, as
`docs/objective.md`, becomes a link. The search leaves out the pages of claims: they would answer every question.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "index.md": "README.md",
    "SECURITY.md": "SECURITY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "json_extraction.md": "examples/json_extraction/README.md",
    "quickstart.ipynb": "examples/quickstart.ipynb",
    "LICENSE": "LICENSE",
}
PAGE_OF = {path: page for page, path in ELSEWHERE.items()}
LIST_AFTER_TEXT = re.compile(r"^(?![-|#]|\s)(.+)\n(?=- )", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)[^)#\s]+")  # the path of a link that stays in the repository
NAME = re.compile(r"`([\w/]+\.md)`")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    from mkdocs.structure.files import File

    for place, path in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Outside of ``` fences: links lead to where the site has what they name, names of pages become links, and a list
    may follow a line of text, as it may in the repository (Python-Markdown wants an empty line between)."""
    if page.file.src_uri.startswith("claims"):
        page.meta["search"] = {"exclude": True}
    parts = FENCED.split(markdown)
    parts[::2] = [linked(LIST_AFTER_TEXT.sub(r"\1\n\n", part), page.file.src_uri) for part in parts[::2]]
    return "".join(parts)


def linked(text: str, page: str) -> str:
    """Return the text of a page of the site, with links from there. Text and names are as in the repository."""
    source = posixpath.dirname(ELSEWHERE.get(page, f"docs/{page}"))

    def place(path: str) -> str:
        return posixpath.relpath(PAGE_OF.get(path, path.removeprefix("docs/")), posixpath.dirname(page) or ".")

    def link(name: re.Match[str]) -> str:
        on_site = name[1] in PAGE_OF or (name[1].startswith("docs/") and (ROOT / name[1]).is_file())
        return f"[{name[0]}]({place(name[1])})" if on_site else name[0]

    text = LINK.sub(lambda target: place(posixpath.normpath(posixpath.join(source, target[0]))), text)
    return NAME.sub(link, text)
