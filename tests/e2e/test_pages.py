"""The pages that commands write, in headless Chromium: at three widths, in the dark, on paper and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import small_runs
from browsers import (
    CHROMIUM,
    MEASURE,
    PAINTED,
    WIDTHS,
    check_curves,
    check_paper,
    check_widths,
    check_without_scripts,
    chromium,
    silent,
)
from playwright.sync_api import Browser, Page

NAMES = ("tiny_arithmetic-20261122-151646", "tiny_arithmetic-20261122-151732")  # as long as the default
SMALL = [
    "rollout.prompts_per_step=1", "rollout.group_size=2", "rollout.max_completion_tokens=24",
    "objective.initial_entropy=0.16", "data.limit=64",
]  # fmt: skip
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: make browser installs Debian's")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What `report` of two runs and `inspect` write."""
    folder = tmp_path_factory.mktemp("pages")
    runs = [f"runs/{name}" for name in NAMES]
    # 84 steps, so that the line is a mean of two of them; the other run is shorter
    for name, steps, objective in zip(NAMES, (84, 10), ("gtpo", "grpo"), strict=True):
        changes = [*SMALL, f"run_name={name}", f"training.max_steps={steps}", f"objective.name={objective}"]
        changes += ["training.eval_every=10", "evaluation.limit=2", "training.save_every=84"]
        small_runs.gtpo(folder, ["train", "-q", "-r", "tiny_arithmetic", *(p for c in changes for p in ("--set", c))])
    k64 = ["--pass-k", "64", "--maj-k", "64", "--limit", "1"]
    small_runs.gtpo(folder, ["eval", runs[0], *k64, "--base"])
    small_runs.gtpo(folder, ["eval", runs[1], *k64])
    small_runs.gtpo(folder, ["report", *runs, "--out", "report"])
    small_runs.gtpo(folder, ["inspect", runs[0], "--html", "--out", "inspect.html"])
    return {"report": folder / "report" / "report.html", "inspect": folder / "inspect.html"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with silent(browser) as page:
        yield page


def test_nothing_is_clipped_or_out_of_place_at_any_width(pages: dict[str, Path], page: Page) -> None:
    for file in pages.values():
        check_widths(page, file)


def test_every_curve_is_painted_tells_its_values_and_can_be_hidden(pages: dict[str, Path], page: Page) -> None:
    check_curves(page, pages["report"])
    assert page.locator("#accuracy, #entropy, #length, #arithmetic_pass_at_k, #arithmetic_maj_at_k").count() == 5
    heads = page.locator("#accuracy thead th").all_inner_texts()
    assert heads == ["last step 84", "step", "mean", "arithmetic test"]


def test_paper_shows_each_figure_and_a_browser_without_scripts_names_its_file(
    pages: dict[str, Path], browser: Browser
) -> None:
    check_without_scripts(browser, pages["report"])
    check_paper(browser, pages["report"])


def test_the_measure_sees_what_is_wrong(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    cells = "".join(f"<td style='white-space: nowrap'>column {n}</td>" for n in range(9))
    row = "<tr><th>a name</th><td>1</td><td style='display: inline-block; width: 3px'>2</td></tr>"
    page.set_content(f"<table><tr><th>model</th>{cells}</tr>{row}</table>")
    wrong = " ".join(page.evaluate(MEASURE))
    for what in ("wider than the window", "outside", "no box of its own", "no last column", "out of its", "over its"):
        assert what in wrong


def test_k_64_is_on_the_page_beside_names_of_the_default_length(pages: dict[str, Path], page: Page) -> None:
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(pages["report"].as_uri())
        box = page.locator(".scroll", has_text="k = 64").first
        name = box.locator("th.name", has_text=NAMES[1]).first
        before = name.bounding_box()
        room = box.evaluate("box => box.scrollWidth - box.clientWidth")
        assert (room > 0) == (width < 1400), "the table scrolls in its box where it must"
        box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
        last = name.locator("xpath=..").locator("td").last.bounding_box()
        assert before is not None
        assert last is not None
        assert name.bounding_box() == before, "it stays while the figures scroll beside it"
        assert before["x"] + before["width"] <= last["x"]
        assert last["x"] + last["width"] <= width
        assert before["width"] < 0.5 * width


def test_steps_between_are_zoomed_on_every_curve_over_steps(pages: dict[str, Path], page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(pages["report"].as_uri())
    over = page.locator("#accuracy .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    x, y = [box["x"] + part * box["width"] for part in (0.5, 0.75)], box["y"] + box["height"] / 2
    other = page.locator("#length canvas")
    whole = other.evaluate("canvas => canvas.toDataURL()")
    page.mouse.move(x[0], y)
    page.mouse.down()
    page.mouse.move(x[1], y, steps=3)
    page.mouse.up()
    page.mouse.move(box["x"], y)
    assert 40 <= int(page.locator("#accuracy thead th").first.inner_text().removeprefix("step ")) <= 46
    assert page.locator("#length thead th").first.inner_text().startswith("step 4")
    assert other.evaluate("canvas => canvas.toDataURL()") != whole
    over.dblclick()
    assert other.evaluate("canvas => canvas.toDataURL()") == whole


def test_the_page_in_the_dark_is_drawn_for_the_dark(pages: dict[str, Path], page: Page) -> None:
    page.goto(pages["report"].as_uri())
    canvas = page.locator("#entropy canvas")
    light, dark = "#1b1f24", "#e4e8ec"  # --text: of the axes' numbers
    page.emulate_media(color_scheme="light")
    assert canvas.evaluate(PAINTED, light) > 50 > canvas.evaluate(PAINTED, dark)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"canvas => ({PAINTED})(canvas, '{dark}') > 50", arg=canvas.element_handle())
    assert canvas.evaluate(PAINTED, light) < 50
