"""What a file `matplotlibrc` in the folder where one stands can do to a chart: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DRAW = """
import sys
import numpy as np
from gtpo_cli.report.figures import Chart, Series, file_png, file_svg
x = np.arange(3.0)
chart = Chart("c", "reward_mean $x$", "", "step", "reward", "1", (Series("a", "#336699", "-", x, x),))
sys.stdout.write(file_svg(chart) + str(len(file_png(chart))))
"""
HOSTILE = (
    "text.usetex: True\ntext.latex.preamble: \\\\input{/etc/passwd}\nfont.size: 30\nbackend: module://evil\nnonsense\n"
)


def drawn(folder: Path, code: str = DRAW) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_a_matplotlibrc_where_one_stands_is_not_read(tmp_path: Path) -> None:
    plain = drawn(tmp_path)
    assert "<svg" in plain
    (tmp_path / "matplotlibrc").write_text(HOSTILE)
    assert drawn(tmp_path) == plain
    (tmp_path / "matplotlibrc").unlink()
    os.mkfifo(tmp_path / "matplotlibrc")
    assert drawn(tmp_path) == plain


def test_a_style_that_other_code_has_set_changes_no_chart_and_stays_its_own(tmp_path: Path) -> None:
    set_before = "import matplotlib\nmatplotlib.rcParams.update({'font.size': 30, 'text.usetex': True})\n"
    kept = "\nassert matplotlib.rcParams['font.size'] == 30"
    assert drawn(tmp_path, set_before + DRAW + kept) == drawn(tmp_path)
