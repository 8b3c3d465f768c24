"""A figure of a plan: key, value, and the formula in words with the numbers put in.

Owns the form of figures and how an amount is written; must not know what is computed.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

Part = Literal["size", "rate", "disk", "network", "memory", "hosts", "time", "failures"]

_BINARY: Final = ((1 << 50, "PiB"), (1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"))
_DECIMAL: Final = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
_SPANS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_BINARY_FROM: Final = 4096
"""Sizes below this are told in bytes: they are sums that a reader checks."""
_UNITS: Final = {
    "_msgs_per_s": "msg/s", "_bytes_per_s": "B/s", "_size_bytes": "B", "_bytes_per_msg": "B",
    "_s": "s", "_s_max": "s",
}  # fmt: skip
"""Units by the ends of names; a longer end comes before its own."""


@dataclass(frozen=True, slots=True)
class CapacityFigure:
    """One line of a plan. `value` None: there is no finite value; the formula says why."""

    part: Part
    name: str
    """Stable key, with its unit or what is counted."""
    value: float | None
    formula: str

    @property
    def unit(self) -> str:
        """B, B/s, msg/s, s, or the noun that is counted."""
        counted = self.name.partition("_for_")[0]
        if counted.endswith("_count"):
            return f"{counted.removesuffix('_count')}s"
        units = (unit for end, unit in _UNITS.items() if self.name.endswith(end))
        return next(units, counted.rpartition("_")[2])

    @property
    def text(self) -> str:
        """The value as people read it, with a unit that suits its size."""
        return "never" if self.value is None else amount(self.value, self.unit)


def figures(part: Part, **values: tuple[float | None, str]) -> list[CapacityFigure]:
    """Return figures of one part: value and formula by name."""
    return [CapacityFigure(part, name, *figure) for name, figure in values.items()]


def amount(value: float, unit: str) -> str:
    """Return an amount as text: bytes in binary units, bytes a second in decimal ones."""
    match unit:
        case "B" if value >= _BINARY_FROM:
            return _scaled(value, _BINARY, 1 << 10, "KiB")
        case "B/s":
            return _scaled(value, _DECIMAL, 1.0, "B/s")
        case "s":
            return _scaled(value, _SPANS, 1.0, "s")
        case "B" | "msg/s":
            return f"{number(value)} {unit}"
        case _:
            return counted(value, unit)


def counted(count: float, nouns: str) -> str:
    """Return a count with what is counted, given as in a key and in the plural: 1 broker group."""
    words = nouns.replace("_", " ")
    if count == 1:
        words = re.sub("(?:(ie)s|s)$", lambda end: "y" if end[1] else "", words)
    return f"{number(count)} {words}"


def number(value: float) -> str:
    """Return a number with four digits that count, or all of a whole one, and commas."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _scaled(
    value: float, units: "tuple[tuple[float, str], ...]", smallest: float, name: str
) -> str:
    for size, text in units:
        if value >= size:
            return f"{value / size:.4g} {text}"
    return f"{value / smallest:.4g} {name}"
