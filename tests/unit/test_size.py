"""What scripts/measure/size.py counts as code."""

from __future__ import annotations

from pathlib import Path

from size import Size, code_lines, size_of

SOURCE = '''"""Of the module,
in two lines."""

import os  # code with a comment


class A:
    """Of the class."""

    # a comment
    text = """a text
    of two lines"""


def b() -> str:
    "Of the function."
    return os.sep
'''


def test_blank_lines_comments_and_docstrings_are_no_code(tmp_path: Path) -> None:
    assert code_lines(SOURCE) == 6  # import, class, two lines of text, def, return
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "b.py").write_text("x = 1\n")
    assert size_of(sorted(tmp_path.glob("*.py"))) == Size(2, 18, 7)
