"""What connections of the simulated gRPC meet: deaths, partitions, strangers, slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from quorumlog.errors import Outcome, QuorumlogError, UnavailableError, from_rpc
from simulation.machines.machine import Machine
from simulation.rpc import frames
from simulation.rpc.connection import WINDOW_SIZE_BYTES
from simulation.rpc.substitute import rpc_parts
from simulation.world import World
from tests.simulation.rpc.scenarios import CHANNEL_OPTIONS, SERVER_OPTIONS, Methods

PORT = 7_000
LIMIT_S = 120


class Net:
    """A server on one machine, a client on another."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server_machine, self.client_machine = world.add_machine(), world.add_machine()
        self.methods: Methods
        self.server: Any = None
        self.serve()

    @property
    def target(self) -> str:
        return f"{self.server_machine.address}:{PORT}"

    def serve(self) -> None:
        async def live() -> int:
            self.methods = Methods()
            self.server = server = grpc.aio.server(options=SERVER_OPTIONS)
            server.add_generic_rpc_handlers((self.methods.handler(),))
            assert server.add_insecure_port(self.target) == PORT
            await server.start()
            await server.wait_for_termination()
            return 0

        self.process = self.server_machine.run("server", live)

    def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a coroutine with a channel in a process of the client; return its result."""
        found: list[Any] = []

        async def live() -> int:
            async with grpc.aio.insecure_channel(self.target, options=CHANNEL_OPTIONS) as channel:
                found.append(await work(channel))
            return 0

        return self.run_on(self.client_machine, live, found)

    def run_on(self, machine: Machine, live: Any, found: list[Any]) -> Any:
        process = machine.run("client", live)
        assert self.world.run_until(lambda: not process.is_alive, LIMIT_S), "it hangs"
        if process.error is not None:
            raise process.error
        return found[0] if found else None

    async def error(self, call: Awaitable[Any]) -> tuple[str, QuorumlogError]:
        """Return the details of a failed call, and what the SDK makes of it."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        return caught.value.details() or "", from_rpc(caught.value, self.target)


@pytest.fixture
def net() -> Any:
    with World(1) as world, rpc_parts(world):
        net = Net(world)
        world.run_s(0.01)
        yield net


def test_calls_on_a_killed_server_have_an_unknown_outcome_and_later_ones_none(net: Net) -> None:
    async def work(channel: Any) -> Any:
        call, stream = channel.unary_unary("/s/hang")(b""), channel.stream_stream("/s/copy")()
        await stream.write(b"1")
        await stream.read()
        net.process.kill()
        found = [await net.error(call), await net.error(stream.read())]
        found.append(await net.error(channel.unary_unary("/s/echo")(b"")))
        return found

    *broken, refused = net.run(work)
    for details, error in broken:
        assert details == "Stream removed (recvmsg:Connection reset by peer (104))"
        assert isinstance(error, UnavailableError)
        assert error.outcome is Outcome.UNKNOWN
    assert refused[0] == (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:7000: Failed to "
        "connect to remote host: Connection refused"
    )
    assert isinstance(refused[1], UnavailableError)
    assert refused[1].outcome is Outcome.NOT_APPLIED


def test_a_channel_comes_back_when_the_server_does(net: Net) -> None:
    async def work(channel: Any) -> Any:
        echo = channel.unary_unary("/s/echo")
        await echo(b"1")
        net.process.kill()
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        with pytest.raises(grpc.aio.AioRpcError):
            await echo(b"2")
        net.serve()
        before_ns = net.world.hub.now_ns
        answer = await echo(b"3", wait_for_ready=True)
        return answer, net.world.hub.now_ns - before_ns

    answer, passed_ns = net.run(work)
    assert answer == b"3"
    assert passed_ns < 100_000_000, "the back-off of this channel is 50 ms at most"


def test_a_partition_is_silence_until_the_deadline(net: Net) -> None:
    async def work(channel: Any) -> Any:
        echo = channel.unary_unary("/s/echo")
        await echo(b"1")
        net.world.network.cut("10.0.0.1", "10.0.0.2")
        first = await net.error(echo(b"2", timeout=0.5))
        net.world.network.heal()
        return first, await echo(b"3", timeout=5)

    (details, error), answer = net.run(work)
    assert details == "Stream removed (Deadline Exceeded)"
    assert error.outcome is Outcome.UNKNOWN
    assert answer == b"3"


def test_a_connect_into_a_partition_times_out_without_effect(net: Net) -> None:
    net.world.network.cut("10.0.0.1", "10.0.0.2")

    async def work(channel: Any) -> Any:
        return await net.error(channel.unary_unary("/s/echo")(b""))

    details, error = net.run(work)
    assert details.endswith("Failed to connect to remote host: connect() timed out")
    assert error.outcome is Outcome.NOT_APPLIED


def test_a_process_that_accepts_and_says_nothing_is_no_server(net: Net) -> None:
    net.process.pause()

    async def work(channel: Any) -> Any:
        return await net.error(channel.unary_unary("/s/echo")(b""))

    details, error = net.run(work)
    assert details.endswith("connection attempt timed out before receiving SETTINGS frame")
    assert error.outcome is Outcome.NOT_APPLIED


def test_an_unknown_name_is_no_address(net: Net) -> None:
    async def live() -> int:
        async with grpc.aio.insecure_channel("nobody:7", options=CHANNEL_OPTIONS) as channel:
            call: Any = channel.unary_unary("/s/echo")(b"")
            details, _ = await net.error(call)
            assert details == (
                "errors resolving nobody:7: [field:hostname lookup error:address lookup failed for "
                "nobody:7: Domain name not found]"
            )
        return 0

    net.run_on(net.client_machine, live, [])


def test_a_writer_waits_for_a_reader_that_does_not_read(net: Net) -> None:
    async def work(channel: Any) -> Any:
        call = channel.stream_stream("/s/copy")()  # It reads, and its answers are not read.
        written = 0
        message = bytes(1_000)
        try:
            while True:
                async with asyncio.timeout(1):
                    await call.write(message)
                written += 1
        except TimeoutError:
            return written, call.cancelled()

    written, is_cancelled = net.run(work)
    assert 2 * WINDOW_SIZE_BYTES <= written * 1_000 <= 3 * WINDOW_SIZE_BYTES
    assert is_cancelled, "a write that is cancelled cancels its call, as in gRPC"


def test_a_write_that_waits_when_the_server_dies_fails_as_in_grpc(net: Net) -> None:
    async def fill(call: Any) -> None:
        while True:
            await call.write(bytes(9_000))

    async def work(channel: Any) -> Any:
        filling = asyncio.ensure_future(fill(channel.stream_stream("/s/copy")()))
        await asyncio.sleep(1)
        assert not filling.done()
        net.process.kill()
        return await net.error(filling)

    details, _ = net.run(work)
    assert details == "Internal error from Core"


def test_many_calls_share_one_connection(net: Net) -> None:
    async def work(channel: Any) -> Any:
        echo = channel.unary_unary("/s/echo")
        given = [b"%d" % number * 100 for number in range(50)]
        answers = await asyncio.gather(*map(echo, given))
        return answers == given

    assert net.run(work)
    assert len(net.server._server.connections) <= 1


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(100),
        b"\x01" + b"\xff" * 8,
        frames.frame(frames.CALL, 1),
        frames.frame(frames.PREFACE, 0) + frames.frame(frames.CALL, 1, b"[1]"),
        frames.frame(frames.PREFACE, 0) + frames.frame(frames.CALL, 1, b"{"),
        frames.frame(frames.PREFACE, 0)
        + frames.frame(frames.CALL, 1, frames.pack_call("/s/reader", None, ()))
        + frames.frame(frames.WINDOW, 1, b"x"),
        frames.frame(frames.PREFACE, 0)
        + frames.frame(frames.CALL, 1, frames.pack_call("/s/reader", None, ()))
        + frames.frame(frames.HEADERS, 1),
    ],
)
def test_bytes_of_strangers_end_their_connection_and_nothing_else(net: Net, data: bytes) -> None:
    async def stranger() -> int:
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()

        class Protocol(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                gone.set()

        transport, _ = await loop.create_connection(Protocol, net.server_machine.address, PORT)
        transport.write(data)
        async with asyncio.timeout(5):
            await gone.wait()
        return 0

    net.run_on(net.client_machine, stranger, [])

    async def work(channel: Any) -> Any:
        return await channel.unary_unary("/s/echo")(b"1")

    assert net.run(work) == b"1"


def test_a_client_machine_without_power_is_noticed_by_pings() -> None:
    options = (
        *SERVER_OPTIONS,
        ("grpc.keepalive_time_ms", 1_000),
        ("grpc.keepalive_timeout_ms", 500),
    )
    with World(2) as world, rpc_parts(world):
        here, there = world.add_machine(), world.add_machine()
        methods: list[Methods] = []

        async def serve() -> int:
            methods.append(Methods())
            server = grpc.aio.server(options=options)
            server.add_generic_rpc_handlers((methods[0].handler(),))
            server.add_insecure_port(f"{here.address}:{PORT}")
            await server.start()
            await methods[0].over.wait()
            return 0

        async def call() -> int:
            channel = grpc.aio.insecure_channel(f"{here.address}:{PORT}", options=CHANNEL_OPTIONS)
            await channel.unary_unary("/s/hang")(b"")
            return 0

        serving = here.run("server", serve)
        world.run_s(0.01)
        client = there.run("client", call)
        world.run_s(0.1)
        assert methods[0].began.is_set()
        there.has_power = False
        client.kill()
        assert world.run_until(lambda: not serving.is_alive, 5), "the call goes on for nobody"
        assert methods[0].seen == [("cancelled", False, False)]


def test_options_that_are_not_simulated_are_refused() -> None:
    with World(1) as world, rpc_parts(world):

        async def live() -> int:
            with pytest.raises(NotImplementedError, match=r"grpc\.lb_policy_name"):
                grpc.aio.insecure_channel("host1:1", options=(("grpc.lb_policy_name", "x"),))
            return 0

        process = world.add_machine().run("client", live)
        world.run_s(1)
        assert process.error is None
        assert process.exit_code == 0


def test_metadata_above_the_limit_of_a_server_are_refused(net: Net) -> None:
    async def work(channel: Any) -> Any:
        return await channel.unary_unary("/s/facts")(b"", metadata=(("key", "v" * 9_000),))

    with pytest.raises(NotImplementedError, match=r"above grpc\.max_metadata_size"):
        net.run(work)
