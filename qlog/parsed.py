"""Options whose text a function parses.

Owns the way from its ValueError to an error of the command line.
"""

from collections.abc import Callable
from typing import Any

import click


class Parsed(click.ParamType):  # type: ignore[type-arg]  # Generic in some versions only.
    """What a function returns of a text, or why it raises ValueError."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name, self._parse = name, parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)
