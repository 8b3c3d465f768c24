"""A framed port is trusted once it has shown that the node that advertised it answers there."""

import asyncio
import contextlib
import logging
from typing import Any

import pytest

import quorumlog
from quorumlog import errors
from quorumlog.cluster.channels import Channels
from quorumlog.cluster.framed import port
from quorumlog.cluster.framed.frames import APPEND, ROUTE
from quorumlog.cluster.framed.port import OTHER_NODE
from quorumlog.errors import Outcome
from quorumlog.pb import log_pb2
from tests.loopback import HOST
from tests.patience import eventually
from tests.quorumlog.fake_cluster import CLUSTER_ID, connect, error, fake_cluster, learned, port_of

OTHERS: tuple[dict[str, Any], ...] = (
    {"node_id": 2},
    {"cluster_id": "another"},
    {"node_id": 0},
    {"cluster_id": ""},
)


async def send(client: quorumlog.Client, count: int) -> None:
    producer = client.producer()
    for at in range(count):
        receipt = await producer.send("orders", b"%d" % at, queue_id=0)
        assert receipt.attempts == 1


@pytest.mark.parametrize("says", OTHERS)
async def test_the_port_of_another_node_gets_no_call_and_grpc_takes_all(
    says: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        port_of(cluster).says = says
        with caplog.at_level(logging.WARNING, "quorumlog.framed"):
            await send(client, 5)
            await client.pull("orders", 0, 0)
            assert port_of(cluster).routes_total == 1  # It is tried again after 30 s only.
            learned(client, cluster)._retry_s = 0.0
            await client.pull("orders", 0, 0)
        assert port_of(cluster).routes_total == 2
        assert port_of(cluster).requests == []
        await eventually(lambda: not port_of(cluster).connections)
        stats = client.stats()
        assert (stats.framed_connections, stats.framed_other_nodes) == (0, 1)
        (said,) = [record.getMessage() for record in caplog.records]  # Once, not at each try.
        assert "where node" in said


@pytest.mark.parametrize("says", OTHERS)
async def test_frames_alone_cannot_use_the_port_of_another_node(says: dict[str, Any]) -> None:
    async with fake_cluster() as cluster, connect(cluster, transport="framed") as client:
        port_of(cluster).says = says
        for call in (client.producer().send("orders", b"0"), client.pull("orders", 0, 0)):
            with pytest.raises(errors.UnimplementedError, match="advertise_framed") as caught:
                await call
            assert caught.value.code == OTHER_NODE
            assert caught.value.outcome is Outcome.NOT_APPLIED
        assert port_of(cluster).routes_total == 1
        assert port_of(cluster).requests == []
        # The proxy in front of the node was put right, and 30 s have passed.
        port_of(cluster).says = {}
        learned(client, cluster)._retry_s = 0.0
        await send(client, 1)
        assert client.stats().framed_other_nodes == 0


async def test_a_connection_is_asked_once_and_calls_cost_no_question() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        await send(client, 50)
        for _ in range(20):
            await client.pull("orders", 0, 0)
        assert port_of(cluster).routes_total == 1
        assert len(port_of(cluster).requests) == 70


async def test_a_corrected_address_is_tried_at_once() -> None:
    async with fake_cluster() as cluster:
        right, other = port_of(cluster), cluster.nodes[2].framed
        assert other is not None
        own, right.port = right.port, other.port  # Node 1 advertises the port of node 2.
        async with connect(cluster) as client:
            await send(client, 3)
            assert (right.routes_total, other.routes_total) == (0, 1)
            assert other.requests == []
            right.port = own
            # A search may end before node 1 answers; this asks node 1 alone.
            assert await client._cluster.home.router.refresh_topics(["orders"])
            await send(client, 3)
            assert client.stats().framed_other_nodes == 0
            assert len(right.requests) > 0


async def test_a_connection_to_the_former_node_of_an_address_is_closed() -> None:
    async with fake_cluster() as cluster:
        channels = Channels(None, "auto")
        framed = channels.get(cluster.nodes[1].address).framed
        assert framed is not None
        connection = await framed.connected()
        assert connection is not None
        lost: list[errors.QuorumlogError] = []
        connection.streams[_Stream(lost)] = None
        route = await connection.call(ROUTE, b"", b"", 10)
        framed.learn(route)
        assert not lost
        route.node_id = 9
        framed.learn(route)
        assert len(lost) == 1
        assert await framed.connected() is None  # Node 1 answers there, and node 9 is wanted.
        assert framed.other_node
        await channels.close()


class _Stream:
    """A stream of appends without an append."""

    method = APPEND

    def __init__(self, lost: list[errors.QuorumlogError]) -> None:
        self._lost = lost

    def on_answer(self, opaque: int, flags: int, message: bytes, body: bytes) -> None:
        raise AssertionError("nothing was asked")

    def on_lost(self, error: errors.QuorumlogError) -> None:
        self._lost.append(error)


async def test_an_answer_that_comes_after_the_address_changed_hands_decides_nothing() -> None:
    async with fake_cluster() as cluster:
        channels = Channels(None, "auto")
        node = cluster.nodes[1]
        framed = channels.get(node.address).framed
        assert framed is not None
        route = log_pb2.RouteResponse(cluster_id=CLUSTER_ID, node_id=1)
        route.framed_address = f":{port_of(cluster).port}"
        framed.learn(route)
        node.gate.clear()
        connecting = asyncio.create_task(framed.connected())
        await eventually(lambda: port_of(cluster).routes_total == 1)
        route.node_id = 9
        framed.learn(route)
        node.gate.set()
        await connecting
        await eventually(lambda: framed._connecting is None)
        assert not framed.is_ready
        assert not framed.other_node
        route.node_id = 1
        framed.learn(route)
        assert await framed.connected() is not None
        await channels.close()


@pytest.mark.parametrize("code", ["node.not_ready", "node.unimplemented"])
async def test_a_port_that_does_not_say_who_it_is_gets_no_call(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "NOT_NOW_S", 10_000.0)  # Much more than after other failures.
    async with fake_cluster() as cluster, connect(cluster) as client:
        port_of(cluster).refusal = error(code, retryable=code == "node.not_ready")
        await send(client, 3)
        assert port_of(cluster).requests == []
        assert learned(client, cluster)._retry_s > 0
        rest_s = learned(client, cluster)._retry_s - asyncio.get_running_loop().time()
        assert (rest_s > 5_000) is (code == "node.not_ready")
        assert client.stats().framed_other_nodes == 0
        port_of(cluster).refusal = None
        learned(client, cluster)._retry_s = 0.0
        await client.pull("orders", 0, 0)
        assert len(port_of(cluster).requests) == 1


async def test_a_port_that_never_says_who_it_is_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port, "CONNECT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(port, "GRACE_S", 0.0)
    ended = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1024):
                pass
        writer.close()
        ended.set()

    server = await asyncio.start_server(swallow, HOST, 0)
    async with fake_cluster() as cluster:
        port_of(cluster).port = server.sockets[0].getsockname()[1]
        async with connect(cluster) as client:
            await send(client, 3)
            assert client.stats().framed_connections == 0
        await ended.wait()  # A closed client leaves no connection behind.
    server.close()
