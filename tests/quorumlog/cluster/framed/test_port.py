"""The choice between frames and gRPC: a port that cannot be reached fails nothing."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import quorumlog
from quorumlog import errors
from quorumlog.cluster.channels import Channels
from quorumlog.cluster.framed import frames, port
from quorumlog.cluster.framed.port import NO_FRAMED_PORT, FramedPort
from quorumlog.code_meanings import own_codes
from quorumlog.errors import Outcome
from quorumlog.pb import log_pb2
from tests.loopback import HOST
from tests.patience import eventually
from tests.quorumlog.fake_cluster import FakeCluster, connect, fake_cluster, learned, port_of


async def send(producer: quorumlog.Producer, *bodies: bytes) -> list[Any]:
    return [await producer.send("orders", body, queue_id=0) for body in bodies]


def framed_requests(cluster: FakeCluster) -> int:
    return sum(len(node.framed.requests) for node in cluster.nodes.values() if node.framed)


async def test_calls_on_the_path_of_a_message_take_frames_by_themselves() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        await send(producer, b"0", b"1")
        assert [m.body for m in (await client.pull("orders", 0, 0)).messages] == [b"0", b"1"]
        await client.admin.commit_offsets("billing", {("orders", 0): 2})
        assert [method for method, _ in port_of(cluster).requests] == [1, 1, 2, 4]
        assert client.stats().framed_connections == len(port_of(cluster).connections) == 1
        await client.close()
        await eventually(lambda: not port_of(cluster).connections)


async def test_grpc_alone_never_asks_for_a_framed_port() -> None:
    async with fake_cluster() as cluster, connect(cluster, transport="grpc") as client:
        await send(client.producer(), b"0")
        await client.pull("orders", 0, 0)
        assert framed_requests(cluster) == 0
        assert client.stats().framed_connections == 0


@pytest.mark.parametrize("transport", ["auto", "framed"])
async def test_a_node_without_a_framed_port_is_used_over_grpc_or_refused_by_name(
    transport: Any,
) -> None:
    async with fake_cluster() as cluster:
        for node in cluster.nodes.values():
            node.advertises = False
        async with connect(cluster, transport=transport) as client:
            sending, pulling = client.producer().send("orders", b"0"), client.pull("orders", 0, 0)
            if transport == "auto":
                await sending
                await pulling
                assert framed_requests(cluster) == 0
                return
            for call in (sending, pulling):
                with pytest.raises(errors.UnimplementedError, match="no framed port") as caught:
                    await call
                assert caught.value.code == NO_FRAMED_PORT
                assert (own_codes()[NO_FRAMED_PORT][1] == "yes") is caught.value.retryable
                assert caught.value.outcome is Outcome.NOT_APPLIED
            assert not cluster.entries


def closed_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


@asynccontextmanager
async def unreachable() -> AsyncIterator[FakeCluster]:
    """A cluster whose framed ports are named, and refuse."""
    async with fake_cluster() as cluster:
        for node in cluster.nodes.values():
            assert node.framed is not None
            await node.framed.stop()
            node.framed.port = closed_port()
        yield cluster


async def test_a_port_that_refuses_fails_nothing_and_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with unreachable() as cluster, connect(cluster) as client:
        tried = 0
        make_connection = FramedPort._connect

        async def counted(self: FramedPort) -> None:
            nonlocal tried
            tried += 1
            await make_connection(self)

        monkeypatch.setattr(FramedPort, "_connect", counted)
        producer = client.producer()
        receipts = await send(producer, *(b"%d" % i for i in range(20)))
        assert {r.attempts for r in receipts} == {1}
        await client.pull("orders", 0, 0)
        assert tried == 1
        # The port is there, and 30 s have passed: the open stream of gRPC moves to it.
        await port_of(cluster).start()
        learned(client, cluster)._retry_s = 0.0
        await eventually(lambda: client.stats().framed_connections == 1)
        await send(producer, b"20", b"21")
        await eventually(lambda: framed_requests(cluster) >= 1)
        await send(producer, b"22")
        assert cluster.bodies() == [b"%d" % i for i in range(23)]
        assert producer.stats().retried_batches == 0


async def test_a_stream_under_load_moves_to_frames_and_loses_nothing() -> None:
    async with unreachable() as cluster, connect(cluster) as client:
        producer = client.producer(batch_count_max=3)
        cluster.append_delay_s = 0.001
        deliveries = [await producer.enqueue("orders", b"%04d" % i, queue_id=0) for i in range(600)]
        await eventually(lambda: len(cluster.entries) > 20)
        await port_of(cluster).start()
        learned(client, cluster)._retry_s = 0.0
        receipts = [await delivery.receipt() for delivery in deliveries]
        assert cluster.bodies() == [b"%04d" % i for i in range(600)]
        assert [r.queue_offset for r in receipts] == list(range(600))
        assert {r.attempts for r in receipts} == {1}
        assert framed_requests(cluster) > 0


async def test_a_port_that_swallows_everything_costs_one_short_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A firewall that drops: nothing is refused, and nothing comes back."""
    monkeypatch.setattr(port, "CONNECT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(port, "GRACE_S", 0.0)

    async def swallow(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    async with fake_cluster() as cluster, connect(cluster) as client:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", swallow, raising=True)
        receipts = await send(client.producer(), b"0", b"1")
        assert {r.attempts for r in receipts} == {1}
        await client.pull("orders", 0, 0)
        assert framed_requests(cluster) == 0


async def test_a_required_port_that_cannot_be_reached_is_an_error_without_effect() -> None:
    async with (
        unreachable() as cluster,
        connect(cluster, transport="framed", timeout_ms=1_500) as client,
    ):
        with pytest.raises(errors.DeadlineError, match="cannot be reached"):
            await client.pull("orders", 0, 0)
        with pytest.raises(errors.DeadlineError, match="cannot be reached") as caught:
            await client.producer().send("orders", b"0")
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert not cluster.entries


async def test_a_framed_port_that_talks_nonsense_is_left_and_the_message_is_stored_once() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" * 3)
        await reader.read()
        writer.close()

    async with fake_cluster() as cluster, connect(cluster) as client:
        server = await asyncio.start_server(nonsense, HOST, 0)
        for node in cluster.nodes.values():
            assert node.framed is not None
            await node.framed.stop()
            node.framed.port = server.sockets[0].getsockname()[1]
        await client.pull("orders", 0, 0)  # Its port was learnt before.
        async with connect(cluster) as other:
            (receipt,) = await send(other.producer(), b"0")
            assert receipt.attempts == 1  # It was asked who it is, and got nothing else.
            assert not receipt.is_duplicate
            assert cluster.bodies() == [b"0"]
            assert other.stats().framed_connections == 0
        server.close()


async def test_a_node_that_restarts_is_used_over_frames_again() -> None:
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        producer, node = client.producer(), cluster.nodes[1]
        await send(producer, b"0")
        await node.stop()
        sending = asyncio.create_task(send(producer, b"1"))
        await eventually(lambda: client.stats().questions > 5)
        port_of(cluster).port = 0  # Another one than before.
        await node.start()
        await sending
        await send(producer, b"2")
        assert cluster.bodies() == [b"0", b"1", b"2"]
        await eventually(lambda: client.stats().framed_connections == 1)


@pytest.mark.parametrize(
    ("advertised", "host", "port"),
    [
        (":9081", "127.0.0.1", 9081),
        ("node7:9081", "node7", 9081),
        ("[::1]:9081", "::1", 9081),
        ("", "", 0),
        ("node7", "", 0),
        ("node7:0", "", 0),
        ("node7:65536", "", 0),
        ("node7:٩", "", 0),
        ("x" * 300 + ":9081", "", 0),
    ],
)
async def test_the_address_that_a_node_advertises_is_checked(
    advertised: str, host: str, port: int
) -> None:
    async def ask() -> log_pb2.RouteResponse:
        raise AssertionError("nobody asks")

    port_of_node = FramedPort("127.0.0.1:8081", None, ask, is_required=False)
    port_of_node.learn(log_pb2.RouteResponse(framed_address=advertised))
    assert (port_of_node._host, port_of_node._port) == (host, port)


async def test_frames_only_cannot_use_credentials_of_grpc() -> None:
    credentials = grpc.ssl_channel_credentials()
    with pytest.raises(errors.InvalidRequestError, match=r"quorumlog\.ClientTls"):
        Channels(credentials, "framed")
    channels = Channels(credentials, "auto")
    assert channels.get("127.0.0.1:1").framed is None
    await channels.close()
    with pytest.raises(errors.InvalidRequestError, match="transport is 'pigeon'"):
        quorumlog.connect("127.0.0.1:1", transport="pigeon")  # type: ignore[arg-type]


async def test_a_request_too_large_for_a_frame_goes_over_grpc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MESSAGE_SIZE_BYTES_MAX", 1_000)
    offsets = {("orders", queue_id): 1 for queue_id in range(200)}
    async with fake_cluster() as cluster:
        cluster.topics["orders"] = 200
        async with connect(cluster) as client:
            await client.admin.commit_offsets("billing", offsets)
            assert len(cluster.offsets) == 200
            assert framed_requests(cluster) == 0
        async with connect(cluster, transport="framed") as client:
            with pytest.raises(errors.TooLargeError, match="has no room in a frame"):
                await client.admin.commit_offsets("billing", offsets)


async def test_a_batch_too_large_for_a_frame_goes_over_grpc_and_the_next_over_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch with offsets of many queues; the stream changes twice, and the order is kept."""
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        await send(producer, b"0", b"1")
        before = framed_requests(cluster)
        monkeypatch.setattr(frames, "REQUEST_SIZE_BYTES_MAX", 400)
        (receipt,) = await producer.send_batch("orders", [b"2" * 400], queue_id=0)
        assert (receipt.queue_offset, receipt.attempts) == (2, 1)
        assert framed_requests(cluster) == before
        await send(producer, b"3", b"4")
        await eventually(lambda: client.stats().framed_connections == 1)
        await send(producer, b"5", b"6")
        assert [body[:1] for body in cluster.bodies()] == [b"%d" % i for i in range(7)]
        await eventually(lambda: framed_requests(cluster) > before)


async def test_a_port_that_was_closed_makes_no_connection_any_more() -> None:
    async with fake_cluster() as cluster:
        channels = Channels(None, "auto")
        node = channels.get(cluster.nodes[1].address)
        assert node.framed is not None
        connection = await node.framed.connected()
        assert connection is not None
        await channels.keep_only(set())  # The node has left; a call still holds on to it.
        assert not connection.is_open
        assert await node.framed.connected() is None
        await channels.close()
