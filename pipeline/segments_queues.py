"""The units that the consume queues must hold for the records of a byte range.

Owns the way from records to units and to runs of queue offsets: the same as the dispatcher's. Must
not know files. Records of transactions that are open, or were rolled back, have none.
"""

import struct
from typing import Final, NamedTuple

from store import format as fmt
from store.record.inner_batches import is_inner_batch
from store.record.tail import TailReader

# Size, magic, queue id, queue offset, position, sys flag; the rest of the head up to the body.
_HEAD: Final = struct.Struct(">iI4xi4xqqi44xi")
assert _HEAD.size == fmt.BODY_AT


class QueueRun(NamedTuple):
    """The offsets [lo, hi) of a queue, without a gap; `position` and `last_position` are those of
    the first and the last record."""

    topic: str
    queue_id: int
    lo: int
    hi: int
    position: int
    last_position: int


class Wanted(NamedTuple):
    """Units that belong into a queue from an offset on."""

    topic: str
    queue_id: int
    offset: int
    units: bytes


class RecordsOfQueues:
    """Collects units; `take` hands out those that are due for a comparison."""

    def __init__(self, without_queues: frozenset[bytes] = frozenset()) -> None:
        """`without_queues`: topics to which RocketMQ wrote inner batches."""
        self._without_queues = without_queues
        self.size_bytes = 0
        """Bytes of the records since the last `take`."""
        self._tails = TailReader()
        self._runs: list[QueueRun] = []
        self._open: dict[tuple[bytes, int], QueueRun] = {}
        self._units: dict[tuple[bytes, int], list[tuple[int, int, int, int]]] = {}

    def add(self, data: bytes, at: int, hi: int) -> int:
        """Add checked records that lie back to back in `data[at:hi]`; return their count."""
        self.size_bytes += hi - at
        known, read, units = self._tails.known, self._tails.read, self._units
        unpack, count = _HEAD.unpack_from, 0
        while at < hi:
            size_bytes, magic, queue_id, offset, position, flags, body_size_bytes = unpack(data, at)
            if magic == fmt.MAGIC_V1 and not flags & fmt.SYS_FLAG_ANY_V6:
                tail_bytes = data[at + fmt.BODY_AT + body_size_bytes : at + size_bytes]
                tail = known.get(tail_bytes) or read(tail_bytes)
            else:
                tail = self._tails.read_record(data, at)
            # Without a topic it has no queue; prepared and rolled back records have no unit, nor
            # have inner batches of RocketMQ.
            if flags & fmt.SYS_FLAG_INNER_BATCH and is_inner_batch(data, at):
                pass
            elif tail is not None and not flags & fmt.TRANSACTION_PREPARED:
                key = (tail[0], queue_id)
                found = units.get(key)
                if found is None:
                    found = units[key] = []
                found.append((offset, position, size_bytes, tail[2]))
            at += size_bytes
            count += 1
        return count

    def take(self) -> list[Wanted]:
        """Return the units collected since the last call, consecutive ones together."""
        collected, self._units, self.size_bytes = self._units, {}, 0
        wanted = []
        for key, units in collected.items():
            if key[0] in self._without_queues:
                continue
            topic, queue_id = key[0].decode("ascii"), key[1]
            lo = 0
            for hi in range(1, len(units) + 1):
                if hi < len(units) and units[hi][0] == units[hi - 1][0] + 1:
                    continue
                run = units[lo:hi]
                packed = b"".join(fmt.CONSUME_QUEUE_UNIT.pack(*unit[1:]) for unit in run)
                if run[0][0] >= 0:
                    wanted.append(Wanted(topic, queue_id, run[0][0], packed))
                self._note(key, topic, run)
                lo = hi
        return wanted

    def _note(
        self, key: tuple[bytes, int], topic: str, units: list[tuple[int, int, int, int]]
    ) -> None:
        """Extend the run, or begin a new one."""
        first, last = units[0], units[-1]
        run = self._open.get(key)
        if run is not None and run.hi == first[0]:
            self._open[key] = run._replace(hi=last[0] + 1, last_position=last[1])
            return
        if run is not None:
            self._runs.append(run)
        self._open[key] = QueueRun(topic, key[1], first[0], last[0] + 1, first[1], last[1])

    def runs(self) -> list[QueueRun]:
        """Return the runs of offsets of all records that were added."""
        return [*self._runs, *self._open.values()]
