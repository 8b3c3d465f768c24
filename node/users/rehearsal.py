"""The rehearsal: the calls that `users = on` would refuse, while users are `prepare`.

Owns the rows by user, address and method, how many there are, and how often it reports each. Must
not know what becomes of a report.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from node.errors.common import NodeError

ROWS_MAX: Final = 100
AGAIN_MS: Final = 60_000
"""It reports a row at the first call, and then once in this time with the calls since."""
RECENT_MS: Final = 600_000
"""What was longer ago is no warning any more."""


@dataclass(slots=True)
class _Row:
    count: int = 0
    unseen_count: int = 0
    reported_unix_ms: int = 0
    last_unix_ms: int = 0


class Rehearsal:
    """One per node."""

    def __init__(self, unix_ms: Callable[[], int]) -> None:
        self._unix_ms = unix_ms
        self.on_row: Callable[[str, str, str, NodeError, int], None] = lambda *_: None
        """Called with user, address, call, the error that `on` would give, and the count."""
        self._rows: dict[tuple[str, str, str], _Row] = {}
        """The newest last."""

    def note(self, user: str, address: str, method: str, error: NodeError) -> None:
        """Count a call that `on` would refuse."""
        key, now_ms = (user, address, method), self._unix_ms()
        row = self._rows.pop(key, None) or _Row()
        self._rows[key] = row
        if len(self._rows) > ROWS_MAX:
            del self._rows[next(iter(self._rows))]
        row.count, row.unseen_count, row.last_unix_ms = row.count + 1, row.unseen_count + 1, now_ms
        if now_ms - row.reported_unix_ms >= AGAIN_MS:
            self.on_row(user, address, method, error, row.unseen_count)
            row.unseen_count, row.reported_unix_ms = 0, now_ms

    def warnings(self) -> tuple[str, ...]:
        """Return that there were such calls of late, if there were."""
        lo_ms = self._unix_ms() - RECENT_MS
        recent = {key: row for key, row in self._rows.items() if row.last_unix_ms > lo_ms}
        if not recent:
            return ()
        callers, count = {key[:2] for key in recent}, sum(row.count for row in recent.values())
        return (
            f"users = on would refuse calls of the last 10 minutes: {count} calls, {len(callers)} "
            "callers by user and address; 'qlog audit --refused' shows them",
        )
