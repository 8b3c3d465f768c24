"""A call whose channel is closed under it fails, and does not look like the end of its caller."""

import asyncio
from typing import Any, cast

import grpc
import psutil
import pytest

import quorumlog
from quorumlog.cluster.calls import Calls
from quorumlog.cluster.channels import Channels
from quorumlog.cluster.nameserver import NameServers
from quorumlog.cluster.routes import Router
from quorumlog.errors import Outcome, UnavailableError, UnimplementedError
from quorumlog.pb import log_pb2, transaction_pb2
from tests import services
from tests.patience import eventually


class _Holding:
    """Answers nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def Route(  # noqa: N802 - gRPC's name.
        self, request: log_pb2.RouteRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> log_pb2.RouteResponse:
        self.asked.set()
        await asyncio.Event().wait()
        return log_pb2.RouteResponse()


class _Asking:
    """Leads, and asks producers about transactions; the second stream has a question."""

    def __init__(self) -> None:
        self.address = ""
        self.streams = 0
        self.asked = asyncio.Event()
        self.ended: asyncio.Queue[int] = asyncio.Queue()

    async def Route(  # noqa: N802
        self, request: log_pb2.RouteRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> log_pb2.RouteResponse:
        response = log_pb2.RouteResponse(cluster_id="c", node_id=1, term=1, leader_id=1, group="g")
        response.nodes.add(node_id=1, address=self.address)
        return response

    async def CheckTransactions(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Any:
        self.streams += 1
        yield transaction_pb2.TransactionCheck()
        self.asked.set()
        if self.streams == 2:
            yield transaction_pb2.TransactionCheck(transaction_id=7, check_count=1)
        await asyncio.Event().wait()

    async def EndTransaction(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.ended.put_nowait(request.transaction_id)
        return transaction_pb2.EndTransactionResponse()


async def test_a_producer_is_asked_again_after_its_connection_was_closed() -> None:
    """It never listened again, and its transactions were given up after a day."""

    asking, server = _Asking(), grpc.aio.server()
    services.add(server, log_pb2.DESCRIPTOR, asking)
    services.add(server, transaction_pb2.DESCRIPTOR, asking)
    asking.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with quorumlog.connect(asking.address) as client:
            producer = client.transactional_producer("billing", lambda _: "commit")
            producer.start()
            await asking.asked.wait()
            await client.broker_groups.home.router.channels.keep_only(set())
            assert await asking.ended.get() == 7
            assert producer.checks_count == 1
    finally:
        await server.stop(None)


async def test_a_closed_channel_is_an_error_and_a_cancelled_caller_is_cancelled() -> None:
    holding, server, channels = _Holding(), grpc.aio.server(), Channels()
    services.add(server, log_pb2.DESCRIPTOR, holding)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        calls, request = Calls(cast(Router, None)), log_pb2.RouteRequest()

        async def asking() -> asyncio.Task[Any]:
            holding.asked.clear()
            node = channels.get(address)
            task = asyncio.create_task(calls.once(node, "log", "Route", request, 30.0))
            await holding.asked.wait()
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
    finally:
        await channels.close()
        await server.stop(None)


class _Refusing(_Holding):
    """Refuses the first call, and does not answer the second."""

    async def Route(  # noqa: N802
        self, request: log_pb2.RouteRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> log_pb2.RouteResponse:
        if not request.cluster_id:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no")
        return await super().Route(request, context)


async def test_a_kept_error_keeps_no_connection() -> None:
    refusing, server, channels = _Refusing(), grpc.aio.server(), Channels()
    services.add(server, log_pb2.DESCRIPTOR, refusing)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        node, calls = channels.get(f"127.0.0.1:{port}"), Calls(cast(Router, None))
        nameservers = NameServers(node.address)
        with pytest.raises(UnavailableError) as refused:
            await calls.once(node, "log", "Route", log_pb2.RouteRequest(), 30.0)
        held = log_pb2.RouteRequest(cluster_id="held")
        task = asyncio.create_task(calls.once(node, "log", "Route", held, 30.0))
        await refusing.asked.wait()
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
    finally:
        await channels.close()
        await server.stop(None)


def _connection_count(port: int) -> int:
    connections = psutil.Process().net_connections("tcp")
    return sum(bool(one.raddr) and one.raddr[1] == port for one in connections)
