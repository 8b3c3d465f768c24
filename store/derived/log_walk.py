"""The units and keys that the records of the log stand for, in log order.

Owns the walk for comparisons with derived files, and the look at one record, which an offline check
takes, too. It is the readable twin of the dispatcher's loop: one object a record, which only work
in the background can afford. Must not know queues or index files.
"""

import struct
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

from store import format as fmt
from store.errors import ClosedError, PositionRangeError
from store.log.record_log import RecordLog
from store.record.check import store_timestamp
from store.record.inner_batches import is_inner_batch
from store.record.tail import TailReader

# Size, magic, queue id, queue offset, position, sys flag, store time, body size; IPv4 hosts.
_HEAD: Final = struct.Struct(">iI4xi4xqqi16xq20xi")
assert _HEAD.size == fmt.BODY_AT
_TRANSACTION: Final = fmt.SYS_FLAG_TRANSACTION_MASK
_SIZE_BYTES_MAX: Final = 2 * fmt.ENTRY_SIZE_BYTES_MAX
"""Largest size of a record, RocketMQ's included."""


class Said(NamedTuple):
    """Unit and keys of one record.

    `has_unit`: the record counts in its queue. `is_inner_batch`: its topic has no queue here.
    """

    topic: bytes
    queue_id: int
    offset: int
    position: int
    size_bytes: int
    tags_code: int
    hashes: tuple[int, ...]
    store_unix_ms: int
    has_unit: bool
    is_inner_batch: bool

    @property
    def unit(self) -> bytes:
        """The 20 bytes of the unit."""
        return fmt.CONSUME_QUEUE_UNIT.pack(self.position, self.size_bytes, self.tags_code)


class LogWalk:
    """The walk through the log of one store. Any thread may call."""

    def __init__(self, log: RecordLog) -> None:
        self._log = log
        self._tails = TailReader()
        self.is_stopped = False
        """Whether running walks are to end soon, with a ClosedError."""
        self._lock = threading.Lock()  # The caches of the tails are changed by every read.

    def said(self, lo: int, hi: int) -> Iterator[Said]:
        """Yield unit and keys of each whole record in [lo, hi). A record starts, or ends, at `lo`.

        Bytes are compared with their checksums first, since derived files are repaired from them.
        Raises CorruptionError, PositionRangeError, FileSystemError, ClosedError.
        """
        for position, data in self._runs(lo, hi):
            if self.is_stopped:
                raise ClosedError("the walk through the log")
            at = 0
            while at < len(data):
                unit = self._said(data, at, position + at)
                if unit is None:
                    raise PositionRangeError("record position", position + at, lo, hi)
                yield unit
                at += unit.size_bytes

    def _runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        log = self._log
        try:
            yield from log.checked_runs(lo, hi)
        except ClosedError as error:  # A file expired meanwhile.
            raise PositionRangeError("position", lo, log.min_position, hi) from error

    def at(self, position: int, size_bytes: int) -> Said | None:
        """Return unit and keys of the record of that size at a position; None if none is there.

        Its bytes are not compared with checksums: the result may confirm a unit, not replace one.
        Raises FileSystemError.
        """
        is_record = fmt.RECORD_SIZE_BYTES_MIN <= size_bytes <= _SIZE_BYTES_MAX
        if not is_record or position < 0:
            return None
        try:
            return self._said(self._log.read(position, size_bytes), 0, position)
        except (PositionRangeError, ClosedError):
            return None

    def _said(self, data: bytes, at: int, position: int) -> Said | None:
        if len(data) - at < fmt.RECORD_SIZE_BYTES_MIN:
            return None
        size_bytes, _, _, _, own_position, *_ = _HEAD.unpack_from(data, at)
        fits = fmt.RECORD_SIZE_BYTES_MIN <= size_bytes <= len(data) - at
        if not fits or own_position != position:
            return None
        with self._lock:
            return said_of(self._tails, data, at)


def said_of(tails: TailReader, data: bytes, at: int) -> Said | None:
    """Return unit and keys of the record at byte `at`, which is there up to its size; None for one
    without a right topic."""
    size_bytes, magic, queue_id, offset, position, flags, unix_ms, body_size_bytes = (
        _HEAD.unpack_from(data, at)
    )
    if magic == fmt.MAGIC_V1 and not flags & fmt.SYS_FLAG_ANY_V6 and body_size_bytes >= 0:
        tail_bytes = data[at + fmt.BODY_AT + body_size_bytes : at + size_bytes]
        tail = tails.known.get(tail_bytes) or tails.read(tail_bytes)
    else:
        tail, unix_ms = tails.read_record(data, at), store_timestamp(data, at)
    if tail is None:
        return None
    topic, _, code, hashes = tail
    transaction = flags & _TRANSACTION
    if transaction == fmt.TRANSACTION_ROLLBACK:
        hashes = ()
    is_hidden = transaction in (fmt.TRANSACTION_PREPARED, fmt.TRANSACTION_ROLLBACK)
    is_inner = bool(flags & fmt.SYS_FLAG_INNER_BATCH) and is_inner_batch(data, at)
    has_unit = not (is_hidden or is_inner)
    return Said(
        topic, queue_id, offset, position, size_bytes, code, hashes, unix_ms, has_unit, is_inner
    )
