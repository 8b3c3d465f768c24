"""Derives from the records of a log the content of the consume queues and the key index.

Owns the round: units and keys are collected for some megabytes of log and then handed to the two
comparisons at once. `store.derived.log_walk` says which unit and keys a record has. Source:
storage-formats 2.4, 2.5.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from store import format as fmt
from store.config import MIB
from store.derived.log_walk import said_of
from store.fsck.checks.container import RecordRun
from store.fsck.checks.index import IndexCheck, Key
from store.fsck.checks.log import Bad
from store.fsck.checks.meta import DerivedScope
from store.fsck.checks.queues import QueueCheck
from store.fsck.types import Finding, LogFinding, Notice
from store.record.inner_batches import topics_of
from store.record.tail import TailReader

_ROUND_SIZE_BYTES: Final = 8 * MIB


class DerivedCheck:
    """Takes the records of a log in order, and compares the derived files with them."""

    def __init__(self, scope: DerivedScope, log_finding: LogFinding) -> None:
        """Take the log. `log_finding` makes findings in records."""
        self._queues, self._index = QueueCheck(scope, log_finding), IndexCheck(scope)
        self._bad, self._log_finding = scope.bad, log_finding
        self._tails = TailReader()
        self._units: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        self._keys: list[Key] = []
        self._collected_bytes = 0
        self._without_queues = topics_of(scope.place.fs, scope.place.root)
        """Topics with inner batches; grows."""
        self._passed_over: Counter[bytes] = Counter()
        self.newest_unix_ms = 0
        """Latest store time of all records."""

    def put(self, records: RecordRun) -> Iterator[Finding]:
        """Collect whole good records, and compare when enough are there."""
        base, data = records
        at, hi = 0, len(data)
        while at < hi:
            said = said_of(self._tails, data, at)
            if said is None:
                yield self._log_finding(base + at, 0, "topic", "a topic name", "none")
                at += fmt.INT32.unpack_from(data, at)[0]
                continue
            at += said.size_bytes
            self.newest_unix_ms = max(self.newest_unix_ms, said.store_unix_ms)
            if said.is_inner_batch:
                self._without_queues.add(said.topic)
                self._passed_over[said.topic] += 1
            elif said.has_unit:
                queue = said.topic.decode("ascii"), said.queue_id
                self._units.setdefault(queue, []).append((said.offset, said.unit))
            for key_hash in said.hashes:
                self._keys.append((key_hash, said.position, said.store_unix_ms))
        self._collected_bytes += len(data)
        if self._collected_bytes >= _ROUND_SIZE_BYTES:
            yield from self._compare()

    def _compare(self) -> Iterator[Finding]:
        units, keys = self._units, self._keys
        self._units, self._keys, self._collected_bytes = {}, [], 0
        for (topic, queue_id), collected in units.items():
            if topic.encode() in self._without_queues:
                self._passed_over[topic.encode()] += len(collected)
                continue
            yield from self._queues.put(topic, queue_id, collected)
        yield from self._index.put(keys)

    def damage(self, bad: Bad) -> Iterator[Finding]:
        """Note bad bytes of the log between the records before and those to come."""
        yield from self._compare()
        self._bad.append(bad)

    def finish(self) -> Iterator[Finding]:
        """Compare the rest, and check that there are no other units and entries."""
        yield from self._compare()
        yield from self._queues.finish(self._without_queues)
        yield from self._index.finish()

    def notices(self) -> list[Notice]:
        """Return the topics that are whole and cannot be read; for after `finish`."""
        return [
            Notice(topic.decode(), self._passed_over[topic])
            for topic in sorted(self._without_queues)
        ]
