"""The rehearsal: the calls that `users = on` would refuse, while users are `prepare`.

Owns the rows by user, address and method, how many there are, how often it reports each, and the
number of all calls of late. Must not know what becomes of a report.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from node.errors.common import NodeError

ROWS_MAX: Final = 100
AGAIN_MS: Final = 60_000
"""It reports a row at the first call, and then once in this time with the calls since; later where
the report is not taken."""
_MINUTE_MS: Final = 60_000
RECENT_MS: Final = 600_000
"""What was longer ago is no warning any more."""


@dataclass(slots=True)
class _Row:
    unseen_count: int = 0
    reported_unix_ms: int = 0
    last_unix_ms: int = 0


class Rehearsal:
    """One per node."""

    def __init__(self, unix_ms: Callable[[], int]) -> None:
        self._unix_ms = unix_ms
        self.on_row: Callable[[str, str, str, NodeError, int], bool] = lambda *_: True
        """Called with user, address, call, the error that `on` would give, and the count; returns
        whether it takes the report."""
        self.on_forgotten: Callable[[], None] = lambda: None
        """Called for a row that made room for another one, with calls that were not reported."""
        self._rows: dict[tuple[str, str, str], _Row] = {}
        """The newest last."""
        self._calls: Counter[int] = Counter()
        """All calls, by the minute."""

    def note(self, user: str, address: str, method: str, error: NodeError) -> None:
        """Count a call that `on` would refuse."""
        key, now_ms = (user, address, method), self._unix_ms()
        row = self._rows.pop(key, None) or _Row()
        self._rows[key] = row
        if len(self._rows) > ROWS_MAX and self._rows.pop(next(iter(self._rows))).unseen_count:
            self.on_forgotten()
        minute = now_ms // _MINUTE_MS
        if minute not in self._calls:
            self._forget_before(now_ms - RECENT_MS)
        self._calls[minute] += 1
        row.unseen_count, row.last_unix_ms = row.unseen_count + 1, now_ms
        is_due = now_ms - row.reported_unix_ms >= AGAIN_MS
        if is_due and self.on_row(user, address, method, error, row.unseen_count):
            row.unseen_count, row.reported_unix_ms = 0, now_ms

    def _forget_before(self, unix_ms: int) -> None:
        for minute in [one for one in self._calls if one < unix_ms // _MINUTE_MS]:
            del self._calls[minute]

    def warnings(self) -> tuple[str, ...]:
        """Return that there were such calls of late, if there were."""
        lo_ms = self._unix_ms() - RECENT_MS
        callers = {key[:2] for key, row in self._rows.items() if row.last_unix_ms > lo_ms}
        if not callers:
            return ()
        self._forget_before(lo_ms)
        at_least = "at least " if len(self._rows) == ROWS_MAX else ""
        return (
            f"users = on would refuse calls of the last 10 minutes: {self._calls.total()} calls, "
            f"{at_least}{len(callers)} callers by user and address; 'qlog audit --refused' shows "
            "them",
        )
