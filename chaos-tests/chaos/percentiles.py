"""Percentiles of measured values."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of many values of one unit."""

    count: int
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles | None":
        """Return the percentiles of `values`; None without values."""
        if not values:
            return None
        ordered = sorted(values)
        return cls(
            len(ordered),
            ordered[(len(ordered) - 1) // 2],
            ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
            ordered[-1],
        )

    def __str__(self) -> str:
        return self.shown("ms")

    def shown(self, unit: str) -> str:
        """Return the percentiles as text, for people."""
        return f"p50 {self.p50:,.0f} {unit}, p99 {self.p99:,.0f} {unit}, max {self.max:,.0f} {unit}"
