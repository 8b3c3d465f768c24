"""Two clusters in the process of the test: a source that speaks remoting, a target of the SDK.

Both are nodes with real logs behind real sockets. Owns what a test may do to the target's appends.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import quorumlog
from node.config.types import Address
from node.runtime.accounts import Accounts
from node.services.calls import ServedCalls
from node.services.methods import handlers
from node.services.server import GrpcServer
from qlog.progress import show_nothing
from qlog.rocketmq.groups import GroupCopy, copy_groups
from qlog.rocketmq.source import RocketSource
from qlog.rocketmq.topics import Copies, copy_topics
from quorumlog.client import Client
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from quorumlog.records.message import Message
from tests.node import broker_fakes
from tests.node.broker_fakes import Fixture, node_at
from tests.node.rocketmq.remoting.clients import Gateway, gateway_at

Append = Callable[[AppendRequest], Awaitable[AppendResponse]]


class Target:
    """The target, a client of it, and its appends."""

    def __init__(self, node: Fixture, address: str, client: Client) -> None:
        self.node, self.address, self.client = node, address, client
        self.append: Append = node.broker.append
        """What answers an append; a test may put something before it."""

    async def messages(self, topic: str, queue_count: int) -> list[list[Message]]:
        """Return all messages of each queue."""
        queues: list[list[Message]] = []
        for queue_id in range(queue_count):
            queue: list[Message] = []
            (row,) = await self.client.queue_offsets(topic, [queue_id])
            while len(queue) < row.end_offset - row.first_offset:
                queue += await self.client.pull(topic, queue_id, row.first_offset + len(queue))
            queues.append(queue)
        return queues


class Clusters(NamedTuple):
    """A source and a target."""

    source: Gateway
    target: Target

    async def copy(self, *topics: str) -> tuple[Copies, list[GroupCopy]]:
        """Copy as the command does."""
        source = RocketSource([f"127.0.0.1:{self.source.port}"], pause_s=0)
        client = self.target.client
        try:
            copies = await copy_topics(source, client, frozenset(topics), show_nothing)
            return copies, await copy_groups(source, client, frozenset(), copies, only_of=False)
        finally:
            source.close()


@asynccontextmanager
async def target_at(root: Path) -> AsyncIterator[Target]:
    """A node of one broker group behind gRPC, and a client."""
    server = GrpcServer(Accounts())
    address = f"127.0.0.1:{server.bind(Address('127.0.0.1', 0))}"
    opening = node_at(root, topics={})
    with mock.patch.object(broker_fakes, "ADDRESSES", {1: address}):
        node = await opening.__aenter__()
    target = Target(node, address, quorumlog.connect(address, transport="grpc"))

    async def append(request: AppendRequest) -> AppendResponse:
        return await target.append(request)

    try:
        calls, other = ServedCalls(on_fatal=_raise), mock.Mock()
        with mock.patch.object(node.broker, "append", append):
            served = handlers(calls, node.broker, other, other, other, (other,))
        await server.start(served)
        async with target.client:
            yield target
    finally:
        await server.stop(0)
        await opening.__aexit__(None, None, None)


@asynccontextmanager
async def clusters_at(root: Path, **how: Any) -> AsyncIterator[Clusters]:
    """A source with topic orders of 4 queues under three broker names, and an empty target."""
    async with gateway_at(root / "source", **how) as source, target_at(root / "target") as target:
        yield Clusters(source, target)


def _raise(error: BaseException) -> None:
    raise error
