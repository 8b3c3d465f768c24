"""Frames: how calls share the bytes of one connection.

Owns the layout. A frame is a kind, the number of its call (0: of the connection), the size of its
payload in bytes, and the payload. It is no HTTP/2: both ends are of this package, and only what
callers can notice is kept of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final

PREFACE, SETTINGS, GOAWAY, PING, PONG = 1, 2, 3, 4, 5
"""Of the connection. The client begins with PREFACE, the server answers SETTINGS."""
CALL, MESSAGE, HALF_CLOSE, HEADERS, STATUS, RESET, WINDOW = 11, 12, 13, 14, 15, 16, 17
"""Of a call. CALL opens it, HEADERS are the initial metadata of the server, STATUS ends it; RESET
ends it without an answer; WINDOW gives back bytes that the receiver has taken."""
KINDS: Final = frozenset((*range(PREFACE, PONG + 1), *range(CALL, WINDOW + 1)))

HEAD: Final = Struct(">BII")
COUNT: Final = Struct(">I")
PAYLOAD_SIZE_BYTES_MAX: Final = 1 << 28

Metadata = tuple[tuple[str, str | bytes], ...]


class FrameError(Exception):
    """Bytes that no peer of this package sends."""


def frame(kind: int, number: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return HEAD.pack(kind, number, len(payload)) + payload


class FrameReader:
    """Cuts the bytes of a stream into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield the kind, number and payload of each frame that is complete. Raises FrameError."""
        rest = self._rest
        rest += data
        at = 0
        while len(rest) - at >= HEAD.size:
            kind, number, size_bytes = HEAD.unpack_from(rest, at)
            if kind not in KINDS or size_bytes > PAYLOAD_SIZE_BYTES_MAX:
                raise FrameError(f"kind {kind}, {size_bytes} bytes")
            end = at + HEAD.size + size_bytes
            if len(rest) < end:
                break
            yield kind, number, bytes(rest[at + HEAD.size : end])
            at = end
        del rest[:at]


# --- Payloads ---


def pack_call(method: str, timeout_ns: int | None, metadata: Metadata) -> bytes:
    """Return the payload of CALL."""
    return json.dumps((method, timeout_ns, _plain(metadata))).encode()


def unpack_call(payload: bytes) -> tuple[str, int | None, Metadata]:
    """Return what `pack_call` got."""
    method, timeout_ns, metadata = json.loads(payload)
    return method, timeout_ns, _typed(metadata)


def pack_headers(metadata: Metadata) -> bytes:
    """Return the payload of HEADERS."""
    return json.dumps(_plain(metadata)).encode() if metadata else b""


def unpack_headers(payload: bytes) -> Metadata:
    """Return what `pack_headers` got."""
    return _typed(json.loads(payload)) if payload else ()


def pack_status(code: int, details: str, metadata: Metadata) -> bytes:
    """Return the payload of STATUS."""
    return json.dumps((code, details, _plain(metadata))).encode()


def unpack_status(payload: bytes) -> tuple[int, str, Metadata]:
    """Return what `pack_status` got."""
    code, details, metadata = json.loads(payload)
    return code, details, _typed(metadata)


def _plain(metadata: Metadata) -> list[tuple[str, str]]:
    return [
        (name, value.decode("latin-1") if isinstance(value, bytes) else value)
        for name, value in metadata
    ]


def _typed(metadata: Iterable[Sequence[str]]) -> Metadata:
    """Binary values have names that end in -bin, as in gRPC."""
    return tuple(
        (name, value.encode("latin-1") if name.endswith("-bin") else value)
        for name, value in metadata
    )
