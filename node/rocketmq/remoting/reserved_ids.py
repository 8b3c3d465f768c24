"""Client ids whose connection broke: for a while they are those of the address that they had.

Owns the rows and their bounds. Else a stranger that waits for the break takes the place of a
client, which cannot come back then. An address that has too many loses its own oldest ones first: a
stranger cannot fill the table. Must not know connections.
"""

from collections.abc import Callable
from typing import Final

from node.runtime.rows import remove_from

RESERVED_S: Final = 120.0
"""As long as a silent client is kept."""
COUNT_MAX: Final = 16_384
"""Rows of all addresses."""
OF_ADDRESS_MAX: Final = COUNT_MAX // 4
_Row = tuple[bool, str, str]
"""Whether it is a group of consumers, its name, and the client id."""


class ReservedIds:
    """The table. One per table of clients."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._rows: dict[_Row, tuple[str, float]] = {}
        """Address, and when it ends; the one that ends first is the first, as in the next table."""
        self._of_address: dict[str, dict[_Row, None]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def owner(self, row: _Row) -> str | None:
        """Return the address for which an id is reserved."""
        host, until_s = self._rows.get(row, (None, 0.0))
        return host if until_s > self._monotonic_s() else None

    def put(self, row: _Row, host: str) -> None:
        """Reserve the id of a client whose connection broke."""
        self.forget(row)
        self._rows[row] = host, self._monotonic_s() + RESERVED_S
        own = self._of_address.setdefault(host, {})
        own[row] = None
        if len(own) > OF_ADDRESS_MAX:
            self.forget(next(iter(own)))
        elif len(self._rows) > COUNT_MAX:
            largest = max(self._of_address, key=lambda host: len(self._of_address[host]))
            self.forget(next(iter(self._of_address[largest])))

    def forget(self, row: _Row) -> None:
        """Reserve an id no longer, if it is reserved."""
        reserved = self._rows.pop(row, None)
        if reserved is not None:
            remove_from(self._of_address, reserved[0], row)

    def expire(self) -> None:
        """Forget the rows that ended."""
        now_s = self._monotonic_s()
        while self._rows:
            row, (_, until_s) = next(iter(self._rows.items()))
            if until_s > now_s:
                break
            self.forget(row)
