"""Bounds over all connections of a port, against real sockets: bytes, time, number, fairness."""

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from node.framed.connection import FramedConnection, FramedConnections
from node.framed.frames import Reason
from node.framed.limits import FramedLimits
from node.runtime.accounts import Kind, Limit
from quorumlog.pb.log_pb2 import PullRequest, TailRequest
from tests.node.framed.clients import (
    CANCEL,
    KIND,
    PULL,
    TAIL,
    AsyncFramedClient,
    request,
)
from tests.node.framed.servers import Served, append, put, served
from tests.patience import eventually
from tests.store.records import numbers, record

pytestmark = pytest.mark.parametrize("loop", ["uvloop"])
LARGE = FramedLimits().frame_size_bytes_max


class Clock:
    """Monotonic seconds that tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def announced(size_bytes: int) -> bytes:
    """Return the first bytes of a frame of a size."""
    return struct.pack(">II", size_bytes - 4, KIND << 24 | 12)


def half(it: Served) -> int:
    return it.held(Kind.FRAMES)


async def half_is(it: Served, size_bytes: int) -> None:
    await eventually(lambda: half(it) == size_bytes, f"{size_bytes} half received bytes")


async def silent_client(it: Served, *, source: str = "127.0.0.1") -> AsyncFramedClient:
    """Return a client that takes nothing unless the test reads, with a small window."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.bind((source, 0))
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", it.port))
    client = await it.client_of(plain)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


async def fill(it: Served, count: int = 8, size_bytes: int = 20_000) -> None:
    """Append large messages, so that a pull has a large answer."""
    client = await it.client()
    for n in range(count):
        message = b"\x10\x01"  # record_count 1
        response = await client.call(1, n, message, record(n, size_bytes=size_bytes))
        assert response.append().record_count == 1


def pull_all(opaque: int) -> bytes:
    return request(PULL, opaque, PullRequest(topic="orders", max_count=100).SerializeToString())


# --- Half frames ---


async def test_a_frame_may_be_slow_for_its_time_and_no_longer(tmp_path: Path) -> None:
    clock = Clock()
    async with served(tmp_path, monotonic_s=clock) as it:
        slow, quick = await it.client(), await it.client()
        whole = append(1, 0, 1)
        slow.send(whole[:50])
        quick.send(whole[:50])
        await eventually(lambda: half(it) == 100, "half frames")
        clock.now_s += 29.9
        slow.send(whole[50:51])  # A byte now and then does not help.
        await eventually(lambda: half(it) == 101, "a byte")
        it.server.connections.look()
        quick.send(whole[50:])
        (await quick.read()).append()
        clock.now_s += 0.2
        it.server.connections.look()
        assert await slow.read_to_the_end() == b""
        assert it.closed == {Reason.FRAME_SLOW: 1}
        assert it.append_count == 1


async def test_each_frame_has_its_own_time(tmp_path: Path) -> None:
    clock = Clock()
    async with served(tmp_path, monotonic_s=clock) as it:
        client = await it.client()
        for n in range(5):
            whole = append(n, n, n + 1)
            client.send(whole[:60])
            await eventually(lambda: half(it) == 60, "half a frame")
            clock.now_s += 20
            it.server.connections.look()
            following = append(77, 0, 1)[:10] if n == 2 else b""
            client.send(whole[60:] + following)
            (await client.read()).append()
            if following:
                await eventually(lambda: half(it) == 10, "the next one")
                clock.now_s += 20
                it.server.connections.look()
                client.send(append(77, 0, 1)[10:])
                (await client.read()).append()
        assert it.closed == {}


async def test_time_in_which_the_node_does_not_read_is_not_the_clients(tmp_path: Path) -> None:
    clock, limits = Clock(), FramedLimits(window_count_max=1)
    async with served(tmp_path, monotonic_s=clock, limits=limits) as it:
        it.node.driver.is_holding = True
        client = await it.client()
        client.send(append(1, 0, 1) + append(2, 1, 2)[:40])
        await eventually(lambda: half(it) == 40, "a full window")
        clock.now_s += 60
        it.server.connections.look()
        it.node.driver.release()
        (await client.read()).append()
        clock.now_s += 29
        it.server.connections.look()
        client.send(append(2, 1, 2)[40:])
        assert (await client.read()).append().record_count == 1
        assert it.closed == {}


async def test_half_frames_of_all_are_bounded_and_the_busiest_address_pays(tmp_path: Path) -> None:
    held = {Kind.FRAMES: Limit("half", 1, 100_000, address_part=1, connection_part=1)}
    async with served(tmp_path, held=held) as it:
        good = await it.client()
        good.send(announced(LARGE) + bytes(20_000))
        hostile = [await it.client(local_addr=("127.0.0.2", 0)) for _ in range(3)]
        await eventually(lambda: half(it) == 20_008, "the honest one")
        for n, client in enumerate(hostile, 1):
            client.send(announced(LARGE) + bytes(24_992))
            await half_is(it, 20_008 + n * 25_000)
        hostile[1].send(bytes(5_000))
        assert await hostile[1].read_to_the_end() == b""
        assert it.closed == {Reason.HALF_FULL: 1}
        assert half(it) == 20_008 + 2 * 25_000
        good.close()
        await eventually(lambda: half(it) == 2 * 25_000, "what is given back")


# --- Number and idleness ---


async def test_connections_are_limited_and_the_newest_is_closed(tmp_path: Path) -> None:
    held = {Kind.CONNECTIONS: Limit("connections", 6)}
    async with served(tmp_path, held=held) as it:
        clients = [await it.client() for _ in range(3)]
        await eventually(lambda: it.server.connections.count == 3, "three")
        fourth = await it.client()
        assert await fourth.read_to_the_end() == b""
        assert it.closed == {Reason.NO_ROOM: 1}
        clients[0].close()
        await eventually(lambda: it.server.connections.count == 2, "room")
        fifth = await it.client()
        await put(fifth, 1, 0, 1)


async def test_connections_whose_time_is_over_at_once_end_some_in_a_turn_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.framed.connection._CLOSED_COUNT", 1)
    clock = Clock()
    async with served(tmp_path, monotonic_s=clock) as it:
        clients = [await it.client() for _ in range(6)]
        for client in clients[:3]:
            client.send(append(1, 0, 1)[:9])
        await eventually(lambda: len(it.server.connections._half) == 3, "three halves")
        await eventually(lambda: it.server.connections.count == 6, "six")
        clock.now_s += 601
        it.server.connections.look()
        assert it.closed == {Reason.FRAME_SLOW: 1}, "the first one, which is not idle, too"
        for client in clients:
            assert await client.read_to_the_end() == b""
        assert sum(it.closed.values()) == 6


async def test_idle_connections_are_closed_and_waiting_calls_are_not_idle(tmp_path: Path) -> None:
    clock = Clock()
    async with served(tmp_path, monotonic_s=clock) as it:
        idle, waiting, working = [await it.client() for _ in range(3)]
        waiting.send(request(TAIL, 1, TailRequest(topic="orders").SerializeToString()))
        await eventually(lambda: it.call_count == 1, "the tail")
        await eventually(lambda: it.server.connections.count == 3, "three")
        for n in range(12):
            await put(working, n, n, n + 1)
            assert (await waiting.read()).pull().record_count == 1
            clock.now_s += 60
            it.server.connections.look()
        assert await idle.read_to_the_end() == b""
        assert it.closed == {Reason.IDLE: 1}
        assert it.server.connections.count == 2


@pytest.mark.long
async def test_the_node_looks_by_itself_as_long_as_there_are_connections(tmp_path: Path) -> None:
    async with served(tmp_path, limits=FramedLimits(frame_ms_max=1)) as it:
        client = await it.client()
        client.send(b"\x00")
        assert await client.read_to_the_end() == b""
        assert it.closed == {Reason.FRAME_SLOW: 1}


# --- Answers that are not taken ---


@pytest.mark.long
async def test_calls_wait_while_answers_are_not_taken_and_can_be_cancelled(tmp_path: Path) -> None:
    """Reading stops, and calls that were read wait with their work: none of it is for nothing."""
    limits = FramedLimits(turn_frame_count_max=10)
    async with served(tmp_path, limits=limits, **FILES) as it:
        await fill(it)
        client = await silent_client(it)
        client.send(b"".join(pull_all(n) for n in range(60)))
        connections = it.server.connections
        await eventually(lambda: it.held(Kind.ANSWERS), "answers that wait")
        (connection,) = [one for one in connections.all if not one.is_taken]
        assert connection.is_held()
        assert it.held(Kind.ANSWERS) < 400_000  # One answer above the mark.
        conversation: Any = connection._conversations[KIND]
        cancelled = {opaque for opaque in conversation._under_way if opaque % 2}
        assert cancelled
        for opaque in cancelled:
            conversation.on_frame(KIND, request(PULL, opaque, flags=CANCEL)[8:], b"")
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        responses = [await client.read() for _ in range(60 - len(cancelled))]
        assert {response.opaque for response in responses} == set(range(60)) - cancelled
        for response in responses:
            assert response.pull().record_count == 8
            assert numbers(response.body) == list(range(8))
        assert not connection.is_held()
        assert it.held(Kind.ANSWERS) == connections.dropped_count == 0


async def test_a_client_that_takes_nothing_for_too_long_is_cut(tmp_path: Path) -> None:
    clock = Clock()
    async with served(tmp_path, monotonic_s=clock, **FILES) as it:
        await fill(it)
        client = await silent_client(it)
        await blocked(it, client)
        clock.now_s += 119
        it.server.connections.look()
        assert it.closed == {}
        clock.now_s += 2
        it.server.connections.look()
        assert it.closed == {Reason.NOT_TAKEN: 1}
        await eventually(lambda: it.held(Kind.ANSWERS) == 0, "its end")


@pytest.mark.long
async def test_answers_of_all_are_bounded_and_the_busiest_address_pays(tmp_path: Path) -> None:
    clock = Clock()
    held = {Kind.ANSWERS: Limit("answers", 1, 2 << 20, address_part=1, connection_part=1)}
    async with served(tmp_path, monotonic_s=clock, held=held, **FILES) as it:
        await fill(it)
        slow = await silent_client(it)
        await blocked(it, slow)
        connections = it.server.connections
        assert 0 < it.held(Kind.ANSWERS) < 1 << 20
        hostile = await silent_client(it, source="127.0.0.2")
        await woken_at_once(it, hostile)
        assert (2 << 20) - 170_000 < it.held(Kind.ANSWERS) <= 2 << 20
        assert connections.dropped_count > 0
        good = await it.client()
        good.send(pull_all(1))
        error = (await good.read()).error
        assert (error.code, error.retryable) == ("node.responses_wait", True)
        assert it.closed == {}  # Each had its chance to take something.
        clock.now_s += 1.5
        good.send(pull_all(2))
        assert numbers((await good.read()).body) == list(range(8))
        assert it.closed == {Reason.WAITING_FULL: 1}
        (left,) = [one for one in connections.all if not one.is_taken]
        assert left.host == "127.0.0.1"


@pytest.mark.long
async def test_a_tail_waits_for_its_client(tmp_path: Path) -> None:
    async with served(tmp_path, **FILES) as it:
        await fill(it, count=40)
        client = await silent_client(it)
        tail = TailRequest(topic="orders", max_size_bytes=40_000).SerializeToString()
        client.send(b"".join(request(TAIL, n, tail) for n in range(10)))
        connections = it.server.connections
        await eventually(lambda: it.held(Kind.ANSWERS) > 0, "answers that wait")
        read = -1
        while read != it.node.broker.pulls.size_bytes_total:
            read = it.node.broker.pulls.size_bytes_total
            await asyncio.sleep(0)
        (held,) = [one for one in connections.all if not one.is_taken]
        assert held.write_buffer_size_bytes < 400_000
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        seen: dict[int, list[int]] = {n: [] for n in range(10)}
        while any(len(one) < 40 for one in seen.values()):
            response = await client.read()
            seen[response.opaque] += numbers(response.body)
        assert all(one == list(range(40)) for one in seen.values())


FILES: dict[str, Any] = {"file_size_bytes": 1 << 20, "batch_size_bytes_max": 1 << 18}


async def blocked(it: Served, client: AsyncFramedClient) -> None:
    """Have a client ask for more than it takes."""
    before = set(it.server.connections.all)
    before -= {one for one in before if one.is_taken}

    def is_blocked() -> bool:
        return any(not one.is_taken for one in it.server.connections.all if one not in before)

    opaque, ended = 0, it.server.calls.served.counters.ended
    first = ended["Framed/pull"]

    def is_settled() -> bool:
        return ended["Framed/pull"] == first + opaque or is_blocked()

    while not is_blocked():
        assert opaque < 4_000, "the client took everything"
        client.send(pull_all(opaque))
        opaque += 1
        await eventually(is_settled, "its answer")


async def woken_at_once(it: Served, client: AsyncFramedClient) -> None:
    """Have 60 pulls of a client wait for one large message, which they all get in one turn."""
    last = PullRequest(topic="orders", queue_id=1, wait_ms=30_000).SerializeToString()
    client.send(b"".join(request(PULL, n, last) for n in range(60)))
    await eventually(lambda: it.node.broker.parked.readers.used == 60, "60 readers")
    other = await it.client()
    large = record(0, queue_id=1, size_bytes=150_000)
    assert (await other.call(1, 1, b"\x10\x01", large)).append().record_count == 1
    await eventually(lambda: it.call_count == 0, "their answers")


async def test_large_frames_of_many_connections_take_turns_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that arrive at once on many connections are checked in turns: between two of them
    the loop does all else."""
    async with served(tmp_path, **FILES) as it:
        clients = [await it.client() for _ in range(6)]
        await eventually(lambda: it.server.connections.count == 6, "all connections")
        monkeypatch.setattr("node.framed.connection.SLICE_S", -1.0)  # Whatever it takes.
        loop, turns, turn = asyncio.get_running_loop(), list[int](), 0
        go_on, next_turn = FramedConnection.go_on, FramedConnections._next_turn

        def begun(connections: FramedConnections) -> None:
            monkeypatch.setattr("node.framed.connection.SLICE_S", 0.0)
            next_turn(connections)

        def counted(connection: FramedConnection) -> None:
            nonlocal turn
            turns.append(turn)
            monkeypatch.setattr("node.framed.connection.SLICE_S", 3_600.0)
            go_on(connection)
            it.server.connections.spent_s = 1.0
            monkeypatch.setattr("node.framed.connection.SLICE_S", -1.0)

        def count_turn() -> None:
            nonlocal turn
            turn += 1
            if len(turns) < 6:
                loop.call_soon(count_turn)

        monkeypatch.setattr(FramedConnection, "go_on", counted)
        monkeypatch.setattr(FramedConnections, "_next_turn", begun)
        for n, client in enumerate(clients):
            client.send(append(1, 200 * n, 200 * n + 200))
        loop.call_soon(count_turn)
        for client in clients:
            assert (await client.read()).append().record_count == 200
        assert len(turns) == len(set(turns)) == 6
