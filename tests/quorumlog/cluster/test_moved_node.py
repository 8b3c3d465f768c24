"""A node whose name leads to another address: the client finds it there within seconds.

A name server of DNS on loopback answers, so that the resolver in use is the shipped one.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Final, cast

import grpc.aio
import pytest

from node.nameserver import remote
from node.rocketmq import forwarder
from node.services import server as services
from quorumlog.cluster import channels

Options = Sequence[tuple[str, int]]

_OPTIONS: Final[dict[str, Options]] = {
    "client": channels._OPTIONS,
    "node of RocketMQ's clients": forwarder._OPTIONS,
    "node at the name server": remote._OPTIONS,
}
"""Options of the channels that are dialled by name."""
OLD, NEW = bytes([127, 0, 0, 2]), bytes([127, 0, 0, 1])
"""Nothing listens at the old address."""
_A, _IN = 1, 1
_WITHIN_S = 15.0
"""Half of the time that gRPC lets pass between two look-ups by itself."""


class DnsServer(asyncio.DatagramProtocol):
    """Answers each question for an address with the current one, and all others with none."""

    def __init__(self) -> None:
        self.address = OLD
        self.answered: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        name_hi = data.index(b"\0", 12) + 1
        question = data[12 : name_hi + 4]
        kind, _ = struct.unpack_from(">HH", data, name_hi)
        answer = b""
        if kind == _A:
            answer = struct.pack(">HHHIH", 0xC00C, _A, _IN, 1, 4) + self.address
            self.answered.append(self.address)
        head = data[:2] + struct.pack(">HHHHH", 0x8180, 1, bool(answer), 0, 0)
        self.transport.sendto(head + question + answer, addr)


async def _hello(_request: bytes, _context: object) -> bytes:
    return b"here"


@pytest.mark.long
@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
async def test_a_channel_follows_a_name_to_another_address(options: Options) -> None:
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(_hello)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Test", {"Hello": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    loop = asyncio.get_running_loop()
    transport, dns = await loop.create_datagram_endpoint(DnsServer, ("127.0.0.1", 0))
    dns_port = transport.get_extra_info("sockname")[1]
    target = f"dns://127.0.0.1:{dns_port}/node.test:{port}"
    try:
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            hello = channel.unary_unary("/test.Test/Hello")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await hello(b"", timeout=_WITHIN_S)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            dns.address = NEW
            assert await hello(b"", wait_for_ready=True, timeout=_WITHIN_S) == b"here"
    finally:
        transport.close()
        await server.stop(None)
    assert (dns.answered[0], dns.answered[-1]) == (OLD, NEW)


def test_a_client_pings_no_more_often_than_the_servers_permit() -> None:
    """A server cuts off one that does, with all of its calls."""
    client = dict[str, int](channels._OPTIONS)
    permitted_ms = dict[str, int](services.OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_time_ms"] > permitted_ms == services.PING_INTERVAL_MS_MIN


@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
def test_all_channels_find_a_moved_node_as_soon_and_retry_nothing(options: Options) -> None:
    values = dict(options)
    assert values["grpc.dns_min_time_between_resolutions_ms"] == 1_000
    assert values["grpc.max_reconnect_backoff_ms"] <= 1_000
    assert values["grpc.enable_retries"] == 0
    assert len(values) == len(options), "an option twice"
