"""What all sections of a recipe share: strict, frozen, and the kinds of values they have."""

from __future__ import annotations

from functools import cache
from typing import Annotated, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.fields import FieldInfo


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
