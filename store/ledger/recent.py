"""Bodies of the newest entries, as they were checked and written, for the dispatch that follows.

Owns the bytes and their bound; must not know what is in them. Entries are dispatched soon after
they were written, and at that time the bytes that were stamped or checked are still at hand: taking
them saves reading, copying and checking the same bytes a second time. The bodies are a cache of the
log: all others are read from the files.

One thread, that of the ledger's writer, adds and takes.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from store import format as fmt

RECENT_SIZE_BYTES_MAX: Final = 8 << 20
"""As much as a leader has in flight to a follower; more is left over only while dispatch is
stopped."""

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES


class RecentBodies:
    """Bodies of entries that hold records, in log order."""

    __slots__ = ("_bodies", "_size_bytes", "is_kept")

    def __init__(self) -> None:
        self.is_kept = False
        """Whether bodies are kept, for a reader on the thread that adds."""
        self._bodies: deque[tuple[int, bytes]] = deque()
        """(position of the entry, its records)."""
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    def add(self, position: int, body: bytes) -> None:
        """Keep the records of the entry at `position`, which was just written."""
        if not self.is_kept:
            return
        self._bodies.append((position, body))
        self._size_bytes += len(body)
        while self._size_bytes > RECENT_SIZE_BYTES_MAX:
            self._drop_first()

    def runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position of the first record, records) of the entries from `lo` up to `hi`, as far
        as they are kept and follow each other; forget the bodies before `lo`.
        """
        bodies = self._bodies
        while bodies and bodies[0][0] < lo:
            self._drop_first()
        for position, body in bodies:
            end = position + _HEADER + len(body)
            if position != lo or end > hi:
                return
            yield position + _HEADER, body
            lo = end

    def clear(self) -> None:
        """Forget all: the log is cut."""
        self._bodies.clear()
        self._size_bytes = 0

    def _drop_first(self) -> None:
        _, body = self._bodies.popleft()
        self._size_bytes -= len(body)
