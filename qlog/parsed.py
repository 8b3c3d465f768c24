"""Options whose text is parsed here: by a function, and what is a number.

Owns the way from a ValueError to an error of the command line, and the rule for numbers: ASCII
digits, with a sign, a point and an exponent. Click hands their text to Python's `int` and `float`,
which also take digits of other scripts, underscores, blanks round them, `nan` and `inf`.
"""

import math
import re
from collections.abc import Callable
from typing import Any, Final

import click
from click import types

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


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


def integer(value: object) -> int:
    """Return the integer that a text means. Raises ValueError."""
    return int(_checked(value, _INTEGER))


def number(value: object) -> float:
    """Return the number that a text means. Raises ValueError."""
    parsed = float(_checked(value, _NUMBER))
    if math.isinf(parsed):
        raise ValueError(f"{value!r} is too large; use a number below 1e308")
    return parsed


def _checked(value: object, form: re.Pattern[str]) -> str:
    if form.fullmatch(str(value)) is None:
        raise ValueError(f"{value!r} is no number; use the digits 0 to 9")
    return str(value)


def make_strict() -> None:
    """Let all options of Click follow the rule, those with a range too."""
    types.IntParamType._number_class = staticmethod(integer)  # type: ignore[assignment]
    types.FloatParamType._number_class = staticmethod(number)  # type: ignore[assignment]
