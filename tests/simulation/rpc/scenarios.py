"""Scenarios of one client and one server in one process, for real gRPC and for the simulated one.

Each returns what a caller can notice. They wait for events, never for a time, except where a
deadline is the matter. `ALL` have one outcome; `RACES` have several in real gRPC, since two events
race in it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

SIZE_BYTES_MAX = 10_000
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", SIZE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", SIZE_BYTES_MAX + 100),
    ("grpc.max_send_message_length", 2 * SIZE_BYTES_MAX),
)


class Methods:
    """Methods of a server that do what a scenario needs."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.seen: list[Any] = []
        self.over = asyncio.Event()

    async def echo(self, request: bytes, _context: Any) -> bytes:
        return request

    async def facts(self, _request: bytes, context: Any) -> bytes:
        given = [
            (key, value) for key, value in context.invocation_metadata() if key != "user-agent"
        ]
        has_peer = re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", context.peer()) is not None
        left_s = context.time_remaining()
        return repr((given, has_peer, left_s is None or 50 < left_s < 61)).encode()

    async def fail(self, _request: bytes, _context: Any) -> bytes:
        raise ValueError("a defect")

    async def abort(self, _request: bytes, context: Any) -> None:
        context.set_trailing_metadata((("error-bin", b"\0\xff"), ("more", "text")))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no – not so\n")

    async def code(self, _request: bytes, context: Any) -> bytes:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details("not here")
        return b"left out"

    async def sized(self, request: bytes, _context: Any) -> bytes:
        return bytes(int(request))

    async def hang(self, _request: bytes, context: Any) -> bytes:
        self.began.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.seen.append(("cancelled", context.cancelled(), context.done()))
            raise
        finally:
            self.over.set()
        return b"late"

    async def copy(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            if request == b"end":
                return
            if request == b"abort":
                await context.abort(grpc.StatusCode.ABORTED, "as asked")
            if request == b"fail":
                raise ValueError("as asked")
            yield request

    async def count(self, requests: AsyncIterator[bytes], _context: Any) -> bytes:
        return b"%d" % len([one async for one in requests])

    async def numbers(self, request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number

    async def written(self, _request: bytes, context: Any) -> None:
        await context.send_initial_metadata((("first", "1"),))
        await context.write(b"one")
        context.set_trailing_metadata((("last", "2"),))

    async def reader(self, _requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                self.seen.append(message)
                self.began.set()
            self.seen.append("EOF")
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        finally:
            self.over.set()

    def handler(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        found = {
            one.__name__: unary(one)
            for one in (
                self.echo,
                self.facts,
                self.fail,
                self.abort,
                self.code,
                self.sized,
                self.hang,
            )
        }
        found["copy"] = grpc.stream_stream_rpc_method_handler(self.copy)
        found["reader"] = grpc.stream_stream_rpc_method_handler(self.reader)
        found["count"] = grpc.stream_unary_rpc_method_handler(self.count)
        found["numbers"] = grpc.unary_stream_rpc_method_handler(self.numbers)
        found["written"] = grpc.unary_stream_rpc_method_handler(self.written)
        return grpc.method_handlers_generic_handler("s", found)


class Pair:
    """A server and a channel to it."""

    def __init__(self, call_count_max: int | None = None) -> None:
        self.methods = Methods()
        self.server = grpc.aio.server(
            options=SERVER_OPTIONS, maximum_concurrent_rpcs=call_count_max
        )
        self.server.add_generic_rpc_handlers((self.methods.handler(),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=CHANNEL_OPTIONS)

    async def __aenter__(self) -> Pair:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.methods.go_on.set()
        await self.channel.close()
        await self.server.stop(None)

    def unary(self, name: str, request: bytes = b"", **more: Any) -> Any:
        return self.channel.unary_unary(f"/s/{name}")(request, **more)

    def stream(self, name: str) -> Any:
        return self.channel.stream_stream(f"/s/{name}")()

    async def outcome(self, call: Awaitable[Any]) -> Any:
        """Return what awaiting gives: a result, a status, or an error."""
        try:
            found = await call
        except grpc.aio.AioRpcError as error:
            details = (error.details() or "").replace(str(self.port), "PORT")
            debug = (error.debug_error_string() or "").replace(str(self.port), "PORT")
            return error.code().name, details, debug, list(error.trailing_metadata() or ())
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - it is the outcome.
            return type(error).__name__, str(error)
        return "EOF" if found is grpc.aio.EOF else found


async def answers() -> list[Any]:
    async with Pair() as pair:
        found = [await pair.outcome(pair.unary("echo", b"a"))]
        for name in ("fail", "abort", "code", "unknown"):
            found.append(await pair.outcome(pair.unary(name)))
        metadata = (("key", "value"), ("data-bin", b"\0\xff"))
        found.append(await pair.outcome(pair.unary("facts", metadata=metadata, timeout=60)))
        found.append(await pair.outcome(pair.unary("facts")))
        call = pair.unary("echo", b"b")
        await call
        found.append((await call.code(), await call.details(), call.done(), call.cancelled()))
        return found


async def sizes() -> list[Any]:
    async with Pair() as pair:
        return [
            await pair.outcome(pair.unary("sized", b"15000")),
            await pair.outcome(pair.unary("sized", b"25000")),
            await pair.outcome(pair.unary("echo", bytes(SIZE_BYTES_MAX + 101))),
            len(await pair.outcome(pair.unary("sized", b"10000"))),
        ]


async def a_deadline_passes() -> list[Any]:
    async with Pair() as pair:
        await pair.channel.channel_ready()
        # Long enough for a slow machine to begin the call at the server.
        found = [await pair.outcome(pair.unary("hang", timeout=1))]
        await pair.methods.over.wait()
        return [*found, pair.methods.seen]


async def a_deadline_has_passed() -> list[Any]:
    async with Pair() as pair:
        await pair.channel.channel_ready()
        return [await pair.outcome(pair.unary("echo", timeout=-1))]


async def cancelling() -> list[Any]:
    async with Pair() as pair:
        call = pair.unary("hang")
        await pair.methods.began.wait()
        found: list[Any] = [call.cancel(), await pair.outcome(call), call.cancel()]
        found += [await call.code(), await call.details(), call.cancelled(), call.done()]
        await pair.methods.over.wait()
        found.append(pair.methods.seen)
        at_once = pair.unary("echo")
        at_once.cancel()
        found.append(await pair.outcome(at_once))
        return found


async def a_reader_is_cancelled() -> list[Any]:
    async with Pair() as pair:
        call = pair.stream("copy")
        await call.write(b"1")
        found = [await pair.outcome(call.read())]
        reading = asyncio.ensure_future(call.read())
        await asyncio.sleep(0)
        reading.cancel()
        found.append(await pair.outcome(reading))
        return [*found, call.cancelled(), call.done(), await call.details()]


async def a_reading_method_is_cancelled() -> list[Any]:
    async with Pair() as pair:
        call = pair.stream("reader")
        await call.write(b"1")
        await pair.methods.began.wait()
        call.cancel()
        await pair.methods.over.wait()
        return pair.methods.seen


async def streams() -> list[Any]:
    async with Pair() as pair:
        found: list[Any] = []
        for last in (b"end", b"abort", b"fail"):
            call = pair.stream("copy")
            await call.write(b"1")
            found.append(await pair.outcome(call.read()))
            await call.write(last)
            found += [await pair.outcome(call.read()), await pair.outcome(call.read())]
            found += [await pair.outcome(call.write(b"2")), await call.code(), call.done()]
        call = pair.stream("copy")
        await call.write(b"1")
        await call.done_writing()
        found.append(await pair.outcome(call.write(b"2")))
        found += [await pair.outcome(call.read()), await pair.outcome(call.read())]
        call = pair.stream("copy")
        call.cancel()
        found.append(await pair.outcome(call.read()))
        return found


async def iterators() -> list[Any]:
    async with Pair() as pair:
        channel = pair.channel
        given = [b"1", b"2", b"3"]
        found: list[Any] = [await channel.stream_unary("/s/count")(iter(given))]
        found.append([one async for one in channel.stream_stream("/s/copy")(iter(given))])
        found.append([one async for one in channel.unary_stream("/s/numbers")(b"3")])
        call: Any = channel.unary_stream("/s/written")(b"")
        found += [await call.read(), await call.read() is grpc.aio.EOF]
        found += [list(await call.initial_metadata()), list(await call.trailing_metadata())]
        mixed: Any = channel.stream_stream("/s/copy")(iter(given))
        found.append(await pair.outcome(mixed.write(b"4")))
        mixed.cancel()
        return found


async def closing() -> list[Any]:
    async with Pair() as pair:
        call, stream = pair.unary("hang"), pair.stream("copy")
        await stream.write(b"1")
        await stream.read()
        await pair.methods.began.wait()
        ends = [asyncio.ensure_future(pair.outcome(one)) for one in (call, stream.read())]
        await asyncio.sleep(0)
        await pair.channel.close()
        found = [await one for one in ends]

        async def late() -> Any:
            return await pair.unary("echo")

        found.append(await pair.outcome(late()))
        return [*found, pair.channel.get_state()]


async def nobody_there() -> list[Any]:
    async with Pair() as pair:
        await pair.server.stop(None)
        found = [await pair.outcome(pair.unary("echo")), pair.channel.get_state()]
        stream = pair.stream("copy")
        found += [await pair.outcome(stream.write(b"1")), await pair.outcome(stream.read())]
        patient = pair.unary("echo", wait_for_ready=True, timeout=0.1)
        return [*found, await pair.outcome(patient)]


async def stopping_at_once() -> list[Any]:
    async with Pair() as pair:
        call, stream = pair.unary("hang"), pair.stream("copy")
        await stream.write(b"1")
        await stream.read()
        await pair.methods.began.wait()
        ends = [asyncio.ensure_future(pair.outcome(one)) for one in (call, stream.read())]
        await pair.server.stop(None)
        found = [await one for one in ends]
        # Before the channel knows, a call goes onto the connection that the server has left.
        await pair.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        return [*found, pair.methods.seen, await pair.outcome(pair.unary("echo"))]


async def stopping_with_grace() -> list[Any]:
    async with Pair() as pair:
        call = pair.unary("hang")
        await pair.methods.began.wait()
        stop = asyncio.ensure_future(pair.server.stop(60))
        await pair.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        found = [await pair.outcome(pair.unary("echo"))]
        pair.methods.go_on.set()
        found.append(await pair.outcome(call))
        await stop
        return found


async def too_many_calls() -> list[Any]:
    async with Pair(1) as pair:
        call = pair.unary("hang")
        await pair.methods.began.wait()
        found = [await pair.outcome(pair.unary("echo"))]
        pair.methods.go_on.set()
        return [*found, await pair.outcome(call)]


async def taken_port() -> list[Any]:
    async with Pair() as pair:
        other = grpc.aio.server(options=SERVER_OPTIONS)
        with_error = None
        try:
            other.add_insecure_port(f"127.0.0.1:{pair.port}")
        except RuntimeError as error:
            with_error = str(error).replace(str(pair.port), "PORT")
        return [with_error]


REFUSED = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:PORT: Failed to "
    "connect to remote host: Connection refused"
)
ALL: list[Callable[[], Awaitable[list[Any]]]] = [
    answers,
    sizes,
    a_deadline_has_passed,
    cancelling,
    a_reader_is_cancelled,
    streams,
    iterators,
    closing,
    nobody_there,
    stopping_with_grace,
    too_many_calls,
    taken_port,
]
RACES: list[tuple[Callable[[], Awaitable[list[Any]]], list[list[Any]]]] = [
    # Both ends have the deadline: the client gives the call up, or the server's status is first.
    (
        a_deadline_passes,
        [
            [
                ("DEADLINE_EXCEEDED", details, f"DEADLINE_EXCEEDED:{details}", []),
                [("cancelled", False, False)],
            ]
            for details in ("Stream removed (Deadline Exceeded)", "Deadline Exceeded")
        ],
    ),
    # The end of the requests and the end of the call are two events at the server. A method that is
    # cancelled before its turn comes sees the second one only.
    (a_reading_method_is_cancelled, [[b"1", "EOF", "cancelled"], [b"1", "cancelled"]]),
    # The client reads why its calls end, or writes to a closed connection before that.
    (
        stopping_at_once,
        [
            [
                ("UNAVAILABLE", details, f"UNAVAILABLE:{details}", []),
                ("UNAVAILABLE", details, f"UNAVAILABLE:{details}", []),
                [("cancelled", False, False)],
                ("UNAVAILABLE", REFUSED, f"UNAVAILABLE:{REFUSED}", []),
            ]
            for details in ("Cancelling all calls", "Stream removed (sendmsg: Broken pipe (32))")
        ],
    ),
]
"""Scenarios with all outcomes that real gRPC has."""
