"""A call whose channel is closed under it fails, and does not look like the end of its caller."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import psutil
import pytest

from quorumlog.cluster.calls import Calls
from quorumlog.cluster.channels import Channels
from quorumlog.cluster.nameserver import NameServers
from quorumlog.cluster.routes import Router
from quorumlog.cluster.tls_trouble import as_tls_trouble
from quorumlog.errors import Outcome, UnavailableError, UnimplementedError
from quorumlog.pb import log_pb2, transaction_pb2
from tests.patience import eventually
from tests.quorumlog.fake_cluster import Node, connect, fake_cluster


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Nodes refuse one question for a route, and do not answer others: these set the event."""
    event = asyncio.Event()

    async def hold(_: Node, request: log_pb2.RouteRequest, context: Any) -> None:
        if request.cluster_id == "refused":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no")
        event.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Node, "Route", hold)
    return event


async def test_a_producer_is_asked_again_after_its_connection_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never listened again, and its transactions were given up after a day."""
    first, ended = asyncio.Event(), asyncio.Queue[int]()

    async def check(_: Node, _request: Any, _context: Any) -> AsyncIterator[Any]:
        is_second = first.is_set()
        yield transaction_pb2.TransactionCheck()
        first.set()
        if is_second:
            yield transaction_pb2.TransactionCheck(transaction_id=7, check_count=1)
        await asyncio.Event().wait()

    async def end(_: Node, request: Any, _context: Any) -> Any:
        ended.put_nowait(request.transaction_id)
        return transaction_pb2.EndTransactionResponse()

    monkeypatch.setattr(Node, "CheckTransactions", check, raising=False)
    monkeypatch.setattr(Node, "EndTransaction", end, raising=False)
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        producer = client.transactional_producer("billing", lambda _: "commit")
        producer.start()
        await first.wait()
        await client._cluster.home.router.channels.keep_only(set())
        assert await ended.get() == 7
        assert producer.checks_count == 1


async def test_a_closed_channel_is_an_error_and_a_cancelled_caller_is_cancelled(
    asked: asyncio.Event,
) -> None:
    async with fake_cluster(1) as cluster:
        channels = Channels(transport="grpc")
        calls, request = Calls(cast(Router, None)), log_pb2.RouteRequest()

        async def asking() -> asyncio.Task[Any]:
            asked.clear()
            node = channels.get(cluster.bootstrap)
            task = asyncio.create_task(calls.once(node, request, 30.0))
            await asked.wait()
            return task

        task = await asking()
        await channels.keep_only(set())
        with pytest.raises(UnavailableError, match="closed") as caught:
            await task
        assert caught.value.outcome is Outcome.UNKNOWN
        assert caught.value.retryable

        task = await asking()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await channels.close()


async def test_a_kept_error_keeps_no_connection(asked: asyncio.Event) -> None:
    async with fake_cluster(1) as cluster:
        channels, calls = Channels(transport="grpc"), Calls(cast(Router, None))
        node, port = channels.get(cluster.bootstrap), cluster.nodes[1].port
        nameservers = NameServers(node.address)
        with pytest.raises(UnavailableError) as refused:
            await calls.once(node, log_pb2.RouteRequest(cluster_id="refused"), 30.0)
        task = asyncio.create_task(calls.once(node, log_pb2.RouteRequest(), 30.0))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        with pytest.raises(UnimplementedError) as unknown:
            await nameservers.get("a", "b")
        assert _connection_count(port) == 2
        await channels.close()
        await nameservers.__aexit__(None, None, None)
        await eventually(lambda: not _connection_count(port), "the end of the connections")
        del refused, cancelled, unknown


def _connection_count(port: int) -> int:
    connections = psutil.Process().net_connections("tcp")
    return sum(bool(one.raddr) and one.raddr[1] == port for one in connections)


@pytest.mark.parametrize("greeting", [b"", b"\0\0\x12\4\0\0\0\0\0"])
async def test_a_plain_port_that_closes_a_plain_connection_has_no_fault_of_tls(
    greeting: bytes,
) -> None:
    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        error = UnavailableError("Socket closed")
        assert await as_tls_trouble(error, address, None) is error
