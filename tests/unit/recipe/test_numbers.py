"""Every number of a recipe and of a sweep's file, by walking over the schema: what is no sensible number is an error in
a line that names the file and the key, never another exception, and never taken for another number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.recipe.section import LARGEST, kinds_of
from gtpo_cli.tools.sweep.spec import SweepFile, load_sweep

RECIPE: dict[str, Any] = {"model": {"name": "some/model"}, "data": {"benchmark": "gsm8k"}}
SWEEP: dict[str, Any] = {"recipe": "tiny_arithmetic", "variants": {"a": {}}}
# What no numeric key takes; YAML's own spelling of a number with an exponent is text.
NONSENSE = [math.inf, -math.inf, math.nan, True, False, 1e308, -1e308, "1e308", 1e400, 2**63, 10**300, -(10**300),
            LARGEST + 1, "many", [], {}]  # fmt: skip


def numbers_of(
    section: type[BaseModel], path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], bool]]:
    """Where the numeric keys stand, and whether they are lists; through sections, and lists of sections."""
    for name, info in section.model_fields.items():
        parts = (info.annotation, *get_args(info.annotation))
        inner = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
        listed = get_origin(info.annotation) is tuple
        for one in inner:
            yield from numbers_of(one, (*path, name, *([0] if listed else [])))
        kinds = kinds_of(info.annotation)
        if not inner and {int, float} & kinds and bool not in kinds:
            yield (*path, name), listed


def placed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """A document that holds the value there, and in a list of sections what they need beside it."""
    needed = {"plugins": {"name": "a:b"}}
    for index in reversed(range(len(path))):
        part = path[index]
        value = [needed[str(path[index - 1])] | value] if part == 0 else {part: value}
    assert isinstance(value, dict)
    return value


def merged(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    both = base.keys() & top.keys()
    return base | top | {key: merged(base[key], top[key]) for key in both if isinstance(base[key], dict)}


KEYS = dict(numbers_of(Recipe))
SWEEP_KEYS = dict(numbers_of(SweepFile))


def test_the_walk_reaches_every_kind_of_key() -> None:
    assert len(KEYS) > 50
    named = "seed model.lora.alpha rewards.plugins.0.weight optimizer.betas evaluation.pass_k"
    assert {*named.split(), "training.micro_batch_size"} <= {".".join(map(str, path)) for path in KEYS}
    assert SWEEP_KEYS.keys() == {("seeds",), ("window",), ("seconds",), ("jobs",), ("tune", "seeds")}
    assert SWEEP_KEYS[("seeds",)]
    assert not SWEEP_KEYS[("seconds",)]


def refused(problems: list[str], file: str, path: tuple[str | int, ...]) -> None:
    """One line names file and key; others may say what that value does to keys that depend on it."""
    key = ".".join(map(str, path))
    assert all("\n" not in problem and len(problem) < 300 for problem in problems), problems
    assert any(problem.startswith((f"{file}: {key}: ", f"{file}: {key}.")) for problem in problems), problems


@pytest.mark.parametrize("path", KEYS, ids=lambda path: ".".join(map(str, path)))
def test_no_numeric_key_of_a_recipe_takes_nonsense(path: tuple[str | int, ...]) -> None:
    for value in NONSENSE:
        written = [value, 0.5] if path == ("optimizer", "betas") else [value] if KEYS[path] else value
        written = {"gsm8k": value} if path == ("data", "mixture") else written
        written = {"rate": [0.5, value]} if path == ("data", "where") else written
        with pytest.raises(RecipeError) as caught:
            build_recipe(merged(RECIPE, placed(path, written)), where="r.yaml")
        refused(caught.value.problems, "r.yaml", path)


@pytest.mark.parametrize("path", SWEEP_KEYS, ids=".".join)
def test_no_numeric_key_of_a_sweep_takes_nonsense(path: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    for value in [*NONSENSE, -1, None if path != ("seconds",) else 0]:
        written = [value] if SWEEP_KEYS[path] else value
        changes = {path[0]: written} if path[0] != "tune" else {"tune": {"values": [1e-4, 2e-4], path[1]: written}}
        file.write_text(yaml.safe_dump(SWEEP | changes))
        with pytest.raises(RecipeError) as caught:
            load_sweep(str(file))
        problems = caught.value.problems
        if not re.search(
            "cannot be read|has no digits|too many", problems[0]
        ):  # YAML's reader was first, with its line
            refused(problems, str(file), path)
        assert len(problems) == 1, "a second line that says something untrue of a list"


def test_a_figure_is_compared_with_a_number(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(SWEEP | {"figures": {"a": "ever entropy/mean > 1e999"}}))
    with pytest.raises(RecipeError, match=r"figures\.a: compares with 1e999, which is no finite number"):
        load_sweep(str(file))
