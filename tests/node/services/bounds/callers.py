"""Callers of a gRPC server that are not shared out, and callers without a server."""

from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

from node.runtime.accounts import Accounts, Kind, Limit
from node.services.bounds.callers import GrpcCaller, GrpcCallers
from tests.node.services.bounds.http2 import HalfSender


def unshared(call_count_max: int) -> Accounts:
    """Accounts of which one connection may have all."""
    whole = Limit("calls under way", call_count_max, address_part=1, connection_part=1)
    return Accounts({Kind.CALLS: whole})


class Callers(GrpcCallers):
    """Callers that a test names; none is looked at."""

    def __init__(self) -> None:
        super().__init__(Accounts(), tuple)
        self._timer.go_on = lambda: None  # type: ignore[method-assign]

    def held(self, kind: Kind) -> int:
        """Bytes of a kind."""
        return self.accounts.held(kind)[1]

    def __call__(self, peer: str) -> GrpcCaller:
        return self.of(peer)


def echo_sender(
    port: int, call_count: int, *, source: str = "127.0.0.1", takes_nothing: bool = False
) -> HalfSender:
    """Begin calls of each kind of `echoing` on one connection."""
    sender = HalfSender(f"127.0.0.1:{port}", source=source)
    sender.greet(takes_nothing=takes_nothing)
    for stream in range(1, 2 * call_count, 2):
        sender.call(stream, f"/echo/{('unary', 'stream', 'both')[stream % 3]}", size_bytes=1)
        sender.send(stream, b"x")
    sender.look()
    return sender


def echoing(begin: Callable[[], Awaitable[None]], **more: grpc.RpcMethodHandler) -> object:
    """Return methods unary, stream, both of a service `echo` that begin, and answer what came."""

    async def unary(data: bytes, _context: object) -> bytes:
        await begin()
        return data

    async def stream(data: bytes, _context: object) -> AsyncIterator[bytes]:
        await begin()
        yield data

    async def both(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        await begin()
        async for data in requests:
            yield data

    methods = {
        "unary": grpc.unary_unary_rpc_method_handler(unary),
        "stream": grpc.unary_stream_rpc_method_handler(stream),
        "both": grpc.stream_stream_rpc_method_handler(both),
    }
    return grpc.method_handlers_generic_handler("echo", {**methods, **more})
