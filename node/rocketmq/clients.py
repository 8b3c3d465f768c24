"""Clients of this node: their identity, and the stream on which the node can send them commands.

Owns the table and its bounds. No call needs it: clients call before they have introduced
themselves, and some do not for minutes after a node was restarted (protocol 3, 5.2).
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from quorumlog.pb import rocketmq_pb2 as pb

CLIENT_COUNT_MAX: Final = 10_000
"""Limit of the table. Beyond it the client silent for longest is forgotten."""
SILENT_S_MAX: Final = 120.0
"""Time after which a silent client without a stream is forgotten."""
ALIVE_S: Final = 35.0
"""Time after its last call for which a client without a stream counts as alive: three heartbeats,
and some."""
COMMAND_COUNT_MAX: Final = 64
"""Commands that wait for one client. More are dropped: their caller repeats them."""
QUESTION_SIZE_BYTES_MAX: Final = 64 << 20
"""Size of the questions about transactions that wait for clients, with their messages, of all
clients; a client that takes none has an eighth at most. Beyond it the gateway asks none until
some went out."""
QUESTION_SHARES: Final = 8


class GatewayClient:
    """One client instance, as it introduced itself."""

    __slots__ = ("commands", "group", "last_seen_s", "question_size_bytes", "topics")

    def __init__(self) -> None:
        self.group = ""
        self.topics: frozenset[str] = frozenset()
        """Topics that a producer sends to."""
        self.commands: asyncio.Queue[pb.TelemetryCommand] | None = None
        """Commands for its stream; None: the client has no stream at this node."""
        self.last_seen_s = 0.0
        self.question_size_bytes = 0


class GatewayClients:
    """The table of clients. One per gateway."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, GatewayClient] = OrderedDict()
        self.question_size_bytes = 0
        """Size of the questions that wait for clients, or are on their way out."""

    def __len__(self) -> int:
        return len(self._clients)

    def seen(self, client_id: str) -> GatewayClient:
        """Note that a client called; return it."""
        client = self._clients.setdefault(client_id, GatewayClient())
        client.last_seen_s = time.monotonic()
        self._clients.move_to_end(client_id)
        self._forget()
        return client

    def left(self, client_id: str) -> None:
        """Forget a client that announced its end."""
        self._clients.pop(client_id, None)

    def is_alive(self, client_id: str) -> bool:
        """Whether a client is alive: it has a stream here, or called a moment ago.

        Some clients need minutes to open a new stream after the old one broke.
        """
        client = self._clients.get(client_id)
        if client is None:
            return False
        return client.commands is not None or time.monotonic() - client.last_seen_s < ALIVE_S

    def producers_of(self, topic: str) -> Iterator[GatewayClient]:
        """Yield the producers of a topic that can be asked something."""
        for client in self._clients.values():
            if topic in client.topics and client.commands is not None:
                yield client

    def ask(self, topic: str, question: pb.TelemetryCommand) -> bool:
        """Ask one producer of a topic; return whether there was one with room for the question.

        A question larger than a client's room is sent alone.
        """
        size_bytes = question.ByteSize()
        client = self.with_room(topic, size_bytes)
        if client is None or client.commands is None:
            return False
        client.commands.put_nowait(question)
        self._hold(client, size_bytes)
        return True

    def with_room(self, topic: str, size_bytes: int) -> "GatewayClient | None":
        """Return a producer of a topic that has room for a question of this size."""
        held_bytes = self.question_size_bytes
        if held_bytes and held_bytes + size_bytes > QUESTION_SIZE_BYTES_MAX:
            return None
        share_bytes = QUESTION_SIZE_BYTES_MAX // QUESTION_SHARES
        for client in self.producers_of(topic):
            held_bytes = client.question_size_bytes
            has_room = not held_bytes or held_bytes + size_bytes <= share_bytes
            if has_room and client.commands is not None and not client.commands.full():
                return client
        return None

    def went_out(self, client: GatewayClient, command: pb.TelemetryCommand) -> None:
        """Release a command that does not wait any more: its client has it, or has gone."""
        if command.HasField("recover_orphaned_transaction_command"):
            self._hold(client, -command.ByteSize())

    def _hold(self, client: GatewayClient, size_bytes: int) -> None:
        client.question_size_bytes += size_bytes
        self.question_size_bytes += size_bytes

    def producer_topics(self) -> set[str]:
        """Return the topics of all producers that can be asked something."""
        found: set[str] = set()
        for client in self._clients.values():
            if client.commands is not None:
                found |= client.topics
        return found

    @property
    def stream_count(self) -> int:
        """Count of clients with a stream."""
        return sum(client.commands is not None for client in self._clients.values())

    def _forget(self) -> None:
        now = time.monotonic()
        while self._clients:
            client_id, client = next(iter(self._clients.items()))
            is_old = client.commands is None and now - client.last_seen_s > SILENT_S_MAX
            if not is_old and len(self._clients) <= CLIENT_COUNT_MAX:
                return
            del self._clients[client_id]
