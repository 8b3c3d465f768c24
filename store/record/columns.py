"""Runs of uniform records, which differ in body, offset and position only, handled by column.

Owns the comparison and the patching of bytes that lie a fixed step apart; must not know what a
record may hold: the caller has checked the first record of the run. Messages of one producer are
often of one size, and then a slice with a step does for a hundred records what a loop does for one.
A key of one size may differ, too, if the caller says where it lies. Records that are not uniform
take the loop.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from store import format as fmt
from store.files.checksum import crc32

UNIFORM_COUNT_MIN: Final = 8
"""Shorter runs are not searched: a search costs about as much as five records in the loop."""

# Size and magic, queue id, sys flag, body size; of a V1 record with IPv4 hosts.
_SAME_AT: Final = (
    *range(8),
    *range(fmt.QUEUE_ID_AT, fmt.QUEUE_ID_AT + 4),
    *range(fmt.SYS_FLAG_AT, fmt.SYS_FLAG_AT + 4),
    *range(fmt.BODY_LENGTH_AT, fmt.BODY_LENGTH_AT + 4),
)


NO_KEY: Final = range(0)
_KEY_CHARACTERS: Final = bytes(range(0x21, 0x7F))
_CRC_MASKED: Final = bytes(n & 0x7F for n in range(256))
"""Maps the first byte of a CRC-32 to that of a body CRC, which has no top bit."""


@lru_cache(maxsize=1024)
def _integers(count: int, code: str) -> struct.Struct:
    return struct.Struct(f">{count}{code}")


@lru_cache(maxsize=1024)
def _body(size_bytes: int, body_size_bytes: int) -> struct.Struct:
    tail_size_bytes = size_bytes - fmt.BODY_AT - body_size_bytes
    return struct.Struct(f"{fmt.BODY_AT}x{body_size_bytes}s{tail_size_bytes}x")


def uniform_count(data: bytes, at: int, size_bytes: int, tail_at: int, key: range = NO_KEY) -> int:
    """Return how many records, back to back from byte `at` on, are uniform with the one there.

    Uniform: of its size, magic, queue, flags, body size, and all bytes from its byte `tail_at` on,
    but for those of its `key`, which are visible ASCII characters in all of them.
    """
    count = (len(data) - at) // size_bytes
    if count < UNIFORM_COUNT_MIN:
        return 1
    # Neighbours of other sizes are mostly seen at once.
    if data[at : at + 8] != data[at + size_bytes : at + size_bytes + 8]:
        return 1
    hi = at + count * size_bytes
    rest = range(max(tail_at, key.stop), size_bytes)
    for own_at in (*_SAME_AT, *range(tail_at, key.start), *rest):
        column = data[at + own_at : hi : size_bytes]
        if column != column[:1] * count:
            count -= len(column.lstrip(column[:1]))
            if count < UNIFORM_COUNT_MIN:
                return 1
            hi = at + count * size_bytes
    for own_at in key:
        if data[at + own_at : hi : size_bytes].translate(None, _KEY_CHARACTERS):
            return 1
    return count


def fields(data: bytes, lo: int, size_bytes: int, step: int, hi: int) -> list[bytes]:
    """Return the bytes of a field of each record: the first at `lo`, none at `hi` or behind it."""
    return [data[at : at + size_bytes] for at in range(lo, hi, step)]


def is_column(
    data: bytes, at: int, step: int, count: int, code: str, values: Iterable[int]
) -> bool:
    """Whether the integers at `at`, `at + step` and so on are these `count` values."""
    wanted = integers(count, code, values)
    width = len(wanted) // count
    hi = at + (count - 1) * step + width
    return all(data[at + n : hi : step] == wanted[n::width] for n in range(width))


def are_bodies_good(data: bytes, at: int, step: int, count: int, body_size_bytes: int) -> bool:
    """Whether the bodies of uniform records from byte `at` on have the CRCs that are stored."""
    hi = at + count * step
    with memoryview(data) as view, view[at:hi] as records:
        crcs = body_crcs([body for (body,) in _body(step, body_size_bytes).iter_unpack(records)])
    lo = at + fmt.BODY_CRC_AT
    return all(data[lo + n : hi : step] == crcs[n::4] for n in range(4))


def body_crcs(bodies: Sequence[bytes]) -> bytes:
    """Return the body CRCs of records, 4 bytes each."""
    crcs = bytearray(_integers(len(bodies), "I").pack(*map(crc32, bodies)))
    crcs[0::4] = crcs[0::4].translate(_CRC_MASKED)
    return bytes(crcs)


def put_column(target: bytearray, at: int, step: int, count: int, column: bytes) -> None:
    """Write the `count` equal parts of `column` at `at`, `at + step` and so on."""
    width = len(column) // count
    hi = at + (count - 1) * step + width
    for n in range(width):
        target[at + n : hi : step] = column[n::width]


def integers(count: int, code: str, values: Iterable[int]) -> bytes:
    """Return `count` big-endian integers one behind the other, as a column to put."""
    return _integers(count, code).pack(*values)
