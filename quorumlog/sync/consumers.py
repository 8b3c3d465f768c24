"""Consumers for programs without asyncio, made by the client of `quorumlog.sync`.

Owns the iteration between the threads; must not know what any call does.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Self, TypeVar

from quorumlog.cluster.close_once import failures_beside
from quorumlog.cluster.forks import forks
from quorumlog.consume import consumer as async_consumer
from quorumlog.consume import group as async_group
from quorumlog.consume import pop as async_pop
from quorumlog.consume.in_hand import Reader
from quorumlog.consume.pop import PopMessage
from quorumlog.records.message import Message, MessageBatch
from quorumlog.sync.loop_thread import loop_thread
from quorumlog.sync.wrappers import ClosingWrapper, Same, blocking, closing, plain

_T = TypeVar("_T")
_Consumer = TypeVar("_Consumer", bound=async_consumer.Consumption)


class _Iteration(ClosingWrapper[_Consumer]):
    """Iteration over messages and batches; whole batches cross between the threads."""

    def __init__(self, inner: _Consumer) -> None:
        super().__init__(inner)
        self._taking = threading.Lock()  # Several threads may iterate; each message goes to one.

    start = blocking(async_consumer.Consumption.start)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        if not forks.own[0]:  # Before the lock, which another thread of the parent may have held.
            forks.check()
        message = self._hand_out(self._inner.next_ready)
        if message is None:
            raise StopIteration
        return message

    def _hand_out(self, ready: Callable[[Reader], _T | None]) -> _T | None:
        """Wait until `ready` hands something out to this thread; None when all is read."""
        reader, inner = threading.current_thread(), self._inner
        in_hand = inner.in_hand
        before = in_hand.last
        try:
            if self._taking.locked():
                in_hand.asking.add(reader)
            with self._taking:
                if in_hand.asking:
                    in_hand.has_turn(reader)
                while (delivery := ready(reader)) is None:
                    if not loop_thread.call(inner.fill(reader)):
                        break
        except BaseException:  # The handler of a signal may raise anywhere.
            with self._taking:
                inner.take_back(reader, before)
            raise
        return delivery

    is_closed = Same[bool]()

    def next_batch(self) -> MessageBatch | None:
        """Wait for a batch; None when all is read. The rest of a begun batch comes first."""
        forks.check()
        return self._hand_out(self._inner.batch_ready)

    def batches(self) -> Iterator[MessageBatch]:
        """Iterate over batches instead of messages."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def __enter__(self) -> Self:
        self.start()
        return self


class PullConsumer(_Iteration[async_consumer.PullConsumer]):
    """Reads queues from a position on; see quorumlog.PullConsumer."""

    close = closing(async_consumer.PullConsumer.close)
    offsets = plain(async_consumer.PullConsumer.offsets)
    queue_offsets = plain(async_consumer.PullConsumer.queue_offsets)
    seek = blocking(async_consumer.PullConsumer.seek)


class GroupConsumer(_Iteration[async_group.GroupConsumer]):
    """Consumes as a member of a group; see quorumlog.GroupConsumer."""

    auto_commit = Same[bool]()
    assignment = plain(async_group.GroupConsumer.assignment)
    members = plain(async_group.GroupConsumer.members)
    offsets = plain(async_group.GroupConsumer.offsets)
    commit = blocking(async_group.GroupConsumer.commit)
    commit_offsets = blocking(async_group.GroupConsumer.commit_offsets)
    retry_later = blocking(async_group.GroupConsumer.retry_later)
    reject = blocking(async_group.GroupConsumer.reject)
    close = closing(async_group.GroupConsumer.close)

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        with failures_beside(error):
            self.close(is_processed=error is None)


class PopConsumer(ClosingWrapper[async_pop.PopConsumer]):
    """Receives single messages for a group; see quorumlog.PopConsumer."""

    receive = blocking(async_pop.PopConsumer.receive)
    ack = blocking(async_pop.PopConsumer.ack)
    change_invisible = blocking(async_pop.PopConsumer.change_invisible)
    nack = blocking(async_pop.PopConsumer.nack)
    reject = blocking(async_pop.PopConsumer.reject)
    close = closing(async_pop.PopConsumer.close)
    is_closed = Same[bool]()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PopMessage:
        """Receive for ever, message by message; each has to be acknowledged all the same."""
        return loop_thread.call(self._inner.__anext__())
