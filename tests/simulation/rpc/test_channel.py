"""Calls of the small channel end as those of real gRPC do, and as network and deaths have it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc.aio
import pytest

from node.errors.common import NotReadyError
from node.services import server
from node.services.calls import refuse
from quorumlog.errors import Outcome, QuorumlogError, from_rpc
from simulation.rpc.channel import CONNECT_S
from simulation.rpc.substitute import rpc_parts
from simulation.world import World

PORT = 7_000
LIMIT_S = 120


class Methods:
    """Methods with the shapes that a node gives its server."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.stops = asyncio.Event()

    async def echo(self, requests: AsyncIterator[bytes], _context: Any) -> bytes:
        return b"".join([request async for request in requests])

    async def hang(self, _requests: AsyncIterator[bytes], _context: Any) -> bytes:
        self.seen.append("hangs")
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        return b""

    async def late(self, _requests: AsyncIterator[bytes], _context: Any) -> bytes:
        await asyncio.sleep(0.5)
        return b"late"

    async def fail(self, _requests: AsyncIterator[bytes], _context: Any) -> bytes:
        raise ValueError("a defect")

    async def copy(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            if request == b"refuse":
                await refuse(NotReadyError(3), context)
            if request == b"end":
                return
            yield request

    async def closed(self, _requests: AsyncIterator[bytes], context: Any) -> None:
        await refuse(NotReadyError(3), context)

    async def serve(self, address: str) -> tuple[Any, int]:
        """Start a server; return it with its port."""
        unary, both = (
            grpc.stream_unary_rpc_method_handler,
            grpc.stream_stream_rpc_method_handler,
        )
        handlers = {
            **{f.__name__: unary(f) for f in (self.echo, self.hang, self.late, self.fail)},
            **{f.__name__: both(f) for f in (self.copy, self.closed)},
        }
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),), maximum_concurrent_rpcs=99)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
        port = server.add_insecure_port(address)
        await server.start()
        return server, port


class Client:
    """A channel, and what the SDK makes of its calls."""

    def __init__(self, target: str) -> None:
        self.channel: Any = grpc.aio.insecure_channel(target, options=())
        self.target = target

    def unary(self, name: str, request: bytes = b"", timeout: float | None = 5) -> Any:
        return self.channel.unary_unary(f"/s/{name}", bytes, bytes)(request, timeout=timeout)

    def stream(self, name: str) -> Any:
        return self.channel.stream_stream(f"/s/{name}", None, bytes)(wait_for_ready=False)

    async def result(self, call: Awaitable[Any]) -> Any:
        """Return the answer; of an error its outcome and its code."""
        try:
            answer = await call
        except grpc.aio.AioRpcError as failed:
            error: QuorumlogError = from_rpc(failed, self.target)
            return error.outcome, error.code
        except asyncio.CancelledError:
            return "cancelled"
        return "EOF" if answer is grpc.aio.EOF else answer


async def all_outcomes() -> list[Any]:
    """Make every kind of call, and end it in every way."""
    methods = Methods()
    server, port = await methods.serve("127.0.0.1:0")
    client = Client(f"127.0.0.1:{port}")
    results = [await client.result(client.unary("echo", b"a"))]
    results += [await client.result(client.unary(name)) for name in ("fail", "closed", "unknown")]
    outcome, _ = await client.result(client.unary("hang", timeout=0.5))  # The code is a race.
    results.append(outcome)
    for last in (b"end", b"refuse"):
        stream = client.stream("copy")
        for message in (b"1", b"2", last):
            await stream.write(message)
        results += [await client.result(stream.read()) for _ in range(4)]
        with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
            await stream.write(b"3")
        results.append(await stream.code())
    answers = client.channel.unary_stream("/s/copy", bytes, bytes)(b"3")
    results.append([answer async for answer in answers])
    stream, reading = client.stream("copy"), client.stream("copy")
    waiting = asyncio.ensure_future(client.result(reading.read()))
    await asyncio.sleep(0)
    stream.cancel()
    results.append(await client.result(stream.read()))
    await client.channel.close()
    results.append(await waiting)
    with pytest.raises(grpc.aio.UsageError):
        await client.unary("echo")
    other = Client(client.target)
    await server.stop(1)
    results.append(await other.result(other.unary("echo")))
    await other.channel.close()
    return results


def real_parts() -> tuple[Any, ...]:
    shipped = (vars(server)[name] for name in ("cut_connection", "traffic_of"))
    return grpc.aio.insecure_channel, grpc.aio.secure_channel, grpc.aio.server, *shipped


def test_outcomes_are_those_of_real_grpc() -> None:
    async def live() -> int:
        results.append(await all_outcomes())
        return 0

    results: list[Any] = []
    before = real_parts()
    with World(1) as world, rpc_parts(world):
        process = world.add_machine().run("both", live)
        assert world.run_until(lambda: not process.is_alive, LIMIT_S), "it hangs"
        if process.error is not None:
            raise process.error
    assert real_parts() == before
    assert results[0] == asyncio.run(asyncio.wait_for(all_outcomes(), LIMIT_S))


class Net:
    """A server on one machine, a client on another."""

    def __init__(self, world: World) -> None:
        self.world, self.methods = world, Methods()
        self.machines = [world.add_machine(), world.add_machine()]
        self.serving = self.machines[0].run("server", self._serve)
        self.calling: Any = None
        world.run_s(0.01)

    async def _serve(self) -> int:
        server, _ = await self.methods.serve(f"{self.machines[0].address}:{PORT}")
        await self.methods.stops.wait()
        await server.stop(1)
        return 0

    def cut(self) -> None:
        self.world.network.cut(*(machine.address for machine in self.machines))

    def begin(self, work: Callable[[Client], Awaitable[Any]]) -> list[Any]:
        """Run a coroutine with a channel on the client's machine; its result comes into a list."""
        results: list[Any] = []

        async def live() -> int:
            results.append(await work(Client(f"{self.machines[0].address}:{PORT}")))
            return 0

        self.calling = self.machines[1].run("client", live)
        return results

    def run(self, work: Callable[[Client], Awaitable[Any]]) -> Any:
        results = self.begin(work)
        assert self.world.run_until(lambda: not self.calling.is_alive, LIMIT_S), "it hangs"
        if self.calling.error is not None:
            raise self.calling.error
        return results[0]


@pytest.fixture
def net() -> Iterator[Net]:
    with World(1) as world, rpc_parts(world):
        yield Net(world)


def test_calls_on_a_killed_server_have_an_unknown_outcome_and_later_ones_none(net: Net) -> None:
    async def work(client: Client) -> Any:
        call, stream = client.unary("hang"), client.stream("copy")
        await stream.write(b"1")
        await stream.read()
        net.serving.kill()
        results = [await client.result(call), await client.result(stream.read())]
        return [*results, await client.result(client.unary("echo"))]

    unknown, none = ((one, "client.unavailable") for one in (Outcome.UNKNOWN, Outcome.NOT_APPLIED))
    assert net.run(work) == [unknown, unknown, none]


def test_partition_is_silence_until_the_deadline(net: Net) -> None:
    async def work(client: Client) -> Any:
        call = client.unary("late", timeout=1)
        await asyncio.sleep(0.1)
        net.cut()
        first = await client.result(call)
        net.world.network.heal()
        return first[0], await client.result(client.unary("late"))

    assert net.run(work) == (Outcome.UNKNOWN, b"late")


def test_connect_into_a_partition_ends_without_effect(net: Net) -> None:
    net.cut()

    async def work(client: Client) -> Any:
        result = await client.result(client.unary("echo", timeout=CONNECT_S + 1))
        return result[0], await client.result(client.unary("echo", timeout=CONNECT_S / 2))

    refused, (late, _) = net.run(work)
    assert (refused, late) == (Outcome.NOT_APPLIED, Outcome.UNKNOWN)
    assert not net.methods.seen


def test_stream_to_a_machine_without_power_ends_by_silence(net: Net) -> None:
    async def work(client: Client) -> Any:
        stream = client.stream("copy")
        await stream.write(b"1")
        await stream.read()
        net.machines[0].has_power = False
        net.serving.kill()
        return await client.result(stream.read())

    assert net.run(work) == (Outcome.UNKNOWN, "client.unavailable")


@pytest.mark.parametrize("has_power", [True, False])
def test_method_is_cancelled_when_its_client_is_gone(net: Net, has_power: bool) -> None:
    net.begin(lambda client: client.result(client.unary("hang", timeout=None)))
    net.world.run_s(1)
    assert net.methods.seen == ["hangs"]
    net.machines[1].has_power = has_power
    net.calling.kill()
    assert net.world.run_until(lambda: "cancelled" in net.methods.seen, 1 if has_power else 30)


def test_stop_lets_calls_end_within_its_grace_and_ends_the_others(net: Net) -> None:
    async def work(client: Client) -> Any:
        late, hanging = client.unary("late"), client.unary("hang")
        await asyncio.sleep(0.1)
        net.serving.loop.call_soon(net.methods.stops.set)
        await asyncio.sleep(0.1)
        results = [await client.result(client.unary("echo")), await client.result(late)]
        return [*results, await client.result(hanging)]

    refused, late, ended = net.run(work)
    assert (refused[0], late, ended[0]) == (Outcome.NOT_APPLIED, b"late", Outcome.UNKNOWN)
    assert net.methods.seen == ["hangs", "cancelled"]
