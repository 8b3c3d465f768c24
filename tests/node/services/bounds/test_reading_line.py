"""Requests are charged before they are read, those without room wait in turns, and none stays."""

import asyncio
import gc
import weakref
from typing import Any

import grpc
import pytest

from node.config.types import Address
from node.errors.common import BadRequestError, BusyError
from node.runtime.accounts import LIMITS, Accounts, Kind
from node.services.bounds.callers import GrpcCaller
from node.services.bounds.half_sent import HalfSent
from node.services.bounds.reading_line import REQUEST_SIZE_BYTES_MAX
from node.services.bounds.request_watch import RequestWatch
from node.services.calls import refuse
from node.services.server import OPTIONS, GrpcServer
from tests.node.services.bounds.callers import Callers
from tests.node.services.bounds.http2 import HalfSender
from tests.patience import PATIENCE_S, end, eventually

ROOM = [LIMITS[Kind.CALLS].part(part)[1] // REQUEST_SIZE_BYTES_MAX for part in (8, 2, 1)]
"""Requests of the largest size of a connection, of an address, and of all."""


class _Here:
    """Calls whose requests are read, and come when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.watch = RequestWatch(HalfSent(dict), lambda _: False, lambda: self.now_s)
        self.callers = Callers()
        self.tasks: list[asyncio.Task[bytes]] = []
        self.reading: dict[str, list[asyncio.Future[bytes]]] = {}

    async def call(self, peer: str, count: int = 1) -> None:
        self.reading.setdefault(peer, [])
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._call(self.callers(peer))))
        await self.settle()

    async def _call(self, caller: GrpcCaller) -> bytes:
        reading = self.reading[caller.peer]

        async def read() -> bytes:
            reading.append(asyncio.get_running_loop().create_future())
            return await reading[-1]

        return await self.watch.whole(read, caller)

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    def count(self, host: str = "") -> int:
        """Reads that wait for bytes, of peers that contain a text."""
        all_reads = [one for peer, reads in self.reading.items() if host in peer for one in reads]
        return sum(not one.done() for one in all_reads)

    async def arrive(self, peer: str) -> None:
        next(one for one in self.reading[peer] if not one.done()).set_result(b"x")
        await self.settle()

    async def end(self) -> None:
        await end(*self.tasks)
        assert self.callers.accounts.total.is_empty


async def test_reads_are_bounded_by_connection_and_address_and_leave_others_room() -> None:
    here = _Here()
    await here.call("ipv4:10.0.0.1:1", 100)
    assert here.count() == ROOM[0]
    for host in range(1, 4):
        for port in range(1, 9):
            await here.call(f"ipv4:10.0.0.{host}:{port}", 100)
    counts = [here.count(f"10.0.0.{host}:") for host in (1, 2, 3)]
    assert counts[0] == ROOM[1]
    assert sum(counts) < ROOM[2]
    assert here.callers.held(Kind.CALLS) == sum(counts) * REQUEST_SIZE_BYTES_MAX
    await here.call("ipv4:10.0.0.4:1")
    assert here.count("10.0.0.4:") == 1, "an address that holds nothing does not wait"
    for _ in range(4):
        await here.arrive("ipv4:10.0.0.1:1")
    assert here.count("10.0.0.1:") < counts[0], "it holds more than is left"
    assert here.count() > sum(counts) - 2, "so those with less have the next turns"
    await here.end()


async def test_connections_take_turns_and_a_long_wait_is_refused() -> None:
    here = _Here()
    await here.call("ipv4:10.0.0.1:1", ROOM[0])
    for port in range(2, 2 + ROOM[1] // ROOM[0] + 1):
        await here.call(f"ipv4:10.0.0.1:{port}", 2 * ROOM[0])
    await here.call("ipv4:10.0.0.1:99", 2)
    assert here.count() == ROOM[1]
    for _ in range(8):
        await here.arrive("ipv4:10.0.0.1:1")
        if here.count(":99"):
            break
    assert here.count(":99"), "its turn comes before all of those that came first"
    here.now_s += 30
    here.watch.look()
    await here.settle()
    refused = [task.exception() for task in here.tasks if task.done() and task.exception()]
    assert any(isinstance(error, BusyError) for error in refused)
    await here.end()


async def test_grpc_takes_a_window_of_a_request_that_nobody_reads() -> None:
    called = asyncio.Event()

    async def unread(_requests: object, _context: object) -> bytes:
        called.set()
        await asyncio.Event().wait()
        return b""

    methods = {"b": grpc.stream_unary_rpc_method_handler(unread, None, None)}
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sender = HalfSender(f"127.0.0.1:{port}")
    try:
        await asyncio.to_thread(sender.greet)
        sender.call(1, "/a/b", size_bytes=REQUEST_SIZE_BYTES_MAX - 5)
        sent = 0

        async def pour() -> None:
            nonlocal sent
            for _ in range(64):  # Probes of the line would be answered in this time.
                await asyncio.to_thread(sender.look)
                sent += sender.send(1, bytes(1 << 20))

        await asyncio.gather(called.wait(), pour())
        assert sent < 128 * 1024
    finally:
        sender.close()
        await server.stop(0)


async def test_a_refused_call_keeps_no_request_until_the_collector_runs() -> None:
    class _Request(bytearray):
        pass

    made: list[weakref.ref[_Request]] = []

    def parsed(data: bytes) -> _Request:
        request = _Request(data)
        made.append(weakref.ref(request))
        return request

    async def refused(request: _Request, context: Any) -> bytes:
        await refuse(BadRequestError("name", "another", str(len(request))), context)

    methods = {"b": grpc.unary_unary_rpc_method_handler(refused, parsed, None)}
    server = GrpcServer(Accounts())
    port = server.bind(Address("127.0.0.1", 0))
    await server.start({}, [grpc.method_handlers_generic_handler("a", methods)])
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.RpcError):
                await channel.unary_unary("/a/b")(b"x", timeout=PATIENCE_S)
        await eventually(lambda: bool(made) and made[0]() is None, "the request is gone")
    finally:
        gc.enable()
        await server.stop(0)
