"""Runs of uniform records, which differ in body, offset and position only, handled by column.

Owns the comparison and the patching of bytes that lie a fixed step apart; must not know what a
record may hold: the caller has checked the first record of the run. Messages of one producer are
often of one size, and then a slice with a step does for a hundred records what a loop does for one.
Records that are not uniform take the loop.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from store import format as fmt

UNIFORM_COUNT_MIN: Final = 8
"""Shorter runs are not searched: a search costs about as much as five records in the loop."""

# Size and magic, queue id, sys flag, body size; of a V1 record with IPv4 hosts.
_SAME_AT: Final = (
    *range(8),
    *range(fmt.QUEUE_ID_AT, fmt.QUEUE_ID_AT + 4),
    *range(fmt.SYS_FLAG_AT, fmt.SYS_FLAG_AT + 4),
    *range(fmt.BODY_LENGTH_AT, fmt.BODY_LENGTH_AT + 4),
)


@lru_cache(maxsize=1024)
def _integers(count: int, code: str) -> struct.Struct:
    return struct.Struct(f">{count}{code}")


def uniform_count(data: bytes, at: int, size_bytes: int, tail_at: int) -> int:
    """Return how many records, back to back from byte `at` on, are uniform with the one there.

    Uniform: of its size, magic, queue, flags, body size, and all bytes from its byte `tail_at` on.
    """
    count = (len(data) - at) // size_bytes
    if count < UNIFORM_COUNT_MIN:
        return 1
    # Neighbours of other sizes are mostly seen at once.
    if data[at : at + 8] != data[at + size_bytes : at + size_bytes + 8]:
        return 1
    for own_at in (*_SAME_AT, *range(tail_at, size_bytes)):
        column = data[at + own_at : at + count * size_bytes : size_bytes]
        rest = column.lstrip(column[:1])
        if rest:
            count -= len(rest)
            if count < UNIFORM_COUNT_MIN:
                return 1
    return count


def is_column(
    data: bytes, at: int, step: int, count: int, code: str, values: Iterable[int]
) -> bool:
    """Whether the integers at `at`, `at + step` and so on are these `count` values."""
    wanted = integers(count, code, values)
    width = len(wanted) // count
    hi = at + (count - 1) * step + width
    return all(data[at + n : hi : step] == wanted[n::width] for n in range(width))


def put_column(target: bytearray, at: int, step: int, count: int, column: bytes) -> None:
    """Write the `count` equal parts of `column` at `at`, `at + step` and so on."""
    width = len(column) // count
    hi = at + (count - 1) * step + width
    for n in range(width):
        target[at + n : hi : step] = column[n::width]


def integers(count: int, code: str, values: Iterable[int]) -> bytes:
    """Return `count` big-endian integers one behind the other, as a column to put."""
    return _integers(count, code).pack(*values)
