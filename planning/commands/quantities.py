"""Amounts with units on the command line: sizes, rates, spans of time.

Owns one parser for each, and their types of options. Every amount has a unit but a plain size,
which is in bytes: a rate without one would be guessed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

_BINARY: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_DECIMAL: Final = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZES: Final = {"": 1, "B": 1, **_BINARY, **_DECIMAL}
_MESSAGES: Final = {"msg/s": 1, "kmsg/s": 10**3, "Mmsg/s": 10**6}
_BYTES: Final = {f"{unit}/s": size for unit, size in {"B": 1, **_BINARY, **_DECIMAL}.items()}
_BITS: Final = {"kbit/s": 125, "Mbit/s": 125_000, "Gbit/s": 125_000_000}
_SPANS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_NUMBER: Final = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z/]*)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoadRate:
    """A rate as it was given: of messages or of bytes of bodies, a second."""

    value: float
    is_bytes: bool

    def msgs_per_s(self, body_size_bytes: int) -> float:
        """Return messages a second. Raises ValueError for bytes of messages without a body."""
        if not self.is_bytes:
            return self.value
        if body_size_bytes == 0:
            raise ValueError("a rate in bytes needs bodies of at least 1 byte; give it in msg/s")
        return self.value / body_size_bytes


def parse_size(text: str) -> int:
    """Return the bytes of 4096, 1KiB, 64MiB, 1.5TiB, 10GB. Raises ValueError with these forms."""
    return round(_parse(text, _SIZES, "size", "4096, 1KiB, 64MiB, 1.5TiB or 10GB")[0])


def parse_rate(text: str) -> LoadRate:
    """Return the rate of 50000msg/s, 80MB/s, 1Gbit/s. Raises ValueError with these forms."""
    forms = "50000msg/s, 50kmsg/s, 80MB/s, 80MiB/s or 1Gbit/s"
    value, unit = _parse(text, {**_MESSAGES, **_BYTES, **_BITS}, "rate", forms)
    return LoadRate(value, is_bytes=unit not in _MESSAGES)


def parse_byte_rate(text: str) -> float:
    """Return the bytes a second of 125MB/s, 1Gbit/s. Raises ValueError with these forms."""
    rate = parse_rate(text)
    if not rate.is_bytes:
        raise ValueError(f"{text!r} counts messages; give 125MB/s, 120MiB/s or 1Gbit/s")
    return rate.value


def parse_span(text: str) -> float:
    """Return the seconds of 500ms, 10s, 5m, 2h, 7d. Raises ValueError with these forms."""
    return _parse(text, _SPANS, "span of time", "500ms, 10s, 5m, 2h or 7d")[0]


def _parse(text: str, units: Mapping[str, float], what: str, forms: str) -> tuple[float, str]:
    """Return the amount in the unit of 1, and its own unit."""
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is no {what}; give {forms}")
    return float(match[1]) * units[match[2]], match[2]


class Quantity(click.ParamType):  # type: ignore[type-arg]  # Generic in some versions only.
    """A type of options that is read by one of these parsers."""

    def __init__(self, name: str, parse: Any) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text of a command line."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE: Final = Quantity("size", parse_size)
RATE: Final = Quantity("rate", parse_rate)
BYTE_RATE: Final = Quantity("byte rate", parse_byte_rate)
SPAN: Final = Quantity("span", parse_span)
