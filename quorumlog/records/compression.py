"""Bodies that were compressed by their producer, with the flag bits of RocketMQ.

Owns the three ways (zlib, lz4, zstd; storage-formats 1.6) and the limit of a decompressed body;
must not know records. A node stores and serves a body as it came, so compressing costs it nothing.
lz4 and zstd are packages of the extra `compression`, loaded when they are first needed.
"""

import importlib
import zlib
from collections.abc import Callable
from typing import Any, Final

from quorumlog.errors import CorruptRecordError, InvalidRequestError, TooLargeError
from quorumlog.records.message import Message

COMPRESS_FROM_SIZE_BYTES: Final = 4_096
"""Smallest body that is compressed, by RocketMQ's default; smaller ones gain too little."""
BODY_SIZE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit of a decompressed body: the memory that a small message may cost its reader."""
IS_COMPRESSED: Final = 0x1
KIND_MASK: Final = 0x700
LZ4: Final = 0x100
ZSTD: Final = 0x200
ZLIB: Final = 0x300
ZLIB_LEVEL: Final = 5

Compress = Callable[[bytes], tuple[bytes, int]]
"""Returns a body as it is sent, and the flag bits of its compression."""


def compressor(name: str, from_size_bytes: int) -> Compress:
    """Return a function that compresses bodies from a size on. Raises InvalidRequestError."""
    kinds: dict[str, tuple[int, Callable[[], Callable[[bytes], bytes]]]] = {
        "zlib": (ZLIB, lambda: lambda body: zlib.compress(body, ZLIB_LEVEL)),
        "lz4": (LZ4, lambda: _package("lz4.frame", "lz4").compress),
        "zstd": (ZSTD, lambda: _package("zstandard", "zstd").ZstdCompressor().compress),
    }
    if name not in kinds:
        raise InvalidRequestError(f"compression {name!r} is unknown; use {', '.join(kinds)}")
    kind, load = kinds[name]
    compress, flag = load(), IS_COMPRESSED | kind

    def compressed(body: bytes) -> tuple[bytes, int]:
        if len(body) < from_size_bytes:
            return body, 0
        if len(body) > BODY_SIZE_BYTES_MAX:
            raise TooLargeError(
                f"the body has {len(body)} bytes, consumers take {BODY_SIZE_BYTES_MAX}; split it"
            )
        smaller = compress(body)
        return (smaller, flag) if len(smaller) < len(body) else (body, 0)

    return compressed


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return a body as it was before it was compressed.

    Raises CorruptRecordError, TooLargeError when it would exceed BODY_SIZE_BYTES_MAX,
    InvalidRequestError when a package is missing.
    """
    kind, limit = sys_flag & KIND_MASK, BODY_SIZE_BYTES_MAX
    try:
        match kind:
            case 0 | 0x300:
                whole = zlib.decompressobj()
                plain = whole.decompress(body, limit + 1)
            case 0x100:
                whole = _package("lz4.frame", "lz4").LZ4FrameDecompressor()
                plain = whole.decompress(body, max_length=limit + 1)
            case 0x200:
                return _decompress_zstd(body, limit)
            case _:
                raise _corrupt(f"compression {kind:#x} is unknown")
    except (zlib.error, RuntimeError, EOFError) as error:
        raise _corrupt(error) from error
    if len(plain) > limit:
        raise _too_large(limit)
    if not whole.eof:
        raise _corrupt("it ends too early")
    return bytes(plain)


def _decompress_zstd(body: bytes, limit: int) -> bytes:
    zstandard = _package("zstandard", "zstd")
    try:
        whole = zstandard.ZstdDecompressor(max_window_size=limit).decompressobj(
            write_size=limit + 1
        )
        plain = whole.decompress(body)
    except zstandard.ZstdError as error:
        raise _corrupt(error) from error
    if len(plain) > limit:
        raise _too_large(limit)
    if not whole.eof:
        raise _corrupt("it ends too early")
    return bytes(plain)


def _package(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidRequestError(
            f"{name} needs a package that is not installed ({error}); "
            f"install quorumlog[compression]",
            code="client.no_package",
        ) from error


def _corrupt(reason: object) -> CorruptRecordError:
    return CorruptRecordError(
        f"a compressed body cannot be read ({reason}); ask who made the message", retryable=False
    )


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"a body becomes larger than {limit} bytes; read it with another client")


class CompressedMessage(Message):
    """A message whose body is decompressed when it is first read.

    `stored_body` is the compressed body. `body` raises the error of a faulty one, so that such a
    message does not keep a consumer from reading the others.
    """

    __slots__ = ("_plain", "stored_body")
    _plain: bytes | None

    @property
    def body(self) -> bytes:
        """The body as it was handed to the producer."""
        if self._plain is None:
            self._plain = decompress(self.stored_body, self.sys_flag)
        return self._plain

    @body.setter
    def body(self, stored: bytes) -> None:
        self.stored_body = stored
        self._plain = None
