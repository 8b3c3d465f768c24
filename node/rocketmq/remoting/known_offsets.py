"""Offsets that classic clients know to be stored, for each connection.

Owns the table and its bounds. A client that was away, or that lost a queue to another member, does
not know what others have stored since, and must not undo it. It knows once it stores an offset,
asks for it, or pulls where it was told that others had moved it. Must not know what is stored.
"""

from typing import Final, NamedTuple

from node.rocketmq.remoting.conversation import RemotingConnection
from node.runtime.accounts import Kind, row_size_bytes

Key = tuple[str, str, int]
"""Group, topic and the group's queue."""
NOTHING: Final = -1


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


class KnownOffsets:
    """The table. One per gateway."""

    def __init__(self) -> None:
        self._of_connection: dict[RemotingConnection, dict[Key, Known]] = {}

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

    def on_closed(self, connection: RemotingConnection) -> None:
        """Forget what was known over a connection."""
        known = self._of_connection.pop(connection, {})
        size_bytes = sum(row_size_bytes(group, topic) for group, topic, _ in known)
        connection.connection.account.give_back(Kind.ROWS, size_bytes, len(known))
