"""Check that every module imports only lower floors and its own package, and no tool another tool.

`python scripts/check_layers.py`

The floors are those of docs/architecture.md. Imports inside functions count too: where a thing is imported changes
when it is loaded, not what depends on it.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = "gtpo_cli"
ROOT = Path(__file__).resolve().parent.parent

FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "types", "seeds", "text", "entropy_filter"),
    ("recipe", "kernels", "hub"),
    ("objective", "runs", "terminal"),
    ("tracking", "tasks"),
    ("rewards",),
    ("data", "estimators"),
    ("job",),
    ("policy",),
    ("evaluation",),
    ("training",),
    ("machine",),
    ("pages",),
    ("tools", "api"),
    ("cli",),
    ("__main__",),
)
TOOLS = "tools"  # each of its packages is a leaf
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def imported_modules(source: str) -> list[tuple[int, str]]:
    """(line, module below the package) of every import of the package in a module's source."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
            if node.module == PACKAGE:
                names = [f"{PACKAGE}.{alias.name}" for alias in node.names]
            elif node.module == f"{PACKAGE}.{TOOLS}":
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{PACKAGE}.<relative>"]
        else:
            continue
        found += [(node.lineno, name.partition(".")[2]) for name in names if name.startswith(PACKAGE + ".")]
    return found


def violations(package: Path) -> list[str]:
    """One line for each import that goes up or sideways, and each room that no floor names."""
    problems = []
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        room = parts[0]
        if room == "__init__":
            continue
        if room not in FLOOR_OF:
            problems.append(f"{file.relative_to(package.parent)}: {room} stands on no floor; add it to FLOORS")
            continue
        for line, module in imported_modules(file.read_text(encoding="utf-8")):
            where, target = f"{file.relative_to(package.parent)}:{line}", module.split(".")[0]
            if target == "__version__":
                continue
            if target == room:
                if room == TOOLS and module.split(".")[1:2] != list(parts[1:2]):
                    problems.append(f"{where}: the tool {parts[1]} imports {module}, another tool")
            elif FLOOR_OF.get(target, len(FLOORS)) >= FLOOR_OF[room]:
                problems.append(
                    f"{where}: {room} (floor {FLOOR_OF[room]}) imports {target} (floor {FLOOR_OF.get(target, 'none')})"
                )
    return problems


def main() -> int:
    problems = violations(ROOT / PACKAGE)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} imports against the floors")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
