"""What was handed out and is not processed yet, by the task or thread that took it.

Owns the rule: a delivery is processed once its reader takes the next one, and that of a reader that
has ended without an error once any other takes one. Must not know how offsets are stored. Threads
other than that of the loop may take deliveries.
"""

import asyncio
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

from quorumlog.records.message import MessageBatch
from quorumlog.records.queues import Queue

LOOK_COUNT_MIN: Final = 64
LOOK_S: Final = 0.02
Reader = asyncio.Task[Any] | threading.Thread | None
Span = tuple[Queue, int, int, int]
"""A delivery: its queue, the offsets of its first and its last message, and their count."""


class InHand:
    """The deliveries of one consumer. No batch is kept but the newest one: readers are many."""

    def __init__(self) -> None:
        self.reader: Reader = None
        self.last: tuple[Queue, int, MessageBatch | None, Reader] | None = None
        """The newest delivery, with its reader: mostly there is no other one. It is in `_others`
        before it is replaced, and another thread looks here first."""
        self._look_count = LOOK_COUNT_MIN
        """Count of other readers at which those that have ended are forgotten."""
        self._others: Final = dict[Reader, Span]()
        self.asking: Final = set[Reader]()
        """Readers that wait for their turn to take the next delivery: the last one is processed."""

    def take(
        self, reader: Reader, queue: Queue, offset: int, batch: MessageBatch | None = None
    ) -> None:
        """Note a delivery; the one before of its reader is processed."""
        if reader is not self.reader:
            if self.last is not None:
                self._others[self.reader] = _span(*self.last[:3])
            self.last, self.reader = None, reader
            self._others.pop(reader, None)
            if len(self._others) >= self._look_count:
                self._forget_ended()
                self._look_count = max(LOOK_COUNT_MIN, 2 * len(self._others))
        self.last = queue, offset, batch, reader

    def put_down(self, reader: Reader) -> None:
        """Count the delivery of a reader as processed."""
        if reader is self.reader:
            self.last = None
        self._others.pop(reader, None)

    def has_turn(self, reader: Reader) -> None:
        """Note that a reader in `asking` takes its next delivery now."""
        self.put_down(reader)
        self.asking.discard(reader)

    def put_down_all(self) -> None:
        """Count all deliveries as processed."""
        self.last = None
        self._others.clear()

    def drop(self, queues: Collection[Queue]) -> None:
        """Forget the deliveries of some queues, processed or not."""
        if self.last is not None and self.last[0] in queues:
            self.last = None
        for reader, (queue, *_) in self._others.copy().items():
            if queue in queues:
                self._others.pop(reader, None)

    def offsets(self, *, without: Reader = None) -> dict[Queue, int]:
        """Return the first offset in hand of each queue, or that of all readers but one."""
        first = dict[Queue, int]()
        for reader, (queue, offset, *_) in self._all().items():
            if without is None or reader is not without:
                first[queue] = min(offset, first.get(queue, offset))
        return first

    def reader_of(self, queue: Queue, offsets: Collection[int]) -> tuple[Reader] | None:
        """Return the reader whose delivery is of these offsets of a queue; None: there is none."""
        wanted = queue, min(offsets), max(offsets), len(offsets)
        for reader, span in self._all().items():
            if span == wanted:
                return (reader,)
        return None

    def _all(self) -> dict[Reader, Span]:
        last = self.last
        self._forget_ended()
        every = self._others.copy()
        if last is not None:
            every[last[3]] = _span(*last[:3])
        return {reader: every[reader] for reader in every if reader not in self.asking}

    def _forget_ended(self) -> None:
        for reader in [*filter(_has_ended, self._others.copy())]:
            self._others.pop(reader, None)

    async def wait_for(self, queues: Collection[Queue], limit_ms: int) -> None:
        """Wait while a delivery of these queues is in hand, for a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_ms / 1000):
                while not self.offsets().keys().isdisjoint(queues):
                    await asyncio.sleep(LOOK_S)  # Threads put it down without a word to the loop.
                    await asyncio.sleep(0)  # A commit that put it down has the first turn.


def _span(queue: Queue, offset: int, batch: MessageBatch | None) -> Span:
    messages = () if batch is None else batch.messages
    return queue, offset, messages[-1].queue_offset if messages else offset, len(messages) or 1


def _has_ended(reader: Reader) -> bool:
    """Whether a reader has ended, and not by an error: that message was not processed."""
    if isinstance(reader, threading.Thread):
        return not reader.is_alive()
    if reader is None or not reader.done():
        return False
    # `exception()` would count the error as seen by the program.
    return not reader.cancelled() and reader._exception is None
