"""The offsets and queues of a read, decided before it begins.

Owns the way from options to ranges and their checks; must not know how a range is read. All
questions go to leaders: a range that ends at the leader's end is complete on every node, because
the reader demands the entry that the leader had applied then (`at_least_index`).
"""

import asyncio
import functools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pipeline.connection import Connection
from pipeline.errors import DataLossError, OffsetsError, OptionError
from pipeline.options import Offsets, Place, SourceOptions
from quorumlog.consume.reads import QueueOffsets
from quorumlog.errors import QuorumlogError, UnknownTopicError
from quorumlog.records.options import END, FIRST, Time, parse_position
from quorumlog.records.queues import Queue

_log = logging.getLogger("quorumlog.pipeline")

Bounds = dict[Queue, tuple[int, int]]
"""The offsets [lo, hi) of each queue."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [lo, hi) of one queue; `hi` is known to be there at the entry `at_least_index`."""

    queue: Queue
    lo: int
    hi: int
    at_least_index: int


def queues_of(connection: Connection, options: SourceOptions) -> list[QueueOffsets]:
    """Return the queues of all topics with their offsets.

    Raises UnknownTopicError, unless the read continues without lost data.
    """
    queues: list[QueueOffsets] = []
    for topic in options.topics:
        try:
            queues += connection.queue_offsets(topic)
        except UnknownTopicError:
            if options.fails_on_data_loss:
                raise
            _warn_of(topic)
    return queues


@functools.cache  # A stream asks for its queues many times a second.
def _warn_of(topic: str) -> None:
    _log.warning("topic %r does not exist; it is left out", topic)


def is_gone(error: QuorumlogError) -> bool:
    """Whether a call failed since the topic was deleted, or created again with fewer queues."""
    return isinstance(error, UnknownTopicError) or error.code == "node.unknown_queue"


def queue_of(offsets: QueueOffsets) -> Queue:
    """Return the name of the queue."""
    return Queue(offsets.topic, offsets.queue_id, offsets.broker_group)


def key_of(queue: Queue) -> str:
    """Return the name of a queue within its topic, as in the offsets of checkpoints."""
    return f"{queue.broker_group}/{queue.queue_id}"


def bounds(
    connection: Connection, options: SourceOptions, queues: list[QueueOffsets], default: Place
) -> Bounds:
    """Return where each queue is read from and to. Raises OffsetsError, OptionError."""
    starting = options.starting or Offsets(default)
    ending = options.ending or Offsets(END)
    _check_names(starting, queues, "startingOffsets")
    _check_names(ending, queues, "endingOffsets")
    lo = resolve(connection, starting, queues)
    hi = resolve(connection, ending, queues)
    result: Bounds = {}
    for offsets in queues:
        queue = queue_of(offsets)
        result[queue] = _checked(offsets, lo[queue], hi[queue], options)
    return result


def resolve(
    connection: Connection, offsets: Offsets, queues: list[QueueOffsets]
) -> dict[Queue, int]:
    """Turn places into an offset of each queue."""

    async def one(queue: QueueOffsets) -> int:
        named = offsets.queues.get(queue.topic, {})
        place = named.get(key_of(queue_of(queue)), named.get(str(queue.queue_id)))
        wanted = parse_position(offsets.everywhere if place is None else place)
        if isinstance(wanted, Time):
            return await connection.client.offset_by_time(
                queue.topic, queue.queue_id, wanted.unix_ms, broker_group=queue.broker_group
            )
        if isinstance(wanted, int):
            return wanted
        return queue.first_offset if wanted == FIRST else queue.end_offset

    async def every() -> list[int]:
        return await asyncio.gather(*map(one, queues))

    return dict(zip(map(queue_of, queues), connection.call(every()), strict=True))


def _check_names(offsets: Offsets, existing: Iterable[QueueOffsets], option: str) -> None:
    taken = {(q.topic, name) for q in existing for name in (str(q.queue_id), key_of(queue_of(q)))}
    there = {topic for topic, _ in taken}
    for topic, queues in offsets.queues.items():
        if topic not in there:
            continue  # It was deleted; the read continues without it.
        for name in queues:
            if (topic, name) not in taken:
                names = ", ".join(sorted(n for t, n in taken if t == topic))
                raise OptionError(
                    f"option {option!r} names queue {name!r}, which topic {topic!r} does not have",
                    f"it has {names}",
                )


def _checked(offsets: QueueOffsets, lo: int, hi: int, options: SourceOptions) -> tuple[int, int]:
    where = f"{queue_of(offsets)} has the offsets {offsets.first_offset} to {offsets.end_offset}"
    if lo > offsets.end_offset or hi > offsets.end_offset:
        raise OffsetsError(
            f"{where}, and {max(lo, hi)} is behind its end", "use an offset up to its end"
        )
    if lo < offsets.first_offset:
        if options.fails_on_data_loss:
            raise OffsetsError(
                f"{where}, and those from {lo} on expired",
                "begin at 'first', or read on without them with failOnDataLoss=false",
            )
        _log.warning("%s; those from %d on expired and are left out", where, lo)
        lo = offsets.first_offset
    if hi < lo:
        raise OffsetsError(
            f"{where}; reading it from {lo} would end before that, at {hi}",
            "let endingOffsets be at or behind startingOffsets",
        )
    return lo, hi


def check_survived(
    options: SourceOptions, queues: list[QueueOffsets], start: Mapping[Queue, int]
) -> None:
    """Check that a stream can continue where it was. Raises DataLossError.

    Expired records are found when they are read; this finds queues that are gone or shorter.
    """
    if not options.fails_on_data_loss:
        return
    ends = {queue_of(offsets): offsets.end_offset for offsets in queues}
    for queue, offset in start.items():
        end = ends.get(queue)
        if end is None or end < offset:
            what = "is gone" if end is None else f"ends at {end}"
            raise DataLossError(
                f"{queue} {what}, and was read up to {offset}",
                "was the topic created again? Begin with a new checkpoint, or set "
                "failOnDataLoss=false",
            )


def ranges(
    connection: Connection, wanted: Mapping[Queue, tuple[int, int]], records_max: int
) -> list[OffsetRange]:
    """Cut the wanted offsets into ranges of at most `records_max` records, each of one queue."""
    chosen = {queue: (lo, hi) for queue, (lo, hi) in wanted.items() if lo < hi}

    async def applied(group: str) -> int:
        for queue in chosen:
            if queue.broker_group == group:
                try:
                    answer = await connection.client.raw.pull(queue, chosen[queue][0], max_count=1)
                except QuorumlogError as error:
                    if not is_gone(error):
                        raise
                else:
                    return answer.applied_index
        return 0  # All are gone, which is found when they are read.

    async def every() -> dict[str, int]:
        groups = sorted({queue.broker_group for queue in chosen})
        return dict(zip(groups, await asyncio.gather(*map(applied, groups)), strict=True))

    indexes: Final = connection.call(every()) if chosen else {}
    return [
        OffsetRange(queue, at, min(at + records_max, hi), indexes[queue.broker_group])
        for queue, (lo, hi) in chosen.items()
        for at in range(lo, hi, records_max)
    ]
