"""The names that have series of their own, out of more than a page may show.

Owns who is among them, and what becomes of the counts of the others. Must not know what is counted.
"""

import heapq
from collections.abc import Mapping
from typing import Final

REST: Final = "(other)"
"""The label of all others together; no topic or group can have this name."""
_KEPT_SHARE: Final = 0.8
"""Share of its activity that a name keeps from one page to the next: the last five pages count."""
_STAYS_FACTOR: Final = 2
"""A name that has series gives them up to one that is twice as active, so few blink."""

Counts = tuple[int, ...]


class BusiestNames:
    """Chooses names by their counts, and adds those of all others up."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._shown: set[str] = set()
        self._activity: dict[str, float] = {}
        self._last: dict[str, Counts] = {}
        self._rest: Counts = ()

    def counters(self, counts: Mapping[str, Counts]) -> dict[str, Counts]:
        """Return the counts of the busiest names since the last page, and of `REST`.

        The counts of `REST` only grow: what a name had before it was shown stays in them, and what
        it had while it was shown is not added.
        """
        grown = {name: _grown(row, self._last.get(name)) for name, row in counts.items()}
        self._choose({name: sum(row) for name, row in grown.items()})
        if len(counts) > self._count_max:
            self._rest = self._rest or (0,) * len(next(iter(counts.values())))
            for name, row in grown.items():
                if name not in self._shown:
                    self._rest = tuple(map(sum, zip(self._rest, row, strict=True)))
        self._last = dict(counts)
        shown = {name: counts[name] for name in sorted(self._shown)}
        return shown | {REST: self._rest} if self._rest else shown

    def choose(self, activity: Mapping[str, float]) -> list[str]:
        """Return the most active names, sorted, of those in `activity` and no others."""
        self._choose(activity)
        return sorted(self._shown)

    def _choose(self, activity: Mapping[str, float]) -> None:
        before = self._activity
        self._activity = {
            name: before.get(name, 0.0) * _KEPT_SHARE + value for name, value in activity.items()
        }
        if len(activity) <= self._count_max:
            self._shown = set(activity)
            return
        shown = self._shown

        def order(row: tuple[str, float]) -> tuple[float, str]:
            name, value = row
            return -value * (_STAYS_FACTOR if name in shown else 1), name

        busiest = heapq.nsmallest(self._count_max, self._activity.items(), key=order)
        self._shown = {name for name, _ in busiest}


def _grown(row: Counts, last: Counts | None) -> Counts:
    """Return what was added since the last page; all of it where a count began again."""
    if last is None or any(new < old for new, old in zip(row, last, strict=True)):
        return row
    return tuple(new - old for new, old in zip(row, last, strict=True))
