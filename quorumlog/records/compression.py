"""Bodies that were compressed by their producer, with the flag bits of RocketMQ.

Owns the three ways (zlib, lz4, zstd; storage-formats 1.6) and the limit of a decompressed body;
must not know records. A node stores and serves a body as it came, so compressing costs it nothing.
lz4 and zstd are packages of the extra `compression`, loaded when they are first needed.
"""

import importlib
import io
import zlib
from collections.abc import Callable
from typing import Any, Final

from quorumlog.errors import CorruptRecordError, InvalidRequestError, TooLargeError
from quorumlog.records.message import Message

COMPRESS_FROM_SIZE_BYTES: Final = 4_096
"""Smallest body that is compressed, by RocketMQ's default; smaller ones gain too little."""
BODY_SIZE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit of a decompressed body: the memory that a small message may cost its reader."""
STEP_SIZE_BYTES: Final = 256 * 1024
"""What one step reads of a compressed body, and makes of it, at most."""
WINDOW_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Memory of zstd beside the body: what its format asks of every reader. Levels up to 19 need no
more, and frames that say their size need none."""
KEPT_RATIO_MAX: Final = 8
"""A message keeps its plain body up to this many times the stored one: that bounds what a batch
holds once its bodies were read."""
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


def decompress(body: bytes, sys_flag: int, limit: int = BODY_SIZE_BYTES_MAX) -> bytes:
    """Return a body as it was before it was compressed, of at most `limit` bytes.

    It takes little more memory than `limit`, whatever the body says of itself. A body is one whole
    frame of its way: one that ends too early, and one with anything behind it, is damaged.

    Raises CorruptRecordError, TooLargeError when it would exceed `limit`, InvalidRequestError when
    a package is missing.
    """
    kind = sys_flag & KIND_MASK
    try:
        match kind:
            case 0 | 0x300:
                return _in_steps(zlib.decompressobj(), body, limit)
            case 0x100:
                return _in_steps(_package("lz4.frame", "lz4").LZ4FrameDecompressor(), body, limit)
            case 0x200:
                return _decompress_zstd(body, limit)
    except (zlib.error, RuntimeError, EOFError) as error:
        raise _corrupt(error) from error
    raise _corrupt(f"compression {kind:#x} is unknown")


def _in_steps(whole: Any, body: bytes, limit: int) -> bytes:
    plain, rest, at = io.BytesIO(), b"", 0  # It grows in place; joined pieces would be there twice.
    while not whole.eof:
        # zlib returns what it has not read yet; lz4 keeps it.
        if not rest and getattr(whole, "needs_input", True):
            rest = body[at : at + STEP_SIZE_BYTES]
            at += len(rest)
            if not rest:
                raise _corrupt("it ends too early")
        plain.write(whole.decompress(rest, STEP_SIZE_BYTES))
        rest = getattr(whole, "unconsumed_tail", b"")
        if plain.tell() > limit:
            raise _too_large(limit)
    if whole.unused_data or at < len(body):
        raise _corrupt("something lies behind it")
    return plain.getvalue()


def _decompress_zstd(body: bytes, limit: int) -> bytes:
    """Decompress to a size that is known before: objects of this package that decompress in steps
    make any number of a few bytes, or do not tell where a frame ends."""
    zstandard = _package("zstandard", "zstd")
    whole = zstandard.ZstdDecompressor(max_window_size=WINDOW_SIZE_BYTES_MAX)
    try:
        size_bytes = zstandard.frame_content_size(body)
        if size_bytes < 1:  # The frame does not say, so the bytes are counted and thrown away.
            size_bytes, reader = 0, whole.stream_reader(body)
            while size_bytes <= limit and (piece := reader.read(STEP_SIZE_BYTES)):
                size_bytes += len(piece)
        if size_bytes > limit:
            raise _too_large(limit)
        plain: bytes = whole.decompress(
            body, max_output_size=size_bytes or 1, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise _corrupt(error) from error
    if len(plain) != size_bytes:
        raise _corrupt("something lies behind it")
    return plain


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
    """A message whose body is decompressed when it is first read, if it was compressed.

    `body` raises the error of a faulty one, so that such a message does not keep a consumer from
    reading the others. A body that is far larger than the stored one is not kept, but decompressed
    at each reading.
    """

    __slots__ = ("_plain", "stored_body")
    stored_body: bytes
    _plain: bytes | None

    @property
    def body(self) -> bytes:
        """The body as it was handed to the producer."""
        if self._plain is not None:
            return self._plain
        plain = decompress(self.stored_body, self.sys_flag)
        if len(plain) <= KEPT_RATIO_MAX * len(self.stored_body):
            self._plain = plain
        return plain

    @body.setter
    def body(self, stored: bytes) -> None:
        self.stored_body = stored
        self._plain = None if self.sys_flag & IS_COMPRESSED else stored
