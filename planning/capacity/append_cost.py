"""The cost of a batch as a sum: so much for the batch, for each message, and for each byte.

Owns the fit to measured points. A cost is never negative: the best fit is searched among all
choices of terms, of which there are seven, so that a term without influence is left out instead of
being balanced by a negative one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

from planning.capacity.figure import counted

_TERMS: Final = 3
_SINGULAR: Final = 1e-12
_FLOOR_SHARE: Final = 0.1
"""Share of the cheapest measured batch that every other one costs at least."""


class CostPoint(NamedTuple):
    """A measured cost of a batch, in seconds."""

    message_count: int
    size_bytes: int
    """Bodies of the batch."""
    seconds: float


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Seconds of a batch of `count` messages with `size_bytes` of bodies."""

    batch_s: float
    message_s: float
    byte_s: float
    floor_s: float = 0.0
    """Cost below which no batch is: a sum without a constant term would make empty bodies free."""

    def seconds(self, count: int, size_bytes: int) -> float:
        """Return the cost of a batch."""
        cost_s = self.batch_s + self.message_s * count + self.byte_s * size_bytes
        return max(cost_s, self.floor_s)

    def msgs_per_s(self, count: int, body_size_bytes: int) -> float:
        """Return the rate when batches follow each other without a pause."""
        return count / self.seconds(count, count * body_size_bytes)

    def formula(self, count: int, body_size_bytes: int) -> str:
        """Return the sum in words with the numbers put in, in microseconds."""
        return (
            f"{self.batch_s * 1e6:.4g} us a batch + {counted(count, 'messages')} x "
            f"{self.message_s * 1e6:.4g} us + {count * body_size_bytes:,} B x "
            f"{self.byte_s * 1e9:.4g} ns"
        )


def fit(points: Sequence[CostPoint]) -> BatchCost:
    """Return the cost whose relative errors at the points have the least squares.

    Raises ValueError without a point, or for a point without a cost.
    """
    if not points or any(point.seconds <= 0 for point in points):
        raise ValueError("a cost is fitted to measured points above 0 s, and there are none")
    # Divided by the measured value, an error of 10 % counts as much for a small batch as for a
    # large one.
    rows = [(1 / p.seconds, p.message_count / p.seconds, p.size_bytes / p.seconds) for p in points]
    best: tuple[float, tuple[float, ...]] | None = None
    for used_count in range(1, min(_TERMS, len(points)) + 1):
        for used in combinations(range(_TERMS), used_count):
            coefficients = _least_squares([[row[at] for at in used] for row in rows])
            if coefficients is None or min(coefficients) < 0:
                continue
            terms = [0.0] * _TERMS
            for at, value in zip(used, coefficients, strict=True):
                terms[at] = value
            error = sum(
                (sum(x * term for x, term in zip(row, terms, strict=True)) - 1) ** 2 for row in rows
            )
            if best is None or error < best[0] - _SINGULAR:
                best = (error, tuple(terms))
    assert best is not None, "one positive column always has a fit"
    batch_s, message_s, byte_s = best[1]
    floor_s = _FLOOR_SHARE * min(point.seconds for point in points)
    return BatchCost(batch_s, message_s, byte_s, floor_s)


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """Return x for which rows times x comes nearest to ones; None if several x do."""
    size = len(rows[0])
    # Columns of equal length: bytes and batches differ by six orders of magnitude.
    scale = [sum(row[at] ** 2 for row in rows) ** 0.5 for at in range(size)]
    if min(scale) == 0:
        return None
    scaled = [[value / scale[at] for at, value in enumerate(row)] for row in rows]
    table = [
        [sum(row[i] * row[j] for row in scaled) for j in range(size)]
        + [sum(row[i] for row in scaled)]
        for i in range(size)
    ]
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(table[row][at]))
        if abs(table[pivot][at]) < _SINGULAR:
            return None
        table[at], table[pivot] = table[pivot], table[at]
        for row in range(size):
            if row != at:
                factor = table[row][at] / table[at][at]
                table[row] = [x - factor * y for x, y in zip(table[row], table[at], strict=True)]
    return [table[at][size] / table[at][at] / scale[at] for at in range(size)]
