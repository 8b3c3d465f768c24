"""Units and keys that dispatch will write for a batch, known since the batch was stamped.

Owns their form; must not know queues. The stamper knows queue, offset, position and size of each
record anyway, so the dispatcher need not read them out of the log again. A batch with a record that
only a walk can tell (of a transaction, of another version, with IPv6 hosts) has no units here.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from store import format as fmt

UnitRun = tuple[bytes, int, int, bytes]
"""Topic, queue id, offset of the first unit, and neighbouring units of that queue as they are
stored. A plain tuple: one or two are made for every append."""

UNITS_AT_ONCE: Final = 256
_UNITS: Final = [struct.Struct(">" + "qiq" * n) for n in range(UNITS_AT_ONCE + 1)]
assert _UNITS[1].size == fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES


class BatchUnits(NamedTuple):
    """All that dispatch writes for a batch: its runs in log order, and its keys.

    `key_hashes` and `key_positions` have one element a key: its hash, the position of its record.
    All records of a batch have the store time `store_unix_ms`.
    """

    runs: list[UnitRun]
    key_hashes: list[int]
    key_positions: list[int]
    store_unix_ms: int


def pack_units(values: Sequence[int]) -> bytes:
    """Pack (position, size, tags code) triples that lie flat in a list."""
    count, step = len(values) // 3, 3 * UNITS_AT_ONCE
    if count <= UNITS_AT_ONCE:
        return _UNITS[count].pack(*values)
    parts = [values[lo : lo + step] for lo in range(0, len(values), step)]
    return b"".join(_UNITS[len(part) // 3].pack(*part) for part in parts)


def flat_units(positions: range, size_bytes: int, tags_code: int) -> list[int]:
    """Return the triples of records of one size and tags code, flat as `pack_units` takes them."""
    count = len(positions)
    flat = [size_bytes] * (3 * count)
    flat[0::3], flat[2::3] = positions, [tags_code] * count
    return flat
