"""Consumers for programs without asyncio: `quorumlog.sync` hands them out.

Owns the iteration between the threads; must not know what any call does.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from quorumlog import consumer as async_consumer
from quorumlog import group as async_group
from quorumlog.loop_thread import blocking, loop_thread, plain
from quorumlog.message import Message, MessageBatch
from quorumlog.options import Position
from quorumlog.queues import Queue


class _Iteration:
    """Iteration over messages and batches; whole batches cross between the threads."""

    _inner: async_consumer.Consumption
    _current: MessageBatch | None = None
    _at = 0

    def start(self) -> None:
        """Begin to fetch; iterating does it too."""
        loop_thread.call(self._inner.start())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        current = self._current
        if current is None or self._at >= len(current.messages):
            self._current = None
            current = loop_thread.call(self._inner.take())
            if current is None:
                raise StopIteration
            self._current, self._at = current, 0
        self._at += 1
        self._inner.hand_out(current, self._at - 1, self._at)
        return current.messages[self._at - 1]

    @property
    def is_closed(self) -> bool:
        """Say whether it was closed."""
        return self._inner.is_closed

    def next_batch(self) -> MessageBatch | None:
        """Wait for a batch; None when all is read."""
        return loop_thread.call(self._inner.next_batch())

    def batches(self) -> Iterator[MessageBatch]:
        """Iterate over batches instead of messages."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def __enter__(self) -> Self:
        self.start()
        return self


class PullConsumer(_Iteration):
    """Reads queues from a position on; see quorumlog.PullConsumer."""

    def __init__(self, inner: async_consumer.PullConsumer) -> None:
        self._inner: async_consumer.PullConsumer = inner

    close = blocking(async_consumer.PullConsumer.close)
    offsets = plain(async_consumer.PullConsumer.offsets)
    queue_offsets = plain(async_consumer.PullConsumer.queue_offsets)

    def seek(self, queue_id: int | Queue, position: Position) -> None:
        """Go on from another position of one queue. What was fetched of it is forgotten."""
        current = self._current
        if current is not None and queue_id in (current.queue, current.queue_id):
            self._current = None
        loop_thread.call(self._inner.seek(queue_id, position))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class GroupConsumer(_Iteration):
    """Consumes as a member of a group; see quorumlog.GroupConsumer."""

    def __init__(self, inner: async_group.GroupConsumer) -> None:
        self._inner: async_group.GroupConsumer = inner

    @property
    def auto_commit(self) -> bool:
        """Say whether it stores offsets by itself."""
        return self._inner.auto_commit

    assignment = plain(async_group.GroupConsumer.assignment)
    members = plain(async_group.GroupConsumer.members)
    offsets = plain(async_group.GroupConsumer.offsets)
    commit = blocking(async_group.GroupConsumer.commit)
    commit_offsets = blocking(async_group.GroupConsumer.commit_offsets)
    retry_later = blocking(async_group.GroupConsumer.retry_later)
    reject = blocking(async_group.GroupConsumer.reject)
    close = blocking(async_group.GroupConsumer.close)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(is_processed=error is None)
