"""What all sections of a recipe share: strict, frozen, and the kinds of values they have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.fields import FieldInfo


class CodeName(str):
    """A function that a recipe asks for: `pkg.module:function` or `file.py:function`.

    `gtpo_cli.rewards.registry` imports nothing that is called otherwise, and `code_names` finds all of this type. So a
    new key that names code cannot pass by what is checked before a stranger's recipe is run.
    """

    __slots__ = ()


def _without_nul(text: str) -> str:
    if "\0" in text:  # no file, model or column can have such a name
        raise ValueError("holds a NUL character")
    return text


NonEmpty = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True), AfterValidator(_without_nul)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=1)]
Threads = Annotated[int, Field(ge=1, le=1024)]  # OpenMP ends the process where the system gives it no more threads


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are frozen, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


@cache
def fields_of(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Every dotted key of a section and of the sections in it, with its field."""
    found: dict[str, FieldInfo] = {}
    for name, info in section.model_fields.items():
        found[name] = info
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= {f"{name}.{key}": field for key, field in fields_of(kind).items()}
    return found


def code_names(value: Any, key: str = "") -> Iterator[tuple[str, CodeName]]:
    """(dotted key, name) of all the code that a section of a recipe, or what stands in one, asks for."""
    if isinstance(value, CodeName):
        yield key, value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from code_names(getattr(value, name), f"{key}.{name}" if key else name)
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            yield from code_names(item, f"{key}.{number}")
