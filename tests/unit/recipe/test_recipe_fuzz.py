"""Whatever stands in a file or behind --set: a Recipe comes out, or a RecipeError that says where. Never anything else.

GTPO_FUZZ_EXAMPLES=20000 tries more than the few hundred of a normal run.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe, build_recipe, dump_recipe, load_recipe
from gtpo_cli.recipe.section import kinds_of

pytestmark = pytest.mark.slow
EXAMPLES = os.environ.get("GTPO_FUZZ_EXAMPLES")  # so many new ones; else the same 200 each time
fuzz = settings(
    max_examples=int(EXAMPLES or 200),
    derandomize=EXAMPLES is None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SMALLEST = "model: {name: builtin:tiny}\ndata: {benchmark: arithmetic, max_prompt_tokens: 64}\n"


def loaded(content: bytes | str, overrides: Iterable[str] = ()) -> Recipe | RecipeError:
    """What load_recipe makes of a file with this content; any other exception fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "r.yaml")
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        outcome = _outcome(file, overrides)
    if isinstance(outcome, RecipeError):
        assert outcome.problems
        for problem in outcome.problems:
            assert problem.startswith((f"{file}: ", "--set")), problem
            assert "\n" not in problem
            assert len(problem) < 1000
    else:  # what a run stores is what a resumed run reads
        assert build_recipe(yaml.safe_load(dump_recipe(outcome)), where="dumped") == outcome
    return outcome


def _outcome(file: Path, overrides: Iterable[str]) -> Recipe | RecipeError:
    try:
        return load_recipe(file, overrides)
    except RecipeError as error:
        return error


def keys_of(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, annotation, default) of every key that holds a value."""
    for name, info in model.model_fields.items():
        kinds = () if get_origin(info.annotation) is tuple else (info.annotation, *get_args(info.annotation))
        sections = [kind for kind in kinds if _is_section(kind)]
        if not sections:
            yield (
                prefix + name,
                info.annotation,
                None if info.is_required() else info.get_default(call_default_factory=True),
            )
        for section in sections:
            yield from keys_of(section, f"{prefix}{name}.")


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


KEYS = list(keys_of())
NUMBERS = st.integers() | st.integers(0, 100) | st.floats() | st.floats(0, 1) | st.sampled_from([10**400, -(10**40)])
WORDS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["", "1e400", "0x10", "nan", "a\0b", "~"])
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS | st.dates() | st.binary(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=6,
)


def right_kinds(annotation: Any, default: Any) -> st.SearchStrategy[Any]:
    """Values that the key takes, or would take but for its bounds."""
    literals = [word for kind in (annotation, *get_args(annotation)) if get_origin(kind) is not None
                for word in get_args(kind) if isinstance(word, str)]  # fmt: skip
    plain = [list(default) if isinstance(default, tuple) else default, *literals]
    others = {int: st.integers(1, 10), float: st.floats(0.01, 0.99), bool: st.booleans()}
    kinds = set() if isinstance(default, dict) else kinds_of(annotation)  # a number within a mapping is no value of it
    return st.one_of(st.sampled_from(plain), *(values for kind, values in others.items() if kind in kinds))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A few keys of the schema with values that are mostly of the right kind, now and then a section of any kind."""
    document: dict[str, Any] = {"model": {"name": "some/model"}, "data": {"benchmark": "gsm8k"}}
    for dotted, annotation, default in draw(st.lists(st.sampled_from(KEYS), max_size=6)):
        *sections, name = dotted.split(".")
        here: Any = document
        for section in sections:
            here = here.setdefault(section, {})
            if not isinstance(here, dict):
                break
        else:
            right = draw(st.integers(0, 3))
            here[name] = draw(right_kinds(annotation, default) if right else VALUES)
    if not draw(st.integers(0, 4)):
        document[draw(st.sampled_from(list(Recipe.model_fields)) | WORDS)] = draw(VALUES)
    return document


@fuzz
@given(documents())
def test_documents_of_the_schemas_own_keys(document: dict[str, Any]) -> None:
    loaded(yaml.safe_dump(document, allow_unicode=True))


@fuzz
@given(st.sampled_from([key for key, _, _ in KEYS]), VALUES)
def test_one_wrong_value_is_named_by_its_key(key: str, value: Any) -> None:
    outcome = loaded(SMALLEST, [f"{key}={yaml.safe_dump(value, default_flow_style=True)}"])
    if isinstance(outcome, RecipeError):
        # what two keys decide together is told under one of them; a number that YAML cannot hold, under its line
        told_elsewhere = {"data.benchmark": "data.path", "training.keep_best": "eval_every"}
        words = (key, told_elsewhere.get(key, key), "cannot be read")
        assert any(word in problem for problem in outcome.problems for word in words)


PIECES = [
    *"model data name benchmark rewards plugins seed extends builtin:tiny arithmetic model: data: : ? { } [ ]".split(),
    *"| ! !!int !!float !!bool !!timestamp !!binary !!set !!omap !!pairs !!null !!python/name:os.system !x".split(),
    *"<<: &a *a &b *b ' \" > # ~ = 1 0x 0b1 1e9999 .inf .nan 1:59 2001-99-99 --- ... %YAML \\ud800 \\x41 é 𝄞".split(),
    " ", ", ", ": ", "- ", "\n", "\n  ", "\n\t", "\0", "\x85", "\u2028", "\ufeff", "\x1b[0m",
]  # fmt: skip
TEXTS = st.text() | st.builds(str.join, st.sampled_from(["", " "]), st.lists(st.sampled_from(PIECES), max_size=25))


KEY_TEXTS = st.sampled_from([key for key, _, _ in KEYS]) | st.lists(
    st.sampled_from(["model", "lora", "seed", "rewards", "", " ", "a.b", "=", "\0", "\udce9"]), max_size=4
).map(".".join)
OVERRIDES = st.builds(
    lambda key, separator, value: key + separator + value,
    KEY_TEXTS | st.text(),
    st.sampled_from(["=", "=", "=", "", " = ", "=="]),
    TEXTS | VALUES.map(lambda value: str(yaml.safe_dump(value, default_flow_style=True))),
)


@fuzz
@given(st.lists(OVERRIDES, max_size=4))
def test_any_overrides(overrides: list[str]) -> None:
    loaded(SMALLEST, overrides)


def test_the_examples_reach_recipes_and_errors() -> None:
    """Else the properties above would hold of nothing: of 200 documents some must be valid and some not."""
    outcomes: list[type] = []

    @settings(max_examples=200, database=None, derandomize=True, deadline=None)
    @given(documents())
    def count(document: dict[str, Any]) -> None:
        outcomes.append(type(loaded(yaml.safe_dump(document, allow_unicode=True))))

    count()
    assert outcomes.count(Recipe) >= 10
    assert outcomes.count(RecipeError) >= 20


def laughs(levels: int) -> str:
    """The billion laughs: each anchor stands for ten times the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: " + "[" * 100_000 + "]" * 100_000, "line 1: nested deeper than 50 levels"),
        ("a: " + "{a: " * 100_000 + "1" + "}" * 100_000, "line 1: nested deeper than 50 levels"),
        ("".join(" " * depth + "a:\n" for depth in range(300)), "line 51: nested deeper than 50 levels"),
        (laughs(9) + "seed: *a8\n", "line 5: too many values up to here"),
        ("a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 20 + "]\n", "line 2: too many values up to here"),
        ("model: &m {name: x, lora: *m}\n", "line 1: *m stands inside &m"),
        ("model: *m\n", "is not YAML: line 1, column 8: found undefined alias"),
        ("model: {<<: {name: x}}\n", "line 1: merge keys (<<) are not read here"),
        ("seed: 1\nmodel:\n\tname: x\n", "is not YAML: line 3, column 1: found character that cannot start any token"),
        ("model:\n\tname: x\n", "indent by spaces, not tabs"),
        ("seed: 0x" + "f" * 5000 + "\n", "line 1: the number '0xfff"),
        ("seed: " + "9" * 5000 + "\n", "line 1: '9999"),
        ("seed: 1" + ":59" * 3000 + ".5\n", "is no float; quote it if it is text"),
        ("\nseed: 2001-13-45\n", "line 2: 2001-13-45 is no timestamp"),
        ("seed: !!bool perhaps\n", "line 1: perhaps is no bool"),
        ("seed: !!int ''\n", "is no int"),
        ("seed: 1\0\n", "control characters are not allowed"),
        ("1: 2\n", "the key 1 is not text"),
        ('"\\e[31m\\n": 2\n', "\\x1b[31m\\n: unknown key"),
        ('output_dir: "a\\0b"\n', "output_dir: holds a NUL character"),
        ("extends: r.yaml\n", "the recipe extends itself"),
        ("extends: " + "x" * 5000 + "\n", "cannot be looked up (File name too long)"),
        ("extends: .\n", "is a folder; name the recipe's file"),
        ("extends: ''\n", "expected the name of a recipe, got ''"),
        ("extends: [a]\n", "expected the name of a recipe, got ['a']"),
        ("# " + "x" * 2**20 + "\n", "is larger than 1 MiB, too large for a recipe"),
    ],
)  # fmt: skip
def test_texts_that_could_end_the_program_are_named_at_once(text: str, words: str) -> None:
    started = time.perf_counter()
    outcome = loaded(text)
    assert time.perf_counter() - started < 2
    assert isinstance(outcome, RecipeError)
    assert words in str(outcome)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252", "shift_jis"])
def test_other_encodings(encoding: str) -> None:
    text = SMALLEST + ("" if encoding.startswith("utf") else "run_name: " + {"shift_jis": "日"}.get(encoding, "é"))
    outcome = loaded(text.encode(encoding))
    if encoding == "utf-8-sig":
        assert isinstance(outcome, Recipe)
    else:
        assert isinstance(outcome, RecipeError)
        assert "is not UTF-8 text" in str(outcome)
        assert str(outcome).endswith("save it as UTF-8")
