"""Pages in headless Chromium: what a page must be at three widths, under the pointer, on paper and without scripts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-quic",
]  # fmt: skip
WIDTHS = (390, 768, 1400)  # a phone, a tablet, a desktop

# What is wrong with the page at its width, in words. A box that scrolls is looked at from within, scrolled to its end.
MEASURE = """() => {
  const wrong = [];
  const say = (what, element) => wrong.push(`${what}: ${element.tagName} ${element.textContent.trim().slice(0, 40)}`);
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("the page is wider than the window");
  document.querySelectorAll("details").forEach(details => { details.open = true; });
  for (const box of document.querySelectorAll(".scroll")) box.scrollLeft = box.scrollWidth;
  for (const element of document.querySelectorAll("body *")) {
    const { left, right, width } = element.getBoundingClientRect();
    if (!width || element.closest("svg, script, style, .u-over, .u-under")) continue;
    if (!element.parentElement.closest(".scroll") && (left < -0.5 || right > innerWidth + 0.5)) say("outside", element);
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.offsetWidth) continue;
    const box = (table.closest(".scroll") ?? document.body).getBoundingClientRect();
    const columns = [...table.rows[0].cells].map(cell => cell.getBoundingClientRect());
    const [first, last] = [columns[0], columns.at(-1)];
    if (!table.closest(".scroll")) say("no box of its own", table);
    if (first.left < box.left - 1 || first.right > box.right || first.width < 20) say("first column is away", table);
    if (last.right > box.right + 1 || last.right < first.right) say("no last column", table);
    for (const cell of table.querySelectorAll("th, td")) {
      const place = cell.getBoundingClientRect(), text = document.createRange();
      text.selectNodeContents(cell);
      const { width, left, right } = text.getBoundingClientRect();
      if (width && (left < place.left - 1 || right > place.right + 1)) say("text over its cell", cell);
      const column = columns[cell.cellIndex];
      if (cell.colSpan === 1 && Math.abs(place.left - column.left) + Math.abs(place.right - column.right) > 1) {
        say("out of its column", cell);
      }
    }
  }
  const boxes = [...document.querySelectorAll("figure, article")].map(box => [box, box.getBoundingClientRect()]);
  boxes.forEach(([box, one], index) => boxes.slice(index + 1).forEach(([, other]) => {
    const beside = one.right <= other.left || other.right <= one.left;
    if (!beside && one.bottom > other.top && other.bottom > one.top) say("overlaps", box);
  }));
  return wrong;
}"""

# How many pixels of a canvas have this colour, or any.
PAINTED = """(canvas, colour) => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  const wanted = colour && [1, 3, 5].map(place => parseInt(colour.slice(place, place + 2), 16));
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    const near = () => data[i + 3] > 128 && wanted.every((value, band) => Math.abs(data[i + band] - value) < 8);
    count += wanted ? near() : data[i + 3] > 0;
  }
  return count;
}"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """While it is open, nothing else in this thread may run an event loop."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def silent(browser: Browser) -> Iterator[Page]:
    """A page that must say nothing on its console: no error, no violation of its security policy."""
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    page.close()
    assert said == []


def check_widths(page: Page, file: Path) -> None:
    """Nothing clipped, nothing over another, columns in place."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(file.as_uri())
        assert page.locator("table").count() > 0
        assert page.evaluate(MEASURE) == [], f"{file.name} at {width}"


def check_curves(page: Page, file: Path) -> None:
    """Each figure is painted once, tells the values under the pointer, and hides a curve whose name is pressed."""
    page.set_viewport_size({"width": 768, "height": 900})
    page.goto(file.as_uri())
    assert page.locator(".hint").is_visible()
    figures = page.locator("figure").all()
    assert len(figures) >= 8
    for figure in figures:
        chart = json.loads(figure.locator("script").inner_text())
        assert figure.locator("canvas").evaluate(PAINTED, None) > 1000
        _hover_shows_the_value(page, figure, chart)
        _a_name_hides_its_curve(figure, chart)


def check_without_scripts(browser: Browser, file: Path) -> None:
    """Each figure names its file, which is there."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    figures = page.locator("figure").all()
    assert len(figures) >= 8
    for figure in figures:
        assert (file.parent / figure.locator("noscript").inner_text().rpartition(": ")[2]).is_file()
    assert page.locator("canvas:visible, .hint:visible").count() == 0
    context.close()


def check_paper(browser: Browser, file: Path) -> None:
    """Each chart is a picture within its figure, dark on white also where the screen is dark."""
    context = browser.new_context(viewport={"width": 700, "height": 900}, color_scheme="dark")
    page = context.new_page()
    page.goto(file.as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_timeout(300)
    for figure in page.locator("figure").all():
        canvas, box = figure.locator("canvas"), figure.bounding_box()
        picture = canvas.bounding_box()
        assert picture is not None
        assert box is not None
        assert picture["width"] > 150
        assert picture["height"] > 100
        assert picture["x"] + picture["width"] <= box["x"] + box["width"] + 1
        assert canvas.evaluate(PAINTED, "#1b1f24") > 0  # the axes' text
    assert page.locator(".hint:visible").count() == 0
    context.close()


def _hover_shows_the_value(page: Page, figure: Locator, chart: dict[str, Any]) -> None:
    place, cells = figure.locator("thead th"), figure.locator("tbody tr").first.locator("td")
    assert place.first.inner_text().startswith(f"last {chart['x']} ")
    figure.locator(".u-over").hover()
    at = int(place.first.inner_text().removeprefix(f"{chart['x']} "))
    heads = place.all_inner_texts()[1:]
    told = dict(zip(heads, cells.all_inner_texts(), strict=True))
    for part in chart["series"][0]["parts"]:
        for column in part["columns"]:
            value, _, where = told[column["name"]].partition(" at ")
            if value:  # a mark is told when the pointer is near it
                true = column["values"][part["x"].index(int(where or at))]
                shown = float(value.removesuffix("\u00a0%")) / (100 if chart["unit"] is None else 1)
                assert shown == pytest.approx(true, rel=6e-3)
            assert value or column["kind"] == "dots"
    page.mouse.move(0, 0)
    assert place.first.inner_text().startswith(f"last {chart['x']} ")


def _a_name_hides_its_curve(figure: Locator, chart: dict[str, Any]) -> None:
    """The last one, since no other is painted over it; the row of a level comes behind it."""
    series, canvas = chart["series"][-1], figure.locator("canvas")
    row = figure.locator("tbody tr").nth(len(chart["series"]) - 1)
    button, colour = row.locator("button"), series["colour"]
    assert button.inner_text() == series["label"]
    whole = canvas.evaluate(PAINTED, colour)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert canvas.evaluate(PAINTED, colour) == 0 < whole
    assert not "".join(row.locator("td").all_inner_texts())
    button.press("Enter")
    assert canvas.evaluate(PAINTED, colour) == whole
