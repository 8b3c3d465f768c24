"""The checksums of the store: CRC-32 (IEEE 802.3) and CRC-32C (Castagnoli).

`crcmod` defines both; `isal` and `google-crc32c` compute them fast. `self_check` proves at start-up
that they agree on this machine, and a property test proves it on random data. Sources: design 4.4,
storage-formats 1.7 and 12.
"""

from collections.abc import Callable
from typing import Final

import crcmod.predefined

from store.format import CRC_MASK

_reference_crc32: Final[Callable[[bytes], int]] = crcmod.predefined.mkCrcFun("crc-32")
_reference_crc32c: Final[Callable[[bytes], int]] = crcmod.predefined.mkCrcFun("crc-32c")

try:
    from isal import isal_zlib as fast_zlib
except ImportError:  # Wheels do not exist for every platform; zlib takes six times as long.
    import zlib as fast_zlib  # type: ignore[no-redef]

try:
    import google_crc32c

    FAST_CRC32C: Final = google_crc32c.implementation == "c"
except ImportError:  # Wheels do not exist for every platform; the store still works, only slower.
    FAST_CRC32C = False  # type: ignore[misc]

crc32: Final = fast_zlib.crc32
"""CRC-32 of any bytes, as an unsigned 32-bit value; a second argument is that of bytes before."""

crc32c: Callable[[bytes], int] = google_crc32c.value if FAST_CRC32C else _reference_crc32c
"""CRC-32C of a `bytes` object (google-crc32c refuses memoryviews), as an unsigned 32-bit value."""


def _reference_extend(crc: int, data: bytes) -> int:
    return _reference_crc32c(data, crc)  # type: ignore[call-arg]


crc32c_extend: Callable[[int, bytes], int] = (
    google_crc32c.extend if FAST_CRC32C else _reference_extend
)
"""CRC-32C of bytes that follow others, whose CRC-32C is given: `extend(crc(a), b)` is `crc(ab)`."""


class ChecksumMismatchError(AssertionError):
    """The fast checksum of this machine disagrees with its definition: nothing can be trusted."""


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """Return the body checksum that a message record carries: CRC-32 without the top bit."""
    return crc32(body) & CRC_MASK


def self_check() -> None:
    """Compare the fast checksums with their definition on known vectors and a few lengths.

    Run once when a store opens. Raises ChecksumMismatchError: the process must not go on.
    """
    samples = [b"", b"test", b"Hello RocketMQ", b"123456789"]
    samples += [bytes(range(256)) * n + b"x" * n for n in (1, 3, 17)]
    for data in samples:
        for name, fast, slow in (
            ("CRC-32", crc32(data), _reference_crc32(data)),
            ("CRC-32C", crc32c(data), _reference_crc32c(data)),
        ):
            if fast != slow:
                raise ChecksumMismatchError(
                    f"{name} of {len(data)} bytes: fast {fast:08X}, by definition {slow:08X}; "
                    f"reinstall isal and google-crc32c"
                )
    if crc32(b"Hello RocketMQ") != 0x69C865ED or crc32c(b"123456789") != 0xE3069283:
        raise ChecksumMismatchError("both checksum implementations miss the published vectors")
