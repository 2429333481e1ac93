"""The base of all sections of a recipe, which are strict and frozen, and the types of their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from gtpo_cli.types import CodeName

_UNCOMPARED = {"run_name", "output_dir"}  # every run has its own
LARGEST = 2**31 - 1  # upper bound for any number, so that nothing overflows


def _without_nul(text: str) -> str:
    if "\0" in text:  # no file, model or column can have such a name
        raise ValueError("holds a NUL character")
    return text


NonEmpty = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True), AfterValidator(_without_nul)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are frozen.

    A number is finite, at most LARGEST, and not `true` or `false`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `true` and `false` as numbers, which Python would take for 1 and 0."""
        kinds = kinds_of(cls.model_fields[info.field_name or ""].annotation)
        if {int, float} & kinds and bool not in kinds and any(isinstance(one, bool) for one in _each(value)):
            raise ValueError("expected a number, not true or false")
        return value

    @field_validator("*")
    @classmethod
    def _not_too_large(cls, value: Any) -> Any:
        if any(isinstance(one, (int, float)) and one > LARGEST for one in _each(value)):
            raise ValueError(f"expected a number of at most {LARGEST}")
        return value

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Return the section with other values, by dotted key. They are not checked again."""
        changed: dict[str, Any] = {}
        for key, value in values.items():
            name, _, within = key.partition(".")
            changed[name] = changed.get(name, getattr(self, name)).with_values({within: value}) if within else value
        return self.model_copy(update=changed)


def kinds_of(annotation: Any) -> set[Any]:
    """Return the types in an annotation, at any depth."""
    inner = get_args(annotation)
    return set[Any]().union(*map(kinds_of, inner)) if inner else {annotation} if isinstance(annotation, type) else set()


def _each(value: Any) -> Iterator[Any]:
    """Yield a value, or the values in a list or a mapping, at any depth."""
    if not isinstance(value, (dict, list, tuple)):
        yield value
        return
    for one in value.values() if isinstance(value, dict) else value:
        yield from _each(one)


@cache
def fields_of(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return every dotted key of a section and of its subsections, with its field."""
    found: dict[str, FieldInfo] = {}
    for name, info in section.model_fields.items():
        found[name] = info
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= {f"{name}.{key}": field for key, field in fields_of(kind).items()}
    return found


def code_names(value: Any, key: str = "") -> Iterator[tuple[str, CodeName]]:
    """Yield (dotted key, name) of all code that a section or value of a recipe names."""
    if isinstance(value, CodeName):
        yield key, value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from code_names(getattr(value, name), f"{key}.{name}" if key else name)
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            yield from code_names(item, f"{key}.{number}")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from code_names(name, key)
            yield from code_names(item, f"{key}.{name}")


def recipe_differences(recipes: Sequence[BaseModel]) -> list[tuple[str, list[Any]]]:
    """Return (dotted key, its value in each recipe) for keys that differ, except run_name and output_dir."""
    flat = [dict(flatten(recipe.model_dump(mode="json"))) for recipe in recipes]
    keys = [key for key in dict.fromkeys(key for recipe in flat for key in recipe) if key not in _UNCOMPARED]
    rows = [(key, [recipe.get(key) for recipe in flat]) for key in keys]
    return [(key, values) for key, values in rows if any(value != values[0] for value in values)]


def flatten(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested mappings with its dotted key."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
