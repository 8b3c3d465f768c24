"""Options whose text is parsed here: by a function, what is a number, and points in time.

Owns the way from a ValueError to an error of the command line, and the rule for numbers: ASCII
digits, with a sign, a point and an exponent. Click hands their text to Python's `int` and `float`,
which also take digits of other scripts, underscores, blanks round them, `nan` and `inf`. A time is
ISO 8601, Unix seconds or milliseconds, or an age; without a zone it is of the zone of this machine,
as for `date`.
"""

import math
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
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


_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNIT_BITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}
_AGE = re.compile(r"-([0-9]{1,9})(ms|s|m|h|d)")
_UNIX_MS_MIN = 100_000_000_000  # Smaller numbers are seconds: as milliseconds, they are of 1973.


def parse_time(text: str, *, now_unix_ms: int | None = None) -> int:
    """Return milliseconds since 1970, 0 for a time before it: nothing was stored then. Raises
    ValueError, which names the accepted forms."""
    if age := _AGE.fullmatch(text):
        now = int(time.time() * 1000) if now_unix_ms is None else now_unix_ms
        return max(0, now - int(age[1]) * _UNIT_MS[age[2]])
    if re.fullmatch("[0-9]{1,18}", text):
        number = int(text)
        return number if number >= _UNIX_MS_MIN else number * 1000
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no time; give 2026-01-31T12:00:00Z, a Unix time in seconds or "
            "milliseconds, or an age such as -15m (ms, s, m, h, d)"
        ) from None


def parse_duration(text: str) -> int:
    """Return the milliseconds of 500ms, 10s, 5m, 2h, 1d. Raises ValueError with these forms."""
    match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration; give 500ms, 10s, 5m, 2h or 1d")
    return int(match[1]) * _UNIT_MS[match[2]]


def parse_size(text: str) -> int:
    """Return the bytes of 1000, 64KiB, 10MiB, 1GiB. Raises ValueError with these forms."""
    match = re.fullmatch(r"([0-9]{1,15})(B|KiB|MiB|GiB)?", text)
    if match is None:
        raise ValueError(f"{text!r} is no size; give 1000, 64KiB, 10MiB or 1GiB")
    return int(match[1]) << _UNIT_BITS[match[2] or "B"]


def parse_plot(text: str) -> Path:
    """Return the path of a plot that can be drawn. Raises ValueError, before the work whose
    result it shows, and ImportError without matplotlib, which is an extra."""
    from matplotlib.backend_bases import FigureCanvasBase

    path, kinds = Path(text), FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ValueError(f"{text!r} is no file of a plot; use .png, .svg or .pdf")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{text!r} is no file in a directory that exists")
    return path


PLOT: Final = Parsed("plot", parse_plot)
TIME: Final = Parsed("time", parse_time)
"""The types of an option."""


def duration_text(ms: int) -> str:
    """Return a duration as text, in the largest unit that expresses it exactly."""
    unit = next(name for name in ("d", "h", "m", "s", "ms") if ms % _UNIT_MS[name] == 0)
    return f"{ms // _UNIT_MS[unit]} {unit}"
