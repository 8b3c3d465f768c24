"""The newest messages of many queues, found from their ends backwards, within bounds.

Owns how far a look goes, and that it says so. Must not know a page.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from qlog.console.rows import Row, rows_of

if TYPE_CHECKING:
    import quorumlog
    from quorumlog.admin.types import QueueInfo

_LOOK_S: Final = 0.5
"""Time after which a look begins no more reads."""
_LOOK_SIZE_BYTES: Final = 16 << 20
"""Size of all that a look reads, about."""
_READ_SIZE_BYTES: Final = 1 << 20
_AT_ONCE: Final = 4
_WINDOW_MAX: Final = 4_096
"""Messages of one queue that are looked at in one step; a step is four times the one before."""


@dataclass(slots=True)
class _End:
    """A queue, of which the offsets [lo, end_offset) were looked at."""

    queue: "QueueInfo"
    lo: int
    newest_unix_ms: int
    """No message before `lo` was stored later."""
    window: int = 1
    found_count: int = 0


@dataclass(slots=True)
class Newest:
    """What a look found."""

    rows: list[Row] = field(default_factory=list)
    """The newest first."""
    looked_count: int = 0
    message_count: int = 0
    """Messages that the queues have."""
    is_complete: bool = False
    """Whether no newer message was left out."""


class Look:
    """Bounds of one look: it may begin another read as long as `has_room`."""

    def __init__(self, client: "quorumlog.Client", topic: str, wanted: dict[str, Any]) -> None:
        """`wanted`: the filter, as `pull` takes it."""
        self._client, self._topic, self._wanted = client, topic, wanted
        self._end_s, self._left_size_bytes = time.monotonic() + _LOOK_S, _LOOK_SIZE_BYTES

    @property
    def has_room(self) -> bool:
        """Whether time and size allow another read."""
        return time.monotonic() < self._end_s and self._left_size_bytes > 0

    async def forward(
        self, queue: "QueueInfo", lo: int, hi: int, count: int
    ) -> tuple[list[Row], int]:
        """Return messages from an offset on, and the offset up to which it looked."""
        found: list[Row] = []
        while lo < hi and len(found) < count and self.has_room:
            batch = await self._client.pull(
                self._topic, queue.queue_id, lo,
                max_count=min(count - len(found), hi - lo), max_size_bytes=_READ_SIZE_BYTES,
                broker_group=queue.broker_group, **self._wanted,
            )  # fmt: skip
            self._left_size_bytes -= batch.size_bytes
            kept = [one for one in batch if one.queue_offset < hi]
            found += await asyncio.to_thread(rows_of, kept)
            lo = max(lo + 1, min(batch.next_offset, hi))
        return found, lo

    async def newest(self, queues: "Sequence[QueueInfo]", count: int) -> Newest:
        """Return the newest messages of all queues."""
        result = Newest(message_count=sum(one.end_offset - one.first_offset for one in queues))
        ends = [_End(one, one.end_offset, one.last_store_unix_ms) for one in queues]
        while self.has_room:
            is_full = len(result.rows) == count
            oldest_ms = result.rows[-1].store_unix_ms if is_full else -1
            ends = [
                end
                for end in ends
                if end.lo > end.queue.first_offset
                and end.found_count < count
                and end.newest_unix_ms > oldest_ms
            ]
            if not ends:
                result.is_complete = True
                break
            ends.sort(key=lambda end: (end.window, -end.newest_unix_ms))
            found = await asyncio.gather(*(self._step(end, count) for end in ends[:_AT_ONCE]))
            for rows, looked_count in found:
                result.rows += rows
                result.looked_count += looked_count
            result.rows.sort(key=attrgetter("store_unix_ms", "log_position"), reverse=True)
            del result.rows[count:]
        return result

    async def _step(self, end: _End, count: int) -> tuple[list[Row], int]:
        """Look at the next messages before those of the last step."""
        hi = end.lo
        lo = max(end.queue.first_offset, hi - end.window)
        found: list[Row] = []
        at = lo
        while at < hi and self.has_room:
            rows, at = await self.forward(end.queue, at, hi, count)
            found = [*found, *rows][-count:]
        if at < hi:
            return [], 0  # What is missing is the newest.
        window_max = _WINDOW_MAX if any(self._wanted.values()) else count - len(found)
        end.lo, end.window = lo, max(1, min(4 * end.window, window_max))
        if found:
            end.found_count += len(found)
            end.newest_unix_ms = min(one.store_unix_ms for one in found)
        return found, hi - lo
