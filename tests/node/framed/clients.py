"""A client of the framed port as a raw socket: what it says is chosen byte by byte.

Its codec is its own, written from docs/framed.md, and shares nothing with the node's.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
from typing import Any, NamedTuple, Self

from quorumlog.pb import common_pb2, log_pb2

TIMEOUT_S = 30.0
"""Limit against hanging."""
KIND = 0x51
APPEND, PULL, TAIL, COMMIT, FETCH, ACK, HEARTBEAT, ROUTE, RECEIVE, AUTHENTICATE = range(1, 11)
RESPONSE, ERROR, MORE, CANCEL = 1, 2, 4, 8


def frame(kind: int, header: bytes, body: bytes = b"") -> bytes:
    """Return a frame of any kind."""
    word = kind << 24 | len(header)
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body


def request(
    method: int,
    opaque: int,
    message: bytes = b"",
    body: bytes = b"",
    *,
    flags: int = 0,
    reserved: int = 0,
    timeout_ms: int = 0,
) -> bytes:
    """Return a request of ours."""
    header = struct.pack(">BBHII", method, flags, reserved, opaque, timeout_ms)
    return frame(KIND, header + message, body)


class Response(NamedTuple):
    """A response, cut into its fields."""

    method: int
    flags: int
    opaque: int
    message: bytes
    body: bytes

    @property
    def error(self) -> common_pb2.Error:
        """The error that the response must be."""
        assert self.flags == RESPONSE | ERROR, self
        return common_pb2.Error.FromString(self.message)

    def append(self) -> log_pb2.AppendResponse:
        """The receipt that the response must be."""
        assert (self.method, self.flags) == (APPEND, RESPONSE), self
        return log_pb2.AppendResponse.FromString(self.message)

    def pull(self) -> log_pb2.PullResponse:
        """The answer to a pull that the response must be."""
        assert not self.flags & ERROR, common_pb2.Error.FromString(self.message)
        return log_pb2.PullResponse.FromString(self.message)


def response_of(data: bytes) -> Response:
    """Cut a whole frame into its fields."""
    length, word = struct.unpack_from(">II", data)
    assert length == len(data) - 4
    assert word >> 24 == KIND
    header = data[8 : 8 + (word & 0xFFFFFF)]
    method, flags, reserved, opaque, timeout_ms = struct.unpack_from(">BBHII", header)
    assert flags & RESPONSE
    assert (reserved, timeout_ms) == (0, 0)
    return Response(method, flags, opaque, header[12:], data[8 + len(header) :])


class FramedClient:
    """A connection that sends what it is told."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(address, TIMEOUT_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=address[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self.socket.sendall(data)

    def call(self, method: int, opaque: int, message: bytes, body: bytes = b"") -> Response:
        """Send a request and return the next response, which must be its own."""
        self.send(request(method, opaque, message, body))
        response = self.read()
        assert (response.method, response.opaque) == (method, opaque)
        return response

    def read(self) -> Response:
        """Return the next response."""
        prefix = self._read_exactly(4)
        (length,) = struct.unpack(">I", prefix)
        return response_of(prefix + self._read_exactly(length))

    def _read_exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            part = self.socket.recv(count - len(received))
            assert part, f"the node closed the connection after {bytes(received)!r}"
            received += part
        return bytes(received)

    def read_to_the_end(self) -> bytes:
        """Return what the node sends until it has closed the connection."""
        received = bytearray()
        with contextlib.suppress(ConnectionResetError, ssl.SSLError):
            while part := self.socket.recv(1 << 16):
                received += part
        return bytes(received)


class AsyncFramedClient:
    """The same on the event loop of the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int, tls: ssl.SSLContext | None = None, **how: Any) -> Self:
        """Connect to a port of this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, **how))

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self.writer.write(data)

    async def call(
        self, method: int, opaque: int, message: bytes = b"", body: bytes = b"", **how: Any
    ) -> Response:
        """Send a request and return the next response, which must be its own."""
        self.send(request(method, opaque, message, body, **how))
        response = await self.read()
        assert (response.method, response.opaque) == (method, opaque)
        return response

    async def read(self) -> Response:
        """Return the next response."""
        prefix = await self.reader.readexactly(4)
        (length,) = struct.unpack(">I", prefix)
        return response_of(prefix + await self.reader.readexactly(length))

    async def read_to_the_end(self) -> bytes:
        """Return what the node sends until it has closed the connection."""
        received = bytearray()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while part := await self.reader.read(1 << 16):
                received += part
        return bytes(received)

    def close(self) -> None:
        self.writer.transport.abort()
