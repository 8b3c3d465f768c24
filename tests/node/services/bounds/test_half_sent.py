"""Who is let go for messages that stay half, told from what the kernel counts."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from node.errors.requests import StreamSilentError
from node.runtime.accounts import LIMITS, Kind
from node.services.bounds.connection_cut import TcpAddress, Traffic, address_of
from node.services.bounds.half_sent import HALF_SIZE_BYTES_MIN, HalfSent
from node.services.bounds.request_watch import (
    HALF_TOO_MUCH,
    HALF_TOO_SLOW,
    RequestWatch,
)
from tests.node.services.bounds.callers import Callers
from tests.patience import end

MIB = 1 << 20
HALF_SIZE_BYTES_MAX = LIMITS[Kind.HALF_STREAMS].size_bytes_max
HEAD_SIZE_BYTES = 14


class Here:
    """A watch, a clock, and what the kernel says."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.traffic: dict[TcpAddress, Traffic] = {}
        self.can_tell = True
        self.callers = Callers()
        self.cut: list[str] = []
        half = HalfSent(lambda: dict(self.traffic) if self.can_tell else None)
        self.watch = RequestWatch(half, self._cut, lambda: self.now_s)

    def _cut(self, peer: str) -> bool:
        self.cut.append(peer)
        return True

    def came(self, peer: str, size_bytes: int, sent: int = 0) -> None:
        address = address_of(peer)
        assert address is not None
        was = self.traffic.get(address, Traffic(0, 0))
        self.traffic[address] = Traffic(was.received + size_bytes, was.sent + sent)

    def look(self, after_s: float) -> None:
        """Let time pass, in steps, as the timer does."""
        until_s = self.now_s + after_s
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 5.0)
            self.watch.look()


class Client:
    """One stream of a peer: what it sends is handed out message by message."""

    def __init__(self, here: Here, peer: str) -> None:
        self.here, self.name = here, peer
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        self.taken = 0
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.task = asyncio.create_task(self._take())

    async def read(self) -> bytes:
        """A unary request."""
        return await self._requests.get()

    async def _given(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._requests.get()

    async def _take(self) -> None:
        async for _ in self.here.watch.each(self._given(), self.here.callers(self.name)):
            self.taken += 1
            await self.may_take.wait()

    async def send(self, data: bytes) -> None:
        """A whole message."""
        self.here.came(self.name, len(data) + HEAD_SIZE_BYTES)
        self._requests.put_nowait(data)
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def opened(here: Here, *peers: str) -> list[Client]:
    clients = [Client(here, peer) for peer in peers]
    await settled()
    return clients


async def ended(*clients: Client) -> None:
    await end(*(client.task for client in clients))


async def test_a_message_that_stays_half_ends_its_stream() -> None:
    here = Here()
    half, idle = await opened(here, "ipv4:10.0.0.1:1000", "ipv4:10.0.0.2:1000")
    here.came(half.name, 3 * MIB)
    here.came(idle.name, 200)
    here.look(after_s=30)
    assert not here.watch.given_up.total()
    assert 3 * MIB - 4_000 < here.callers.held(Kind.HALF_STREAMS) <= 3 * MIB
    here.look(after_s=10)
    await settled()
    assert half.task.done()
    assert isinstance(half.task.exception(), StreamSilentError)
    assert not idle.task.done()
    assert here.watch.given_up[HALF_TOO_SLOW] == 1
    here.look(after_s=5)
    assert here.callers.held(Kind.HALF_STREAMS) == 0
    await ended(half, idle)


async def test_a_stream_that_works_is_let_be() -> None:
    """HTTP/2 needs bytes of its own, more of them than a message may have."""
    here = Here()
    idle, busy, unary = await opened(here, *["ipv6:%5B::1%5D:1000"] * 3)
    unary.task.cancel()
    for _ in range(200):
        for _ in range(10):
            await busy.send(bytes(1_000))
        reading = asyncio.create_task(here.watch.whole(unary.read, here.callers(unary.name)))
        await unary.send(bytes(5_000))
        await reading
        here.came(busy.name, 9_000, sent=1 << 20)  # Headers, windows, pings.
        here.look(after_s=0.8)
        await idle.send(b"")
    assert busy.taken == 2_000
    assert not here.watch.given_up.total()
    assert here.callers.held(Kind.HALF_STREAMS) < 3 * MIB
    await ended(idle, busy, unary)


async def test_over_the_bound_the_greediest_connection_of_the_greediest_address_goes() -> None:
    here = Here()
    large = 4 * MIB
    few = await opened(here, *["ipv4:10.0.0.1:1000"] * 20)
    many = await opened(here, *[f"ipv4:10.0.0.2:{1000 + n // 2}" for n in range(60)])
    for client in few:
        here.came(client.name, large)
    for client in many:
        here.came(client.name, large - MIB)
    assert 20 * large + 60 * (large - MIB) > HALF_SIZE_BYTES_MAX
    here.look(after_s=5)
    await settled()
    assert not any(client.task.done() for client in few)
    count = sum(client.task.done() for client in many)
    assert count == here.watch.given_up[HALF_TOO_MUCH] == 18, "to the half of their address"
    here.look(after_s=5)
    assert here.callers.held(Kind.HALF_STREAMS) <= HALF_SIZE_BYTES_MAX
    assert here.watch.given_up[HALF_TOO_MUCH] == 18
    await ended(*few, *many)


async def test_a_connection_is_cut_when_nobody_takes_what_came() -> None:
    """Its client does not read, so the method does not either, and no task waits in the watch."""
    here = Here()
    (stuck,) = await opened(here, "ipv4:10.0.0.1:1000")
    stuck.may_take.clear()
    await stuck.send(b"x")
    here.came(stuck.name, HALF_SIZE_BYTES_MAX + MIB)
    here.look(after_s=20)
    assert here.cut == []
    here.look(after_s=20)
    assert here.cut[0] == stuck.name
    await ended(stuck)


async def test_another_connection_with_the_same_number_begins_anew() -> None:
    here = Here()
    (first,) = await opened(here, "ipv4:10.0.0.1:1000")
    here.came(first.name, 5 * MIB)
    here.look(after_s=5)
    await ended(first)
    here.traffic.clear()
    (second,) = await opened(here, first.name)
    here.came(second.name, MIB)
    here.look(after_s=5)
    assert MIB - 1_000 < here.callers.held(Kind.HALF_STREAMS) <= MIB
    here.look(after_s=70)
    await ended(second)
    here.look(after_s=70)


async def test_the_counting_begins_with_the_first_time_that_can_be_told() -> None:
    here = Here()
    here.can_tell = False
    (half,) = await opened(here, "ipv4:10.0.0.1:1000")
    here.came(half.name, 8 * MIB)
    here.can_tell = True
    here.look(after_s=60)
    assert here.callers.held(Kind.HALF_STREAMS) == 0, "how much of it was taken is not known"
    assert not half.task.done()
    here.can_tell = False
    here.came(half.name, 3 * MIB)
    await half.send(bytes(1_000))
    here.look(after_s=60)
    assert here.callers.held(Kind.HALF_STREAMS) == 0
    here.can_tell = True
    here.look(after_s=5)
    assert 2.9 * MIB < here.callers.held(Kind.HALF_STREAMS) <= 3 * MIB
    await ended(half)


@pytest.mark.parametrize("peer", ["unix:/run/x", "ipv4:nonsense", "unknown"])
async def test_a_peer_without_an_address_is_served(peer: str) -> None:
    here = Here()
    (client,) = await opened(here, peer)
    await client.send(b"x") if address_of(peer) else client._requests.put_nowait(b"x")
    await settled()
    here.look(after_s=10)
    assert client.taken == 1
    await ended(client)


async def test_many_streams_that_have_only_begun_are_let_be() -> None:
    here = Here()
    many = await opened(here, *["ipv4:10.0.0.1:1000"] * 500)
    here.came("ipv4:10.0.0.1:1000", 500 * 300)
    here.look(after_s=60)
    assert not here.watch.given_up.total()
    await ended(*many)


async def test_overhead_of_http2_and_tls_never_adds_up() -> None:
    """Measured over TLS: 50 bytes a message, 100 a call, one in 700 of what is large."""
    here = Here()
    idle, busy, calls, large = await opened(here, *[f"ipv4:10.0.0.{n}:1000" for n in range(1, 5)])
    calls.task.cancel()
    (quiet,) = await opened(here, calls.name)
    for _ in range(12):
        for _ in range(400):
            here.came(busy.name, 50)
            await busy.send(b"x")
            here.came(calls.name, 100)
            reading = asyncio.create_task(here.watch.whole(calls.read, here.callers(calls.name)))
            await calls.send(b"x")
            await reading
        for _ in range(10):
            here.came(large.name, 6_000)
            await large.send(bytes(4 * MIB))
        here.look(after_s=5)
        assert here.callers.held(Kind.HALF_STREAMS) < 4_000
    here.look(after_s=120)
    assert not here.watch.given_up.total()
    assert not any(client.task.done() for client in (idle, busy, quiet, large))
    await ended(idle, busy, calls, quiet, large)


async def test_an_idle_connection_is_not_cut_for_others() -> None:
    here = Here()
    idle, stuck = await opened(here, "ipv4:10.0.0.1:1000", "ipv4:10.0.0.2:1000")
    stuck.may_take.clear()
    await stuck.send(b"x")
    here.came(stuck.name, HALF_SIZE_BYTES_MAX + MIB)
    here.came(idle.name, HALF_SIZE_BYTES_MIN)
    here.look(after_s=20)
    await settled()
    assert here.cut == []  # It may yet take what came.
    assert not idle.task.done()
    await ended(idle, stuck)
