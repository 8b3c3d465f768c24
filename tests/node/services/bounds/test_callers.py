"""Calls over gRPC are charged to their connection and its address, and given back at their end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from node.config.types import Address
from node.runtime.accounts import (
    ANY,
    CALL_SIZE_BYTES,
    LIMITS,
    Account,
    Accounts,
    Kind,
    Limit,
    UserAccount,
    caller,
)
from node.services.bounds.bounded import refusing
from node.services.bounds.callers import GrpcCallers
from node.services.bounds.connection_cut import address_of
from node.services.server import GrpcServer
from quorumlog.errors import BusyError, Outcome, from_rpc
from tests.node.services.bounds.callers import Callers, echo_sender, echoing
from tests.node.services.bounds.http2 import HalfSender
from tests.patience import PATIENCE_S, eventually

CALL_COUNT_MAX = 32
ELSEWHERE = "127.0.0.2"


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.services.bounds.callers._LOOK_MS", 20)


class _Parking:
    """Methods that wait until a test lets them go on."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.callers = list[str]()
        self.accounts = list[Account]()

    async def begin(self) -> None:
        account = caller()
        assert account is not None
        self.callers.append(account.address.what)
        self.accounts.append(account)
        await self.release.wait()

    def handler(self) -> object:
        async def own(data: bytes, _context: object) -> bytes:
            await self.begin()
            return data

        refused = refusing(own, lambda error: str(error).encode())
        return echoing(self.begin, own=grpc.unary_unary_rpc_method_handler(refused))


@asynccontextmanager
async def parking(
    documents: Limit = LIMITS[Kind.DOCUMENTS],
) -> AsyncIterator[tuple[Accounts, _Parking, int]]:
    calls = Limit("calls under way", CALL_COUNT_MAX, 1 << 20)
    accounts, methods = Accounts({Kind.CALLS: calls, Kind.DOCUMENTS: documents}), _Parking()
    server = GrpcServer(accounts)
    port = server.bind(Address("127.0.0.1", 0))
    await server.start({}, [methods.handler()])
    try:
        yield accounts, methods, port
        methods.release.set()
        await eventually(lambda: not accounts.addresses, "no account is left")
        assert accounts.total.is_empty
    finally:
        await server.stop(0)


def flood(port: int, connection_count: int) -> list[HalfSender]:
    """Park more calls of another address than it may have."""
    return [echo_sender(port, CALL_COUNT_MAX, source=ELSEWHERE) for _ in range(connection_count)]


def ended(senders: list[HalfSender]) -> list[HalfSender]:
    for sender in senders:
        sender.look()
    return [sender for sender in senders if sender.is_closed]


@pytest.mark.parametrize(("connection_count", "held_count"), [(2, 8), (6, 16)])
async def test_calls_parked_by_one_address_leave_the_others_service(
    connection_count: int, held_count: int
) -> None:
    async with parking() as (accounts, methods, port):
        senders = await asyncio.to_thread(flood, port, connection_count)
        await eventually(lambda: len(methods.callers) == held_count, "its share is full")
        assert set(methods.callers) == {ELSEWHERE}
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            check: Any = health_pb2_grpc.HealthStub(channel).Check
            await check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
            unary = channel.unary_unary("/echo/unary")
            own = [asyncio.ensure_future(unary(b"y", timeout=PATIENCE_S)) for _ in range(4)]
            await eventually(lambda: methods.callers[held_count:] == ["127.0.0.1"] * 4, "served")
            assert accounts.held(Kind.CALLS)[0] >= held_count + 4
            methods.release.set()
            assert await asyncio.gather(*own) == [b"y"] * 4
        for sender in senders:
            sender.close()


async def test_a_call_over_a_bound_is_refused_in_its_own_protocol() -> None:
    async with (
        parking() as (_, methods, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        unary, own = channel.unary_unary("/echo/unary"), channel.unary_unary("/echo/own")
        parked = [asyncio.ensure_future(unary(b"y")) for _ in range(CALL_COUNT_MAX // 8)]
        await eventually(lambda: len(methods.callers) == len(parked), "its share is full")
        assert b"calls under way of one connection" in await own(b"x")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await unary(b"x")
        error = from_rpc(refused.value, "node")
        assert (type(error), error.code, error.retryable) == (BusyError, "node.busy", True)
        assert error.outcome is Outcome.NOT_APPLIED
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        methods.release.set()
        await asyncio.gather(*parked)
        large = bytes((1 << 20) // 8 + 1)
        assert b"bytes of calls under way of one connection" in await own(large)
        assert await own(large[:-1]) == large[:-1]


async def test_the_memory_of_a_call_that_waits_is_charged() -> None:
    room = Limit("documents", ANY, 6 * CALL_SIZE_BYTES, connection_part=2)
    async with (
        parking(room) as (accounts, methods, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        own = channel.unary_unary("/echo/own")
        kinds = channel.unary_unary("/echo/unary"), channel.unary_stream("/echo/stream")
        parked = [kinds[0](b""), kinds[1](b""), channel.stream_stream("/echo/both")(iter([b""]))]
        await eventually(lambda: len(methods.callers) == len(parked), "its share is full")
        assert accounts.held(Kind.DOCUMENTS)[1] == len(parked) * CALL_SIZE_BYTES
        assert b"bytes of documents of one connection" in await own(b"x")
        methods.release.set()
        await eventually(lambda: not accounts.held(Kind.DOCUMENTS)[1], "given back")
        assert await own(b"x") == b"x"


async def test_idle_connections_of_one_address_leave_the_others_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.services.bounds.idle_connections._LOOK_S", 0.05)
    monkeypatch.setattr("node.services.server.CONNECTION_COUNT_MAX", 8)
    async with parking() as (_, methods, port):
        senders = [HalfSender(f"127.0.0.1:{port}", source=ELSEWHERE) for _ in range(6)]
        for sender in senders:
            await asyncio.to_thread(sender.greet)
        senders[-1].call(1, "/echo/both", size_bytes=1)
        await eventually(lambda: len(methods.callers) == 1, "a call of the newest")
        await eventually(lambda: len(ended(senders)) == 2, "two are beyond half")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            check: Any = health_pb2_grpc.HealthStub(channel).Check
            await check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert senders[-1] not in ended(senders), "it has a call"
        for sender in senders:
            sender.close()


async def test_what_outlives_a_call_counts_for_its_connection_until_it_ends() -> None:
    async with (
        parking() as (accounts, methods, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        unary = channel.unary_unary("/echo/unary")
        call = unary(b"x")
        await eventually(lambda: methods.accounts, "a call")
        held = methods.accounts[0].charge(Kind.TRANSACTIONS)
        methods.release.set()
        await call
        await eventually(lambda: accounts.held(Kind.CALLS) == (0, 0), "a look")
        await unary(b"x")
        assert methods.accounts[0] is methods.accounts[1]
        held.release()
        await eventually(lambda: not accounts.addresses, "the next look")


def test_a_network_of_ipv6_addresses_is_one_host_for_every_watch() -> None:
    peers = ("ipv6:%5B2001:db8::1%5D:7", "ipv6:%5B2001:db8::ffff%5D:8", "ipv4:10.0.0.1:9", "unix:x")
    callers = Callers()
    assert [callers.of(peer).host for peer in peers] == [
        *["2001:db8::/64"] * 2,
        *("10.0.0.1", "unix:x"),
    ]


class _OfTwo(UserAccount):
    is_limited = True


async def test_an_idle_connection_of_a_user_with_a_limit_counts_until_it_is_closed() -> None:
    there = [one for n in (7, 8) if (one := address_of(f"ipv4:127.0.0.1:{n}"))]
    callers, user = GrpcCallers(Accounts(), lambda: there), _OfTwo()
    for peer in "ipv4:127.0.0.1:7", "ipv4:127.0.0.1:8", "ipv4:127.0.0.1:9":
        callers.of(peer).account.belong(user)
    callers.look()
    assert user.connection_count == 2, "the kernel has two"
    there.clear()
    callers.look()
    assert (user.connection_count, callers._by_peer) == (0, {})
