"""A framed server in the process of the test, over a broker with a real log and real sockets."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from node.config.limits import Limits
from node.config.types import Address
from node.framed.calls import FramedCalls
from node.framed.limits import FramedLimits
from node.framed.server import FramedServer
from node.runtime.accounts import Accounts, Kind, Limit
from node.services.calls import ServedCalls
from quorumlog.pb.log_pb2 import AppendRequest
from tests.node.broker_fakes import Fixture, node_at
from tests.node.framed.clients import APPEND, AsyncFramedClient, request
from tests.patience import eventually
from tests.store.records import batch

LASTING = {Kind.MEMBERS, *(kind for kind in Kind if kind >= Kind.TRANSACTIONS)}
"""What outlives connections: members until their sessions end, and durable things."""


class Served:
    """A server, its broker, and clients of it."""

    def __init__(self, server: FramedServer, node: Fixture, port: int) -> None:
        self.server, self.node, self.port = server, node, port
        self._clients: list[AsyncFramedClient] = []
        self._append_count = node.driver.append_count

    async def client(self, tls: ssl.SSLContext | None = None, **how: Any) -> AsyncFramedClient:
        """Return a new connection."""
        client = await AsyncFramedClient.connect(self.port, tls, **how)
        self._clients.append(client)
        return client

    async def client_of(self, plain: socket.socket) -> AsyncFramedClient:
        """Return a client that has connected already."""
        client = AsyncFramedClient(*await asyncio.open_connection(sock=plain))
        self._clients.append(client)
        return client

    def held(self, kind: Kind) -> int:
        """Bytes that are held of a kind for all clients."""
        return self.server.connections.accounts.held(kind)[1]

    @property
    def call_count(self) -> int:
        """Calls under way."""
        return self.server.connections.call_count

    @property
    def append_count(self) -> int:
        """Entries written since the start, decided or not."""
        return self.node.driver.append_count - self._append_count

    @property
    def closed(self) -> dict[str, int]:
        """Connections that the node closed, by reason; none are left out."""
        return {reason: count for reason, count in self.server.connections.closed.items() if count}

    @property
    def failed(self) -> dict[str, int]:
        """Codes of all failed calls."""
        counts: dict[str, int] = {}
        for (_, code), count in self.server.calls.served.counters.failed.items():
            counts[code] = counts.get(code, 0) + count
        return counts

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()

    async def is_quiet(self) -> None:
        """Wait until nothing is under way and no connection is left, and nothing is held."""
        self.close_clients()
        server = self.server

        accounts = server.connections.accounts

        def is_quiet() -> bool:
            accounts.settle()
            held = {kind for kind in Kind if any(accounts.held(kind))}
            return held <= LASTING and not server.connections.count

        await eventually(is_quiet, "the end of all connections, and of what they held")
        assert server.calls.served.counters.open_count == 0


@asynccontextmanager
async def served(
    root: Path,
    *,
    limits: FramedLimits | None = None,
    held: dict[Kind, Limit] | None = None,
    tls: ssl.SSLContext | None = None,
    is_permissive: bool = False,
    is_open: bool = True,
    limits_of_broker: Limits | None = None,
    monotonic_s: Callable[[], float] | None = None,
    **node: Any,
) -> AsyncIterator[Served]:
    """Serve; at the end everything must be given back, and nothing may have been a defect."""
    async with node_at(root, limits=limits_of_broker, **node) as fixture:
        fatal: list[BaseException] = []
        calls = FramedCalls(ServedCalls(fatal.append), Accounts(held or {}), limits)
        server = FramedServer(calls, monotonic_s)
        port = await server.bind(Address("127.0.0.1", 0), tls, is_permissive=is_permissive)
        server.open()
        if is_open:
            calls.open(fixture.broker)
        running = Served(server, fixture, port)
        try:
            yield running
            await running.is_quiet()
            assert fatal == []
            assert "node.internal" not in running.failed
        finally:
            running.close_clients()
            await server.stop(0)


def append(opaque: int, lo: int, hi: int, **fields: Any) -> bytes:
    """Return a frame that appends messages [lo, hi) to queue 0 of topic orders."""
    how = {name: fields.pop(name) for name in ("flags", "timeout_ms") if name in fields}
    message = AppendRequest(record_count=hi - lo, **fields).SerializeToString()
    return request(APPEND, opaque, message, batch(lo, hi), **how)


async def put(client: AsyncFramedClient, opaque: int, lo: int, hi: int) -> None:
    """Append messages [lo, hi), of which the next response has to be the receipt."""
    client.send(append(opaque, lo, hi))
    assert (await client.read()).append().record_count == hi - lo
