"""Derives from the records of a log the content of the consume queues and the key index.

Owns the round: units and keys are collected for some megabytes of log and then handed to the two
comparisons at once. The bytes behind a body are read by `store.record.tail`, as the dispatcher
does; which records have a unit or keys is decided here once more. Source: storage-formats 2.4, 2.5.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final

from store import format as fmt
from store.config import MIB
from store.fsck.checks.index import IndexCheck, Key
from store.fsck.checks.log import Bad, RecordRun
from store.fsck.checks.queues import QueueCheck
from store.fsck.types import Finding, Notice, Part, Severity
from store.record.check import store_timestamp
from store.record.inner_batches import is_inner_batch
from store.record.tail import TailReader

_ROUND_SIZE_BYTES: Final = 8 * MIB
# Size, magic, queue id, queue offset, position, sys flag, store time, body size; IPv4 hosts.
_HEAD: Final = struct.Struct(">iI4xi4xqqi16xq20xi")
_UNIT: Final = fmt.CONSUME_QUEUE_UNIT
assert _HEAD.size == fmt.BODY_AT


class DerivedCheck:
    """Takes the records of a log in order, and compares the derived files with them."""

    def __init__(
        self,
        queues: QueueCheck,
        index: IndexCheck,
        place: Callable[[int], tuple[str, int]],
        log_severity: Callable[[int], Severity],
        without_queues: set[bytes],
    ) -> None:
        """Take both checks. `place`: file and byte of a position of the log; `log_severity`: of
        damage there. `without_queues`: known topics with inner batches; grows."""
        self._queues, self._index = queues, index
        self._place, self._log_severity = place, log_severity
        self._tails = TailReader()
        self._units: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        self._keys: list[Key] = []
        self._collected_bytes = 0
        self._without_queues = without_queues
        self._passed_over: dict[bytes, int] = {}
        self.newest_unix_ms = 0
        """Latest store time of all records."""

    def put(self, records: RecordRun) -> Iterator[Finding]:
        """Collect whole good records, and compare when enough are there."""
        base, data = records
        tails, read = self._tails.known, self._tails.read
        at, hi = 0, len(data)
        while at < hi:
            size_bytes, magic, queue_id, offset, position, flags, unix_ms, body_size_bytes = (
                _HEAD.unpack_from(data, at)
            )
            if magic == fmt.MAGIC_V1 and not flags & fmt.SYS_FLAG_ANY_V6:
                tail_bytes = data[at + fmt.BODY_AT + body_size_bytes : at + size_bytes]
                tail = tails.get(tail_bytes) or read(tail_bytes)
            else:
                tail = self._tails.read_record(data, at)
                unix_ms = store_timestamp(data, at)
            self.newest_unix_ms = max(self.newest_unix_ms, unix_ms)
            if tail is None:
                yield self._bad_topic(base + at)
            else:
                topic, _, tags_code, hashes = tail
                transaction = flags & fmt.SYS_FLAG_TRANSACTION_MASK
                if flags & fmt.SYS_FLAG_INNER_BATCH and is_inner_batch(data, at):
                    self._without_queues.add(topic)
                    self._pass_over(topic, 1)
                elif not transaction & fmt.TRANSACTION_PREPARED:  # Nor rolled back.
                    key = (topic.decode("ascii"), queue_id)
                    unit = (offset, _UNIT.pack(position, size_bytes, tags_code))
                    self._units.setdefault(key, []).append(unit)
                if transaction != fmt.TRANSACTION_ROLLBACK:
                    for key_hash in hashes:
                        self._keys.append((key_hash, position, unix_ms))
            at += size_bytes
        self._collected_bytes += len(data)
        if self._collected_bytes >= _ROUND_SIZE_BYTES:
            yield from self.compare()

    def compare(self) -> Iterator[Finding]:
        """Compare the collected units and keys."""
        units, keys = self._units, self._keys
        self._units, self._keys, self._collected_bytes = {}, [], 0
        for (topic, queue_id), collected in units.items():
            if topic.encode() in self._without_queues:
                self._pass_over(topic.encode(), len(collected))
                continue
            yield from self._queues.put(topic, queue_id, collected)
        yield from self._index.put(keys)

    def _pass_over(self, topic: bytes, count: int) -> None:
        self._passed_over[topic] = self._passed_over.get(topic, 0) + count

    def damage(self, bad: Bad) -> Iterator[Finding]:
        """Note bad bytes of the log between the records before and those to come."""
        yield from self.compare()
        self._queues.damage(bad)
        self._index.damage(bad)

    def finish(self) -> Iterator[Finding]:
        """Compare the rest, and check that there are no other units and entries."""
        yield from self.compare()
        yield from self._queues.finish(self._without_queues)
        yield from self._index.finish()

    def notices(self) -> list[Notice]:
        """Return the topics that are whole and cannot be read; for after `finish`."""
        return [
            Notice(topic.decode(), self._passed_over.get(topic, 0))
            for topic in sorted(self._without_queues)
        ]

    def _bad_topic(self, position: int) -> Finding:
        path, at = self._place(position)
        severity = self._log_severity(position)
        return Finding(path, at, "topic", "a topic name", "none", severity, Part.LOG, position)
