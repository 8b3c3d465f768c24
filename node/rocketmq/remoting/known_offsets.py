"""Offsets that classic clients know to be stored, for each connection.

Owns the table and its bounds. A client that was away, or that lost a queue to another member, does
not know what others have stored since, and must not undo it. One whose offset was refused is told
with its next pull. Must not know what is stored.
"""

from typing import Final

from node.errors.common import BusyError
from node.rocketmq.remoting.conversation import RemotingConnection
from node.runtime.accounts import Kind, row_size_bytes

Key = tuple[str, str, int]
"""Group, topic and the group's queue."""


NOTHING: Final = -1


class KnownOffsets:
    """The table. One per gateway."""

    def __init__(self) -> None:
        self._of_connection: dict[RemotingConnection, dict[Key, int]] = {}
        self._refused: dict[RemotingConnection, set[Key]] = {}
        """Those of them that others have moved."""

    def newest(self, connection: RemotingConnection, key: Key) -> int:
        """Return the offset that a client got or stored last over a connection, or NOTHING."""
        return self._of_connection.get(connection, {}).get(key, NOTHING)

    def refuse(self, connection: RemotingConnection, key: Key) -> None:
        """Note that others have moved an offset that a client knew."""
        if key in self._of_connection.get(connection, {}):
            self._refused.setdefault(connection, set()).add(key)

    def take_refused(self, connection: RemotingConnection, key: Key) -> bool:
        """Return whether it was moved, and forget that: the caller tells the client."""
        refused = self._refused.get(connection, set())
        is_refused = key in refused
        refused.discard(key)
        return is_refused

    def note(self, connection: RemotingConnection, key: Key, offset: int) -> None:
        """Remember an offset. The client's account pays for it; without room it is forgotten, and
        the client cannot go back."""
        if connection.connection.is_ended:
            return
        known = self._of_connection.setdefault(connection, {})
        if key not in known:
            try:
                connection.connection.account.take(Kind.ROWS, row_size_bytes(*key[:2]))
            except BusyError:
                return
        known[key] = offset

    def on_closed(self, connection: RemotingConnection) -> None:
        """Forget what was known over a connection."""
        self._refused.pop(connection, None)
        known = self._of_connection.pop(connection, {})
        size_bytes = sum(row_size_bytes(group, topic) for group, topic, _ in known)
        connection.connection.account.give_back(Kind.ROWS, size_bytes, len(known))
