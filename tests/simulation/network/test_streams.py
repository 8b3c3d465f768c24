"""Streams between simulated machines keep their order, and end as those of TCP do."""

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.kernel.machines import BareMachine, BareWorld

PORT = 7000
Main = Callable[[], Coroutine[Any, Any, int]]


class Server(asyncio.Protocol):
    """Keeps what it receives, and sends it back if told to."""

    def __init__(self, *, echoes: bool = False) -> None:
        self.echoes = echoes
        self.received = bytearray()
        self.transport: Any = None
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.echoes:
            self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


class Client(asyncio.BufferedProtocol):
    """Keeps what it receives, through a small buffer."""

    def __init__(self) -> None:
        self.buffer = bytearray(100)
        self.received = bytearray()
        self.lost: list[Exception | None] = []
        self.is_paused = False

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Pair:
    """A server and a client on machines of their own, connected after a second."""

    def __init__(self, seed: int = 1, *, echoes: bool = False) -> None:
        self.world = BareWorld(seed)
        self.near, self.far = self.world.machine(), self.world.machine()
        self.server, self.client = Server(echoes=echoes), Client()
        self.transport: Any = None
        self.serving = self.far.run(self._serve)
        self.calling = self.near.run(self._call)
        self.world.run_s(1)
        assert self.transport is not None

    async def _serve(self) -> int:
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: self.server, self.far.address, PORT)
        await asyncio.Event().wait()
        return 0

    async def _call(self) -> int:
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        connection = await loop.create_connection(lambda: self.client, self.far.address, PORT)
        self.transport = connection[0]
        await asyncio.Event().wait()
        return 0


def failure(world: BareWorld, machine: BareMachine, address: str, seconds: float) -> Any:
    """Return the error of a connect, None while there is no answer."""
    found: list[Any] = [None]

    async def main() -> int:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(Client, address, PORT)
        except OSError as error:
            found[0] = error
        return 0

    machine.run(main)
    world.run_s(seconds)
    return found[0]


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_once_and_in_order_through_a_lossy_link(seed: int) -> None:
    pair = Pair(seed, echoes=True)
    for one, other in ((pair.near, pair.far), (pair.far, pair.near)):
        pair.world.network.direction(one.address, other.address).loss = 0.3
    sent = bytes(range(256)) * 4096  # More than the window.
    pair.transport.write(sent[:10])
    pair.transport.writelines([sent[10:70_000], sent[70_000:]])
    assert pair.transport.get_write_buffer_size() > 0
    assert pair.client.is_paused
    pair.world.run_s(120)
    assert pair.server.received == sent
    assert pair.client.received == sent
    assert not pair.client.is_paused


def test_receiver_that_does_not_read_stops_the_sender() -> None:
    pair = Pair()
    pair.server.transport.pause_reading()
    for _ in range(20):
        pair.transport.write(bytes(100_000))
    pair.world.run_s(10)
    assert not pair.server.received
    assert pair.client.is_paused
    assert pair.transport.get_write_buffer_size() > 1_000_000
    pair.server.transport.resume_reading()
    pair.world.run_s(10)
    assert len(pair.server.received) == 2_000_000


def test_close_delivers_what_was_written_and_ends_both_sides() -> None:
    pair = Pair()
    pair.transport.write(b"the last word")
    pair.transport.close()
    pair.world.run_s(5)
    assert pair.server.received == b"the last word"
    assert pair.server.lost == [None]
    assert pair.client.lost == [None]


def test_end_of_a_process_resets_its_streams() -> None:
    pair = Pair()
    pair.serving.kill()
    pair.world.run_s(1)
    assert [type(error) for error in pair.client.lost] == [ConnectionResetError]
    error = failure(pair.world, pair.near, pair.far.address, 5)
    assert error.errno == errno.ECONNREFUSED


def test_machine_without_power_is_silent() -> None:
    pair = Pair()
    pair.far.has_power = False
    pair.serving.kill()
    pair.world.run_s(10)
    assert pair.client.lost == []
    pair.transport.write(b"is anybody there?")
    pair.world.run_s(60)
    assert [getattr(error, "errno", None) for error in pair.client.lost] == [errno.ETIMEDOUT]
    error = failure(pair.world, pair.near, pair.far.address, 60)
    assert error.errno == errno.ETIMEDOUT


@pytest.mark.parametrize("is_back", [False, True])
def test_probes_find_a_machine_that_lost_its_power_in_silence(*, is_back: bool) -> None:
    pair = Pair()
    stream = pair.transport.get_extra_info("socket")
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pair.world.run_s(60)
    assert pair.client.lost == []
    pair.far.has_power = False
    pair.serving.kill()
    pair.far.has_power = is_back
    pair.world.run_s(25)
    wanted = errno.ECONNRESET if is_back else errno.ETIMEDOUT
    assert [getattr(error, "errno", None) for error in pair.client.lost] == [wanted]


@pytest.mark.parametrize("both", [True, False])
def test_partition_delays_one_way_or_both_until_it_is_over(*, both: bool) -> None:
    pair = Pair()
    pair.world.network.cut(pair.near.address, pair.far.address, both=both)
    pair.transport.write(b"patience")
    pair.server.transport.write(b"arrives")
    pair.world.run_s(5)
    assert not pair.server.received
    assert bytes(pair.client.received) == (b"" if both else b"arrives")
    pair.world.network.heal()
    pair.world.run_s(2)
    assert pair.server.received == b"patience"
    assert pair.client.lost == []


def test_names_resolve_and_unknown_ones_do_not() -> None:
    pair = Pair()
    assert pair.world.network.resolve(pair.far.name) == pair.far.address
    error = failure(pair.world, pair.near, "nobody", 5)
    assert isinstance(error, OSError)
