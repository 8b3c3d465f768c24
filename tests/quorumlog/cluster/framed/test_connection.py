"""One framed connection: cancels, deadlines, limits, and a node that is broken or hostile."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog import errors
from quorumlog.cluster.framed.connection import BAD_FRAME, CALLS_MAX, NodeConnection
from quorumlog.cluster.framed.frames import FRAME_SIZE_BYTES_MAX, FRAMED_METHODS
from quorumlog.errors import Outcome
from quorumlog.pb import common_pb2, log_pb2
from tests.patience import end, eventually
from tests.quorumlog.fake_frames import CANCEL, ERROR, RESPONSE, frame

PULL = FRAMED_METHODS["Pull"]
APPEND = FRAMED_METHODS["Append"]
REQUEST = log_pb2.PullRequest(topic="orders").SerializeToString()
ANSWER = log_pb2.PullResponse(next_offset=5).SerializeToString()
BUSY = common_pb2.Error(code="node.busy", message="full", retryable=True).SerializeToString()

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, int]:
    """Return method, flags, opaque and time-out of the next request."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    rest = await reader.readexactly(size)
    method, flags, _, opaque, timeout_ms = struct.unpack_from(">BBHII", rest, 4)
    return method, flags, opaque, timeout_ms


@asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[NodeConnection]:
    """Connect to a server that does as `serve` says."""
    served: list[asyncio.Task[Any]] = []

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.append(task)
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = NodeConnection(f"127.0.0.1:{port}", on_end=lambda _: None)
    await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)
    try:
        yield connection
    finally:
        connection.close()
        server.close()
        await end(*served)


async def idle(reader: Any, writer: Any) -> None:
    """Answer nothing."""
    await asyncio.Event().wait()


class Forgetful:
    """A caller that drops its answers."""

    method = APPEND.number

    def on_answer(self, opaque: int, flags: int, message: bytes, body: bytes) -> None:
        pass

    def on_lost(self, error: errors.QuorumlogError) -> None:
        pass


async def call(connection: NodeConnection, timeout_s: float = 30) -> Any:
    return await connection.call(PULL, REQUEST, b"", timeout_s)


async def test_silently_dead_node_is_noticed_in_ten_seconds() -> None:
    async with connected(idle) as connection:
        own = connection._transport.get_extra_info("socket")
        option = partial(own.getsockopt, socket.IPPROTO_TCP)
        idle_s, interval_s = option(socket.TCP_KEEPIDLE), option(socket.TCP_KEEPINTVL)
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert idle_s + option(socket.TCP_KEEPCNT) * interval_s == 10
        assert option(socket.TCP_USER_TIMEOUT) == 10_000


async def test_answers_come_in_any_order_and_with_errors() -> None:
    async def serve(reader: Any, writer: Any) -> None:
        opaques = [(await read_frame(reader))[2] for _ in range(3)]
        writer.write(frame(2, RESPONSE, opaques[2], ANSWER, b"third"))
        writer.write(frame(2, RESPONSE | ERROR, opaques[0], BUSY))
        writer.write(frame(2, RESPONSE, opaques[1], ANSWER, b"second"))
        await reader.read()

    async with connected(serve) as connection:
        results: list[Any] = await asyncio.gather(
            *(call(connection) for _ in range(3)), return_exceptions=True
        )
        first, second, third = results
        assert isinstance(first, errors.BusyError)
        assert (second.records, third.records) == (b"second", b"third")


async def test_a_cancelled_call_is_cancelled_at_the_node_and_its_late_answer_is_dropped() -> None:
    seen: list[tuple[int, int, int, int]] = []

    async def serve(reader: Any, writer: Any) -> None:
        seen.append(await read_frame(reader))
        seen.append(await read_frame(reader))
        writer.write(frame(2, RESPONSE, seen[0][2], ANSWER))  # It was on its way.
        seen.append(await read_frame(reader))
        writer.write(frame(2, RESPONSE, seen[2][2], ANSWER))
        await reader.read()

    async with connected(serve) as connection:
        task = asyncio.create_task(call(connection, timeout_s=7))
        await eventually(lambda: len(seen) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await call(connection)).next_offset == 5
        assert seen[0][:2] == (2, 0)
        assert 6_000 < seen[0][3] <= 7_000
        assert seen[1] == (2, CANCEL, seen[0][2], 0)


async def test_a_call_without_an_answer_ends_at_its_deadline_and_the_connection_lives() -> None:
    seen: list[tuple[int, int, int, int]] = []

    async def serve(reader: Any, writer: Any) -> None:
        for _ in range(3):
            seen.append(await read_frame(reader))
        writer.write(frame(2, RESPONSE, seen[2][2], ANSWER))
        await reader.read()

    async with connected(serve) as connection:
        with pytest.raises(errors.DeadlineError, match="gave no answer in time") as caught:
            await call(connection, timeout_s=0.02)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert (await call(connection)).next_offset == 5
        assert seen[1][1:3] == (CANCEL, seen[0][2])


BAD: dict[str, Callable[[int], bytes]] = {
    "garbage": lambda opaque: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an unknown opaque": lambda opaque: frame(2, RESPONSE, opaque + 9, ANSWER),
    "an answer twice": lambda opaque: 2 * frame(2, RESPONSE, opaque, ANSWER),
    "more than one answer": lambda opaque: frame(2, RESPONSE | 4, opaque, ANSWER),
    "a message that is none": lambda opaque: frame(2, RESPONSE, opaque, b"\xff\xff\xff"),
    "an error that is none": lambda opaque: frame(2, RESPONSE | ERROR, opaque, b"\xff\xff\xff"),
    "an answer of another method": lambda opaque: frame(9, RESPONSE, opaque, ANSWER),
    "an error of another method": lambda opaque: frame(1, RESPONSE | ERROR, opaque, BUSY),
    "records with an error": lambda opaque: frame(2, RESPONSE | ERROR, opaque, BUSY, b"records"),
    "records in the message": lambda opaque: frame(
        2, RESPONSE, opaque, log_pb2.PullResponse(records=b"records").SerializeToString()
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_node_that_breaks_the_protocol_is_left_and_all_calls_fail(what: str) -> None:
    closed = asyncio.Event()

    async def serve(reader: Any, writer: Any) -> None:
        opaque = (await read_frame(reader))[2]
        await read_frame(reader)
        writer.write(BAD[what](opaque))
        await reader.read()
        closed.set()

    async with connected(serve) as connection:
        results = await asyncio.gather(call(connection), call(connection), return_exceptions=True)
        failed = [result for result in results if isinstance(result, errors.UnavailableError)]
        assert len(failed) == (1 if what == "an answer twice" else 2)
        assert {(error.code, error.outcome, error.retryable) for error in failed} == {
            (BAD_FRAME, Outcome.UNKNOWN, True)
        }
        assert connection.broke_protocol
        assert not connection.is_open
        assert not connection.calls
        async with asyncio.timeout(10):
            await closed.wait()


async def test_half_a_frame_costs_what_arrived_and_ends_with_the_patience_of_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        opaque = (await read_frame(reader))[2]
        writer.write(frame(2, RESPONSE, opaque, ANSWER, bytes(1_000))[:500])
        await reader.read()

    async with connected(serve) as connection:
        monkeypatch.setattr("quorumlog.cluster.framed.connection.FRAME_STALL_S", 0.0)
        waiting = asyncio.create_task(call(connection))
        await eventually(lambda: len(connection._reader.partial) == 500)
        with pytest.raises(errors.DeadlineError):
            await call(connection, timeout_s=0.02)
        with pytest.raises(errors.UnavailableError, match="half a frame, and no more"):
            await waiting
        assert connection.broke_protocol


async def test_a_connection_that_breaks_leaves_what_was_sent_unknown_and_the_rest_unsent() -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await read_frame(reader)
        await read_frame(reader)

    async with connected(serve) as connection:
        sent = [asyncio.create_task(call(connection)) for _ in range(2)]
        await asyncio.sleep(0)
        connection.is_writable = False
        unsent = asyncio.create_task(call(connection))
        for task in sent:
            with pytest.raises(errors.UnavailableError) as caught:
                await task
            assert caught.value.outcome is Outcome.UNKNOWN
        with pytest.raises(errors.UnavailableError) as caught:
            await unsent
        assert caught.value.outcome is Outcome.NOT_APPLIED
        with pytest.raises(errors.UnavailableError) as caught:
            await call(connection)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert not connection.broke_protocol


async def test_a_node_that_reads_nothing_makes_calls_wait_and_their_wait_has_no_effect() -> None:
    async def serve(reader: Any, writer: Any) -> None:
        reader._transport.pause_reading()
        await asyncio.Event().wait()

    async with connected(serve) as connection:
        large = bytes(FRAME_SIZE_BYTES_MAX)
        tasks = []
        while connection.is_writable:
            tasks.append(asyncio.create_task(connection.call(APPEND, b"", large, 30)))
            await asyncio.sleep(0)
        assert len(tasks) <= 3
        with pytest.raises(errors.DeadlineError, match="took nothing within") as caught:
            await call(connection, timeout_s=0.02)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        await end(*tasks)


async def test_senders_that_wait_for_room_have_their_turns_in_order() -> None:
    """One that always has more to send lets the others send as much."""

    async def serve(reader: Any, writer: Any) -> None:
        while True:
            _, _, opaque, _ = await read_frame(reader)
            writer.write(frame(APPEND.number, RESPONSE, opaque, b""))

    sent = [0] * 8
    body = bytes(FRAME_SIZE_BYTES_MAX // 2)

    async def send(number: int) -> None:
        while sum(sent) < 64:
            await connection.wait_for_room()
            connection.send(APPEND.number, b"", body, 30_000, Forgetful())
            sent[number] += 1

    async with connected(serve) as connection:
        await asyncio.gather(*(send(number) for number in range(len(sent))))
        # The first may find room before anybody waits.
        assert max(sent) - min(sent) <= 4, sent
        assert not connection.waiters


async def test_waiter_that_gives_up_passes_its_turn_on() -> None:
    async with connected(idle) as connection:
        connection.pause_writing()
        first = asyncio.create_task(connection.wait_for_room())
        second = asyncio.create_task(connection.wait_for_room())
        third = asyncio.create_task(connection.wait_for_room())
        await asyncio.sleep(0)
        second.cancel()  # While it waits.
        connection.resume_writing()
        first.cancel()  # After its turn came, and before it took it.
        await third
        for one in (first, second):
            with pytest.raises(asyncio.CancelledError):
                await one
        assert not connection.waiters


async def test_waiters_that_give_up_leave_at_a_cost_that_others_do_not_raise() -> None:
    compared = 0

    class Counted(asyncio.Future[None]):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        __hash__ = asyncio.Future.__hash__

    async with connected(idle) as connection:
        connection.pause_writing()
        with pytest.MonkeyPatch.context() as patch:
            loop = asyncio.get_running_loop()
            patch.setattr(loop, "create_future", lambda: Counted(loop=loop))
            waiting = [asyncio.create_task(connection.wait_for_room()) for _ in range(2_000)]
            await asyncio.sleep(0)
            assert len(connection.waiters) == len(waiting)
            for one in reversed(waiting):
                one.cancel()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in outcomes)
        assert not connection.waiters
        assert compared < 2 * len(waiting), "each looks for itself among all others"


async def test_calls_under_way_have_a_limit() -> None:
    async def serve(reader: Any, writer: Any) -> None:
        while True:
            _, flags, opaque, _ = await read_frame(reader)
            if not flags:
                opaques.append(opaque)
            if len(opaques) == CALLS_MAX:
                await go.wait()
                writer.write(b"".join(frame(2, RESPONSE, each, ANSWER) for each in opaques))
                opaques.clear()

    opaques: list[int] = []
    go = asyncio.Event()
    async with connected(serve) as connection:
        tasks = [asyncio.create_task(call(connection)) for _ in range(CALLS_MAX + 1)]
        await eventually(lambda: len(opaques) == CALLS_MAX)
        assert len(connection.calls) == CALLS_MAX
        go.set()
        await asyncio.gather(*tasks[:-1])
        tasks[-1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[-1]


async def test_numbers_of_calls_begin_again_after_the_last() -> None:
    async def serve(reader: Any, writer: Any) -> None:
        while True:
            opaque = (await read_frame(reader))[2]
            seen.append(opaque)
            writer.write(frame(2, RESPONSE, opaque, ANSWER))

    seen: list[int] = []
    async with connected(serve) as connection:
        connection._last_opaque = (1 << 32) - 2
        await call(connection)
        await call(connection)
        assert seen == [(1 << 32) - 1, 1]


async def test_the_wait_for_room_is_part_of_the_time_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected(idle) as connection:
        late_s, sent = [0.0], list[int]()
        clock = SimpleNamespace(monotonic=lambda: late_s[0])
        monkeypatch.setattr("quorumlog.cluster.framed.connection.time", clock)

        async def wait_for_room() -> None:
            late_s[0] = 20.0

        def send(_method: int, _message: bytes, _body: bytes, timeout_ms: int, _: Any) -> int:
            sent.append(timeout_ms)
            raise errors.UnavailableError("enough")

        monkeypatch.setattr(connection, "wait_for_room", wait_for_room)
        monkeypatch.setattr(connection, "send", send)
        with pytest.raises(errors.UnavailableError):
            await connection.call(PULL, REQUEST, b"", 30.0)
        assert sent == [10_000]
