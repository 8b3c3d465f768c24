"""Where queues begin of which a consumer has no offset: its start is a moment, not a first sight.

Owns what was there at the start; must not know how offsets are stored. A position is for the queues
of the start. What comes later (a topic that grows or is made again, a broker group) holds messages
from after the start alone, and begins at the first of them.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final

from quorumlog.consume.reads import ReadCalls, Reading
from quorumlog.records.options import END, FIRST, Position, parse_position
from quorumlog.records.queues import Queue

START_MS: Final = 2_000  # Wait for the other groups before reading continues without them.


class Starts:
    """The start of one consumer."""

    def __init__(self, position: Position) -> None:
        self._position: Position = position
        self.is_first: Final = parse_position(position) == FIRST
        self.begun: set[tuple[str, str]] = set()
        """(broker group, topic) of which the consumer, or its group, has offsets from before: its
        queues without an offset came later."""
        self._began_s = self._began_unix_s = 0.0
        self._groups: frozenset[str] = frozenset()
        self._counts: dict[tuple[str, str], int] = {}
        """Queues that were there at the start, by broker group and topic."""

    def begin(self, groups: Iterable[str]) -> None:
        """Note the moment, and the broker groups that the client knows then."""
        self._began_s, self._began_unix_s = asyncio.get_running_loop().time(), time.time()
        self._groups = frozenset(groups)

    def see(self, group: str, topics: Iterable[str], queues: Sequence[Queue]) -> None:
        """Note all queues that a broker group has of some topics, before one of them begins."""
        for topic in topics:
            count = sum(queue.topic == topic for queue in queues)
            if count and group in self._groups:
                self._counts.setdefault((group, topic), count)
            else:  # What has this name later came after the start.
                self._counts[group, topic] = 0

    async def offsets(
        self, reads: ReadCalls, queues: Sequence[Queue], reading: Reading
    ) -> dict[Queue, int]:
        """Return where each of these queues begins; they were seen before."""
        old = [queue for queue in queues if self._is_old(queue)]
        position = self._position
        passed_s = asyncio.get_running_loop().time() - self._began_s
        if position == END and passed_s > START_MS / 1000:
            # The end of now lies behind messages of after the start.
            position = f"@{int(self._began_unix_s * 1000)}"
        later = [queue for queue in queues if not self._is_old(queue)]
        positions = await reads.positions(old, position, reading)
        return positions | await reads.positions(later, FIRST, reading)

    def _is_old(self, queue: Queue) -> bool:
        place = (queue.broker_group, queue.topic)
        return queue.queue_id < self._counts.get(place, 0) and place not in self.begun
