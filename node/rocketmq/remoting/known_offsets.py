"""Offsets that classic clients know to be stored, for each connection.

Owns the table and its bounds. A client that was away, or that lost a queue to another member, does
not know what others have stored since, and must not undo it. It knows once it stores an offset,
asks for it, or pulls where it was told that others had moved it. Must not know what is stored.

When members change, those that gain a queue ask for its offset in the same milliseconds as those
that lose it store theirs. So the table also knows who reads a queue, and the offset is answered
once that one has stored.
"""

import asyncio
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Self
from weakref import WeakValueDictionary

from node.broker.core.offset_moves import CountedSet
from node.rocketmq.remoting.conversation import RemotingConnection
from node.runtime.accounts import Kind, row_size_bytes

Key = tuple[str, str, int]
"""Group, topic and the group's queue."""
NOTHING: Final = -1
_UNANSWERED_COUNT_MAX: Final = 4
HANDOVER_S: Final = 0.2
"""Longest wait for the reader of a queue. Two members may wait for each other, over topics."""
CHANGED_S: Final = 1.3
"""Time from a change of members in which readers give queues up: notices are collected, and clients
share queues out once a second at most."""


class Target(NamedTuple):
    """Where others have moved a group."""

    offset: int
    move: int
    is_asked: bool
    """Whether the client asked for it; else a pull was told, and what it stores may be older."""


class Known(NamedTuple):
    """What a client knows of a queue."""

    offset: int = NOTHING
    """What it stored last, or read from; NOTHING: none."""
    move: int | None = None
    """Number of the last move that it has followed; 0: there was none; None: unknown."""
    target: Target | None = None
    """Where the client is to go, as it was told."""
    is_behind: bool = False
    """Whether a commit was refused, and the client was not told yet where to go."""
    unanswered: tuple[int, ...] = ()
    """The last offsets that may be stored since: commits of them had no answer."""

    def without_answer(self, offset: int) -> Self:
        """Return what is known after a commit without an answer."""
        return self._replace(unanswered=(*self.unanswered, offset)[-_UNANSWERED_COUNT_MAX:])


class _Reader(NamedTuple):
    connection: RemotingConnection
    stored_s: float
    """When its newest offset that is stored came, or it asked for one; monotonic."""


class KnownOffsets:
    """The table. One per gateway."""

    def __init__(self) -> None:
        self._of_connection: dict[RemotingConnection, dict[Key, Known]] = {}
        self._readers: dict[Key, _Reader] = {}
        """Each has a row of its connection, which pays."""
        self._under_way: Final = CountedSet[Key]()
        """Queues whose offsets are being stored."""
        self._stored: Final = WeakValueDictionary[Key, asyncio.Future[None]]()
        """What calls wait for."""

    def of(self, connection: RemotingConnection, key: Key) -> Known:
        """Return what a client knows over a connection."""
        return self._of_connection.get(connection, {}).get(key, Known())

    def note(self, connection: RemotingConnection, key: Key, known: Known) -> None:
        """Remember what a client knows. Its account pays for it. Raises BusyError."""
        if connection.connection.is_ended:
            return
        rows = self._of_connection.setdefault(connection, {})
        if key not in rows:
            connection.connection.account.take(Kind.ROWS, row_size_bytes(*key[:2]))
        rows[key] = known

    def read(self, connection: RemotingConnection, key: Key, now_s: float) -> None:
        """Note that a member asked for the offset of a queue: it reads on from there."""
        if key in self._of_connection.get(connection, ()):
            self._readers[key] = _Reader(connection, now_s)

    @contextmanager
    def storing(self, connection: RemotingConnection, key: Key) -> Iterator[None]:
        """Note that an offset is being stored, for a while. One of a member that has lost the queue
        meanwhile says nothing of its reader."""
        now_s = time.monotonic()
        with self._under_way.noted([key]):
            try:
                yield
            finally:
                reader = self._readers.get(key)
                if reader is None or reader.connection is connection:
                    self.read(connection, key, now_s)
                self._wake(key)

    async def handed_over(
        self, client_id: str, key: Key, members: Container[str], changed_s: float
    ) -> None:
        """Return once the reader of a queue has stored an offset since the members changed, and
        none is under way, or after `HANDOVER_S`."""
        loop = asyncio.get_running_loop()
        until_s = min(time.monotonic() + HANDOVER_S, changed_s + CHANGED_S)
        while self._is_held(client_id, key, members, changed_s):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            future = self._stored.get(key)
            if future is None:
                future = self._stored[key] = loop.create_future()
            await asyncio.wait({future}, timeout=left_s)

    def _wake(self, key: Key) -> None:
        future = self._stored.pop(key, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _is_held(self, client_id: str, key: Key, members: Container[str], changed_s: float) -> bool:
        """Whether another member may still have to store how far it is in a queue."""
        reader = self._readers.get(key)
        if reader is None or key in self._under_way:
            return key in self._under_way
        other = reader.connection
        is_there = not other.connection.is_ended and other.client_id in members
        return is_there and other.client_id != client_id and reader.stored_s < changed_s

    def on_closed(self, connection: RemotingConnection) -> None:
        """Forget what was known over a connection."""
        groups = self._of_connection.pop(connection, {})
        for key in groups:
            reader = self._readers.get(key)
            if reader is not None and reader.connection is connection:
                del self._readers[key]
                self._wake(key)
        size_bytes = sum(row_size_bytes(group, topic) for group, topic, _ in groups)
        connection.connection.account.give_back(Kind.ROWS, size_bytes, len(groups))
