"""Fill the template of a page."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gtpo_cli.text import counted

if TYPE_CHECKING:
    from jinja2 import Environment


def filled(package: str, template: str, **values: Any) -> str:
    """Render a package's template. All text is escaped, and a missing value is an error."""
    return _templates(package).get_template(template).render(values)


@cache
def _templates(package: str) -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    shared = PackageLoader("gtpo_cli.pages")
    loader = ChoiceLoader([PackageLoader(package), shared])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["counted"] = counted
    return environment
