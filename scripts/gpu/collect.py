"""Write docs/gpu/ from the results of a campaign: python scripts/gpu/collect.py RESULTS

RESULTS is the folder `results` that campaign.py made on the GPU machine. It becomes docs/gpu/CARD-DATE.json; a second
campaign of that card and day adds its stages. Of each such file a page is written, with a figure of the run that
learns, and the table of what has run on which card, in docs/gpu/README.md and docs/engines.md. Without RESULTS the
pages are only written again.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from campaign import STAGES

ROOT = Path(__file__).resolve().parents[2]
CARDS = ("H100", "H200")  # these have a row in any case
COLUMNS = {
    "contracts": "tests against the CPU", "learns": "a real model learns", "decode": "speed of decoding, 8B",
    "full": "the paper's recipe, 8B", "card24": "the same on 24 GB", "full16": "the same in 16 bits",
    "peers": "beside TRL and Unsloth's GRPO", "others": "other engines",
}  # fmt: skip
BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    folder = arguments.docs / "gpu"
    folder.mkdir(exist_ok=True)
    if arguments.results is not None:
        add(arguments.results, folder)
    records = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
    for name, record in records.items():
        curve = record["stages"].get("learns", {}).get("tables", {}).get("curve")
        if curve:
            draw(curve, folder / f"{name}.png")
        page = written(record, figure=f"{name}.png" if curve else None)
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
    said = [
        "# What GPUs showed", "", *cards(records, ""), "",
        "Each date leads to the figures. `scripts/gpu/README.md` says how to run it again.",
    ]  # fmt: skip
    (folder / "README.md").write_text("\n".join(said) + "\n", encoding="utf-8")
    engines = arguments.docs / "engines.md"
    before, _, rest = engines.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    inside = "\n".join([BEGIN, "", *cards(records, "gpu/"), "", END])
    engines.write_text(before + inside + after, encoding="utf-8")


def add(results: Path, folder: Path) -> None:
    """The results of a campaign to those of its card and day. What ended well stays."""
    machine = json.loads((results / "machine.json").read_text(encoding="utf-8"))
    name = re.sub(r"[^a-z0-9]+", "-", f"{machine['card']} {machine['date']}".lower())
    file = folder / f"{name}.json"
    stages: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["stages"] if file.is_file() else {}
    for stage in STAGES:
        result = results / f"{stage.name}.json"
        if result.is_file() and stages.get(stage.name, {}).get("ended") != "well":
            stages[stage.name] = json.loads(result.read_text(encoding="utf-8"))
    file.write_text(json.dumps(machine | {"stages": stages}, indent=1) + "\n", encoding="utf-8")


def cards(records: dict[str, dict[str, Any]], folder: str) -> list[str]:
    """What has run on which card."""
    others = {record["card"] for record in records.values() if not any(card in record["card"] for card in CARDS)}
    rows = []
    for card in (*CARDS, *sorted(others)):
        row = {"card": card}
        for stage, column in COLUMNS.items():
            cells = [
                f"[{record['date']}]({folder}{name}.md){_how(record['stages'][stage])}"
                for name, record in records.items()
                if card in record["card"] and stage in record["stages"]
            ]
            row[column] = "; ".join(cells) or "nobody yet"
        rows.append(row)
    return table(rows)


def _how(result: dict[str, Any]) -> str:
    ended = result.get("ended", "cut off")
    return "" if ended == "well" else f", {ended}"


def written(record: dict[str, Any], *, figure: str | None) -> str:
    """The page of a card and a day, in Markdown."""
    driver = f" Driver {record['driver']}." if record.get("driver") else ""
    commit = f" gtpo at `{record['commit'][:12]}`." if record.get("commit") else ""
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    lines = [f"# {record['card']}, {record['date']}", "", f"{versions}.{driver}{commit}"]
    lines += ["", *(f"- {note}" for note in record.get("notes", ()))] if record.get("notes") else []
    lines += ["", "| stage | ended | seconds | |", "|---|---|---|---|"]
    run = [(stage, record["stages"][stage.name]) for stage in STAGES if stage.name in record["stages"]]
    for stage, result in run:
        ended, what = result.get("ended", "cut off"), result.get("what", stage.what)  # what it was then
        lines.append(f"| {stage.name} | {ended} | {result.get('seconds', '')} | {what} |")
    for stage, result in run:
        lines += ["", f"## {stage.name}", *_section(result, figure if stage.name == "learns" else None)]
    return "\n".join(lines) + "\n"


def _section(result: dict[str, Any], figure: str | None) -> list[str]:
    lines: list[str] = []
    for note in result.get("notes", ()):
        lines += ["", note]
    if result.get("figures"):
        rows = [{"figure": f["name"], "measured": f"{f['value']:.4g} {f['unit']}".strip()} for f in result["figures"]]
        lines += ["", *table(rows)]
    for title, rows in result.get("tables", {}).items():
        if title == "curve" and figure is not None:
            lines += ["", f"![Reward, accuracy, format and entropy of each step]({figure})"]
        elif rows:
            lines += ["", f"**{title}**", "", *table(rows)]
    if failed := result.get("failed"):
        lines += ["", "What failed:", "", *(f"- {each}" for each in failed)]
    if commands := result.get("commands"):
        ends = [f"{each['seconds']} s, exit code {each['code']}" if "code" in each else "cut off" for each in commands]
        lines += ["", *(f"- `{each['command']}`: {end}" for each, end in zip(commands, ends, strict=True))]
    return lines


def table(rows: list[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        cells = (row.get(name, "") for name in names)
        shown = ("" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in shown) + " |")
    return lines


def draw(curve: list[dict[str, float]], file: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    steps = [row["step"] for row in curve]
    left.plot(steps, [row["train/reward_mean"] for row in curve], label="reward")
    for key, label in (
        ("train/accuracy_rate", "accuracy"),
        ("train/strict_format_rate", "strict format"),
        ("entropy/mean", "entropy (nats)"),
    ):
        right.plot(steps, [row[key] for row in curve], label=label)
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.set_ylim(0)
        axes.legend()
    figure.savefig(file, dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main()
