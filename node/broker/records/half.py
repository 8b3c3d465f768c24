"""Records of transactions: half messages, what is made of them, and the marks that they are done.

Owns the conversions between them (storage-formats 8.8) as pure functions of encoded records; must
not know which transactions there are. A half message is the message under another topic, with its
own topic and queue in properties, so it becomes visible by a copy and is never changed in place.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from node.errors.transactions import TransactionTooLargeError
from store import format as fmt
from store.format import Host
from store.record.edit import Property, changed, layouts, moved, properties_of, start_of, values
from store.record.message import RecordLayout, check_topic, encode_message

QUEUE_ID: Final = 0
"""Queue id of the three topics of transactions: they have one queue each."""

_DONE_TAG: Final = "d"
_REAL_TOPIC: Final = fmt.PROPERTY_REAL_TOPIC.encode()
_REAL_QUEUE: Final = fmt.PROPERTY_REAL_QUEUE_ID.encode()
_GROUP: Final = fmt.PROPERTY_PRODUCER_GROUP.encode()
_IS_HALF: Final = fmt.PROPERTY_HALF.encode()
_KEY: Final = fmt.PROPERTY_UNIQUE_KEY.encode()
_ID: Final = fmt.PROPERTY_TRANSACTION_ID.encode()
_ONLY_HALF: Final = frozenset({_REAL_TOPIC, _REAL_QUEUE, fmt.PROPERTY_WAIT.encode()})
_OURS: Final = _ONLY_HALF | {_GROUP, _IS_HALF}
"""The rest stays, as in RocketMQ: a consumer finds the id of the transaction by it."""

GROWTH_SIZE_BYTES: Final = 64
"""Bytes by which a record may grow on its way from half message to the topic of given-up ones, its
share of the record that marks it as done included."""


class Halves(NamedTuple):
    """Records made of others, back to back, and the queues that their messages are meant for."""

    records: bytes
    record_count: int
    queues: frozenset[tuple[str, int]]


def half_messages(records: bytes, producer_group: str, limit: int) -> Halves:
    """Make half messages of a client's records, at most `limit`.

    Raises TransactionTooLargeError, RecordFormatError, LimitExceededError, TopicNameError.
    """
    parts: list[bytes] = []
    queues = set()
    group = producer_group.encode()
    for layout in layouts(records):
        if len(parts) == limit:  # Stop before making the others, too.
            raise TransactionTooLargeError(limit + 1, limit)
        topic = records[layout.topic_at : layout.topic_hi]
        check_topic(topic)  # The store checks the name of the half message's topic.
        queue_id = fmt.INT32.unpack_from(records, start_of(layout) + fmt.QUEUE_ID_AT)[0]
        queues.add((topic.decode("latin-1"), queue_id))
        added: tuple[Property, ...] = (
            (_IS_HALF, b"true"),
            (_GROUP, group),
            (_REAL_TOPIC, topic),
            (_REAL_QUEUE, b"%d" % queue_id),
        )
        properties = properties_of(records, layout)
        key = values(properties, (_KEY,)).get(_KEY)
        if key is None:
            properties = changed(properties, _OURS, added)
        else:  # As in RocketMQ: the key of a message is the id of its transaction.
            properties = changed(properties, _OURS | {_ID}, (*added, (_ID, key)))
        parts.append(_moved(records, layout, fmt.HALF_TOPIC, properties))
    return Halves(b"".join(parts), len(parts), frozenset(queues))


def portions(halves: bytes, count: int) -> Iterator[bytes]:
    """Cut half messages that lie back to back into portions of `count`."""
    at = lo = taken = 0
    while at < len(halves):
        at += int(fmt.INT32.unpack_from(halves, at)[0])
        taken += 1
        if taken % count == 0 or at == len(halves):
            yield halves[lo:at]
            lo = at


def joined(made: Iterable[Halves]) -> Halves:
    """Put together the results of portions."""
    parts = list(made)
    return Halves(
        b"".join(one.records for one in parts),
        sum(one.record_count for one in parts),
        frozenset().union(*(one.queues for one in parts)),
    )


def visible_messages(halves: bytes) -> Halves:
    """Make of half messages what consumers get: marked as committed, naming their half message."""
    parts: list[bytes] = []
    queues = set()
    for layout in layouts(halves):
        properties = properties_of(halves, layout)
        texts = values(properties, (_REAL_TOPIC, _REAL_QUEUE))
        topic, queue_id = texts[_REAL_TOPIC], int(texts[_REAL_QUEUE])
        queues.add((topic.decode("latin-1"), queue_id))
        parts.append(
            moved(
                halves,
                layout,
                topic=topic,
                queue_id=queue_id,
                properties=changed(properties, _ONLY_HALF, ()),
                transaction=fmt.TRANSACTION_COMMIT,
                prepared_position=_offsets(halves, start_of(layout))[1],
            )
        )
    return Halves(b"".join(parts), len(parts), frozenset(queues))


def given_up_messages(halves: bytes) -> bytes:
    """Make of half messages the records that are kept of a transaction that was never ended."""
    return b"".join(
        _moved(halves, layout, fmt.HALF_GIVEN_UP_TOPIC, properties_of(halves, layout))
        for layout in layouts(halves)
    )


def offsets_of(halves: bytes) -> list[int]:
    """Return the offsets of half messages in their queue."""
    return [_offsets(halves, start_of(layout))[0] for layout in layouts(halves)]


def done_mark(offsets: Iterable[int], store_host: Host, born_unix_ms: int) -> bytes:
    """Return the record that marks half messages as done: their offsets in their queue."""
    return encode_message(
        fmt.HALF_DONE_TOPIC,
        QUEUE_ID,
        ",".join(map(str, offsets)).encode(),
        {fmt.PROPERTY_TAGS: _DONE_TAG},
        born_unix_ms=born_unix_ms,
        born_host=store_host,
        store_host=store_host,
    )


def _moved(records: bytes, layout: RecordLayout, topic: str, properties: bytes) -> bytes:
    return moved(
        records,
        layout,
        topic=topic.encode(),
        queue_id=QUEUE_ID,
        properties=properties,
        transaction=fmt.TRANSACTION_NONE,
        prepared_position=0,
    )


def _offsets(records: bytes, at: int) -> tuple[int, int]:
    """Return queue offset and position."""
    offset, position = fmt.OFFSETS.unpack_from(records, at + fmt.QUEUE_OFFSET_AT)
    return offset, position
