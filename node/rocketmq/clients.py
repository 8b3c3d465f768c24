"""Which clients talk to this node: who they are, and the stream on which they can be told things.

Owns the table and its bound. Nothing here is needed to serve a call: clients call before they have
introduced themselves, and some do not for minutes after a node was restarted (protocol 3, 5.2).
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from quorumlog.pb import rocketmq_pb2 as pb

CLIENT_COUNT_MAX: Final = 10_000
"""Beyond it the one silent for longest is forgotten."""
SILENT_S_MAX: Final = 120.0
"""A client without a stream that says nothing for so long is forgotten."""
ALIVE_S: Final = 35.0
"""Three heartbeats of a client, and some."""
COMMAND_COUNT_MAX: Final = 64
"""Commands that wait for one client. More are dropped: whoever asked for one repeats it."""


class Client:
    """One client instance, as it introduced itself."""

    __slots__ = ("commands", "group", "heard_s", "topics")

    def __init__(self) -> None:
        self.group = ""
        self.topics: frozenset[str] = frozenset()
        """What a producer sends to."""
        self.commands: asyncio.Queue[pb.TelemetryCommand] | None = None
        """Of its stream; None: it has none at this node."""
        self.heard_s = 0.0


class Clients:
    """One per gateway."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, Client] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def heard(self, client_id: str) -> Client:
        """Note that a client spoke; return it."""
        client = self._clients.setdefault(client_id, Client())
        client.heard_s = time.monotonic()
        self._clients.move_to_end(client_id)
        self._forget()
        return client

    def left(self, client_id: str) -> None:
        """A client said that it ends."""
        self._clients.pop(client_id, None)

    def is_alive(self, client_id: str) -> bool:
        """Say whether a client is there: it has a stream here, or spoke a moment ago.

        Some clients need minutes to open a new stream after the old one broke.
        """
        client = self._clients.get(client_id)
        if client is None:
            return False
        return client.commands is not None or time.monotonic() - client.heard_s < ALIVE_S

    def producers_of(self, topic: str) -> Iterator[Client]:
        """Yield the producers of a topic that can be asked something."""
        for client in self._clients.values():
            if topic in client.topics and client.commands is not None:
                yield client

    def producer_topics(self) -> set[str]:
        """Return the topics of all producers that can be asked something."""
        found: set[str] = set()
        for client in self._clients.values():
            if client.commands is not None:
                found |= client.topics
        return found

    @property
    def stream_count(self) -> int:
        """Clients with a stream."""
        return sum(client.commands is not None for client in self._clients.values())

    def _forget(self) -> None:
        now = time.monotonic()
        while self._clients:
            client_id, client = next(iter(self._clients.items()))
            is_old = client.commands is None and now - client.heard_s > SILENT_S_MAX
            if not is_old and len(self._clients) <= CLIENT_COUNT_MAX:
                return
            del self._clients[client_id]
