"""Clients that ask for much and take nothing: bounded in bytes and time, and others are served."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from node.config.types import Address
from node.errors.requests import ResponsesWaitError
from node.metrics import GRPC
from node.runtime.accounts import LIMITS, Kind
from node.services.bounds import connection_cut, response_watch
from node.services.bounds.connection_cut import Traffic, address_of, cut_connection, traffic_of
from node.services.bounds.half_sent import HalfSent
from node.services.bounds.request_watch import RequestWatch
from node.services.bounds.response_watch import (
    COPY_COUNT,
    LARGE_SIZE_BYTES,
    RESPONSE_MS_MAX,
    STUCK_MS,
    UNREAD_COUNT_MAX,
    UNREAD_MS,
    ResponseWatch,
)
from node.services.server import GrpcServer
from quorumlog.pb import log_pb2
from store.files.spare_descriptors import SpareDescriptors
from tests.node.processes import SingleNode
from tests.node.services.bounds.callers import Callers, echo_sender, echoing, unshared
from tests.node.services.bounds.half_senders import MIB, half_senders, metric, resident_size_bytes
from tests.patience import PATIENCE_S, eventually, wait_for

CALL_COUNT_MAX = 30
WAITING_SIZE_BYTES_MAX = LIMITS[Kind.ANSWERS].size_bytes_max // 2
"""What one address may have."""
HELD = 'held_bytes{kind="answers"}'
PULL = "/quorumlog.v1.LogService/Pull"


@pytest.mark.long
def test_pulls_that_nobody_reads_are_bounded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """100 of them made a node hold 940 MiB, for as long as their connections lived."""
    directory = tmp_path_factory.mktemp("unread") / "data"
    request = log_pb2.PullRequest(topic="orders", max_count=100, max_size_bytes=16 * MIB)
    data = request.SerializeToString()
    with SingleNode(directory, file_size_bytes="64MiB") as node, node.client() as client:
        client.create_topic("orders")
        for _ in range(8):
            client.append("orders", bytes(3 * MIB))
        before = resident_size_bytes(node)
        with half_senders(node, 20) as senders:
            for sender in senders:
                for stream in range(1, 21, 2):
                    sender.call(stream, PULL, size_bytes=len(data))
                    sender.send(stream, data)
            wait_for("a full table", lambda: metric(node, HELD) > 100 * MIB)
            for _ in range(5):  # They wait in the share of their address.
                assert client.pull("orders", max_size_bytes=16 * MIB).record_count > 0
            assert metric(node, HELD) <= WAITING_SIZE_BYTES_MAX
            # Each response is there up to three times while it is made, and malloc keeps what it
            # had: 0.9 to 1.4 GiB measured. All 200 would be 3 GiB, and stay.
            assert resident_size_bytes(node) - before < 8 * WAITING_SIZE_BYTES_MAX
        wait_for("the end of all", lambda: metric(node, HELD) == 0)


class Here:
    """A watch whose timer never runs, a clock, and the connections that were ended."""

    def __init__(self) -> None:
        self.now_s, self.cuts, self.peers = 100.0, list[str](), Callers()
        self.watch = ResponseWatch(self.cut, lambda: self.now_s)

    def cut(self, peer: str) -> bool:
        self.cuts.append(peer)
        return True

    def begin(self, peer: str, size_bytes: int) -> Any:
        return self.watch.begin(self.peers(f"ipv4:{peer}"), size_bytes)


PART = LIMITS[Kind.ANSWERS].size_bytes_max // 8 // COPY_COUNT


async def test_the_busiest_address_gives_way() -> None:
    here = Here()
    for name in ("1.1.1.1:7", "1.1.1.1:8", "2.2.2.2:7", "2.2.2.2:8", "2.2.2.2:9", "4.4.4.4:7"):
        here.begin(name, PART)
    with pytest.raises(ResponsesWaitError, match="have not taken"):
        here.begin("2.2.2.2:7", 2 * PART)  # More than its half.
    with pytest.raises(ResponsesWaitError, match="have not taken"):
        here.begin("3.3.3.3:1", 3 * PART)
    assert here.cuts == [], "nobody has been stuck for long"
    requests = RequestWatch(HalfSent(dict), here.cut, lambda: here.now_s)
    server: Any = SimpleNamespace(requests=requests, responses=here.watch)
    assert GRPC["responses_dropped"].read(server) == 2
    here.now_s += STUCK_MS / 1000
    last = here.begin("3.3.3.3:1", 3 * PART)
    assert here.cuts == ["ipv4:2.2.2.2:7"]
    assert here.peers.held(Kind.ANSWERS) == 8 * COPY_COUNT * PART
    here.watch.end(last)
    here.watch.end(last)
    assert here.peers.held(Kind.ANSWERS) == 5 * COPY_COUNT * PART
    here.begin("1.1.1.1:1", LARGE_SIZE_BYTES - 1)
    assert here.peers.held(Kind.ANSWERS) == 5 * COPY_COUNT * PART


async def test_a_response_is_cut_after_its_time() -> None:
    here = Here()
    here.begin("1.1.1.1:1", PART)
    here.now_s += 1
    here.begin("1.1.1.1:2", PART)
    here.now_s += RESPONSE_MS_MAX / 1000 - 1
    here.watch.look()
    assert (here.cuts, here.peers.held(Kind.ANSWERS)) == (["ipv4:1.1.1.1:1"], COPY_COUNT * PART)
    assert here.watch.cut_count == 1


@pytest.mark.parametrize(
    ("family", "host", "form"),
    [(socket.AF_INET, "127.0.0.1", "ipv4:{}:{}"), (socket.AF_INET6, "::1", "ipv6:%5B{}%5D:{}")],
)
def test_a_single_connection_is_cut_and_no_other(
    family: socket.AddressFamily, host: str, form: str
) -> None:
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        with (
            socket.create_connection((host, port), timeout=PATIENCE_S) as one,
            server.accept()[0],
            socket.create_connection((host, port), timeout=PATIENCE_S) as other,
            server.accept()[0] as kept,
        ):
            peer = form.format(host, one.getsockname()[1])
            assert not cut_connection(peer, port + 1)
            assert cut_connection(peer, port)
            assert one.recv(1) == b""
            kept.sendall(b"x")
            assert other.recv(1) == b"x"
            assert not cut_connection("unix:/a/path", port)
            assert not cut_connection("ipv4:nothing", port)


def test_without_a_descriptor_left_traffic_is_told_and_a_connection_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_cut, "SPARE", spare := SpareDescriptors())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as one,
            server.accept()[0] as accepted,
        ):
            one.sendall(b"abc")
            assert accepted.recv(3) == b"abc"
            peer = f"ipv4:127.0.0.1:{one.getsockname()[1]}"
            with no_descriptors():
                assert traffic_of(port) is None, "nor one kept aside"
                assert not cut_connection(peer, port)
            spare.fill()
            with no_descriptors():
                assert traffic_of(port) == {address_of(peer): Traffic(received=3, sent=0)}
                assert cut_connection(peer, port)
            assert one.recv(1) == b""
    while spare._give_up_one():
        pass


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Let the process have no descriptor more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)  # Each number below is in use.
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(lowest)


async def test_small_responses_that_nobody_takes_are_bounded_in_number_and_time() -> None:
    here = Here()
    for n in range(2 * UNREAD_COUNT_MAX):
        here.begin(f"2.2.2.2:{n // 512}", 100)
    entry = here.begin("3.3.3.3:1", 100)
    here.now_s += UNREAD_MS / 1000
    here.watch.look()
    assert here.cuts == [], "nobody could take them while the node was held"
    here.now_s += 1
    here.watch.look()
    assert here.cuts == ["ipv4:2.2.2.2:0", "ipv4:2.2.2.2:1", "ipv4:2.2.2.2:2"]
    here.now_s += RESPONSE_MS_MAX / 1000
    here.watch.end(entry)
    here.watch.look()
    assert here.cuts[3:] == ["ipv4:2.2.2.2:3"]
    assert here.watch.cut_count == 4
    assert here.peers.accounts.total.is_empty


async def test_an_unread_answer_does_not_hold_calls_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a window of 0 a few connections held all calls that a node serves at once."""
    monkeypatch.setattr(response_watch, "UNREAD_COUNT_MAX", 2)
    monkeypatch.setattr(response_watch, "UNREAD_MS", 3_600_000)
    server, call_count = GrpcServer(unshared(CALL_COUNT_MAX)), 0

    async def count() -> None:
        nonlocal call_count
        call_count += 1

    port = server.bind(Address("127.0.0.1", 0))
    await server.start({}, [echoing(count)])
    sender = await asyncio.to_thread(echo_sender, port, CALL_COUNT_MAX, takes_nothing=True)
    # A call of the channel before that would take the place of one of these.
    await eventually(lambda: call_count == CALL_COUNT_MAX, "a full server")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        echo = channel.unary_unary("/echo/unary")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await echo(b"x", timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # From now on, since a busy machine may need longer to fill the server.
        monkeypatch.setattr(response_watch, "UNREAD_MS", 1_000)
        is_served = False
        while not is_served:
            with contextlib.suppress(grpc.aio.AioRpcError):
                is_served = await echo(b"x", timeout=PATIENCE_S) == b"x"
    sender.close()
    await server.stop(100)
    assert server.responses.cut_count == 1
