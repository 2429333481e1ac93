"""Parse YAML text to plain values, without objects, duplicate keys or expansion attacks.

Three things in YAML can end a program: deep nesting (the C parser's stack overflows and the process dies), aliases of
aliases (a page of text that expands to billions of values), and an alias inside its own anchor (endless). A pass over
the text's events finds them before any value is built.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_DEPTH = 50
# Most characters of a text with every alias expanded; a value counts VALUE_SIZE plus its own text.
MAX_SIZE = 2**20
VALUE_SIZE = 64
MAX_INT_BITS = 1024

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the faster one if available


def parse_yaml(text: str) -> Any:
    """Parse the one document in `text`. Raises ValueError with the place and the problem in one line."""
    try:
        _check_bounds(text)
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {_said(error, text)}") from error


class _StrictLoader(_SafeLoader):  # type: ignore[misc]  # chosen at run time
    """A SafeLoader that reports the line of an unreadable value.

    It refuses duplicate keys and merge keys, with which YAML would silently overwrite values.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise ValueError(f"line {_line(key_node)}: merge keys (<<) are not read here; write the keys out")
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int, float)) and key in seen:
                raise ValueError(f"key {key!r} is written twice, line {_line(key_node)}")
            if isinstance(key, (str, int, float)):
                seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep=deep)
        try:
            value = super().construct_object(node, deep=deep)
        # PyYAML raises these for bad dates, numbers and tagged texts: !!bool maybe, 2001-13-45, !!int "".
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            kind = node.tag.rpartition(":")[2]
            raise ValueError(
                f"line {_line(node)}: {_shown(node.value)} is no {kind}; quote it if it is text"
            ) from error
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise ValueError(f"line {_line(node)}: the number {_shown(node.value)} is too large")
        return value


def _check_bounds(text: str) -> None:
    size = 0
    sizes: dict[str, int] = {}  # of each anchor's value
    opened: list[tuple[str | None, int]] = []  # anchor of each open list or mapping, size before it
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            assert event.anchor is not None
            if any(event.anchor == anchor for anchor, _ in opened):
                raise ValueError(f"line {_line(event)}: *{event.anchor} stands inside &{event.anchor}, without an end")
            size += sizes.get(event.anchor, VALUE_SIZE)  # the loader reports an unknown anchor
        elif isinstance(event, yaml.ScalarEvent):
            here = VALUE_SIZE + len(event.value)
            size += here
            if event.anchor is not None:
                sizes[event.anchor] = here
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, size))
            size += VALUE_SIZE
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = size - before
        if len(opened) > MAX_DEPTH:
            raise ValueError(f"line {_line(event)}: nested deeper than {MAX_DEPTH} levels")
        if size > MAX_SIZE:
            raise ValueError(f"line {_line(event)}: too many values up to here, those of aliases (*name) included")


def _line(place: Any) -> int:
    return int(place.start_mark.line) + 1


def _said(error: yaml.YAMLError, text: str) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).replace(' in "<unicode string>",', ",").split())
    line, column = error.problem_mark.line, error.problem_mark.column
    lines = text.splitlines()
    tab = "; indent by spaces, not tabs" if line < len(lines) and "\t" in lines[line] else ""
    return f"line {line + 1}, column {column + 1}: {error.problem}{tab}"


def _shown(text: str) -> str:
    return text if len(text) <= 40 and text.isprintable() else ascii(text[:37]) + "..."
