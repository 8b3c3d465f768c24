"""Records of delayed messages: as a producer sends them, as they are held, as they are delivered.

Owns the conversions between the three (storage-formats 8.5, 8.6) as pure functions of one encoded
record, and the table of levels; must not know a clock, the log, or when anything is due. The
message itself (body, keys, tags, unique key, properties, born time and host, flags, reconsume
times) is the same bytes in all three. A held record has its due time in a property, so that the
dispatcher finds the time where it finds tags, and equal bytes mean the same on every replica.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from store import format as fmt
from store.errors import LimitExceededError, RecordFormatError
from store.record.edit import moved
from store.record.message import RecordLayout, record_layout

LEVEL_DELAYS_MS: Final = tuple(
    1_000 * seconds
    for seconds in (
        *(1, 5, 10, 30),
        *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
        *(3_600, 7_200),
    )
)
"""Delay of level 1 to 18: RocketMQ's published table."""

PROPERTY_UNDELIVERABLE: Final = "UNDELIVERABLE"
"""Property of a message whose own topic or queue is gone, or takes no messages: the reason."""

_MAGIC: Final = slice(4, 8)
_MAGIC_V1: Final = fmt.MAGIC_V1.to_bytes(4, "big")
_LAST_OF_FLAG: Final = fmt.SYS_FLAG_AT + 3
_ANY_V6: Final = fmt.SYS_FLAG_ANY_V6
_KNOWN_TAILS_MAX: Final = 8_192
_AFTER_QUEUE_ID: Final = fmt.QUEUE_ID_AT + fmt.INT32.size
_WAIT: Final = fmt.PROPERTY_WAIT.encode()
_DELAY: Final = fmt.PROPERTY_DELAY_LEVEL.encode()
_REAL_TOPIC: Final = fmt.PROPERTY_REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = fmt.PROPERTY_REAL_QUEUE_ID.encode()
_DELAY_SECONDS: Final = fmt.PROPERTY_DELAY_SECONDS.encode()
_DELAY_MS: Final = fmt.PROPERTY_DELAY_MS.encode()
_DELIVER_MS: Final = fmt.PROPERTY_DELIVER_MS.encode()
_DUE_MS: Final = fmt.PROPERTY_DUE_MS.encode()
_DUE_START: Final = b"\x02" + _DUE_MS + b"\x01"
_CRC_PREFIX: Final = fmt.PROPERTY_CRC_PREFIX
_WISHES: Final = frozenset({_DELAY, _DELAY_SECONDS, _DELAY_MS, _DELIVER_MS})
HELD_ONLY: Final = _WISHES | {_REAL_TOPIC, _REAL_QUEUE_ID, _DUE_MS, _WAIT}
"""Properties that a delivered record does not carry any more."""
_HELD_PROPERTIES_SIZE_BYTES_MAX: Final = fmt.PROPERTIES_SIZE_BYTES_MAX - 128
"""Leaves room for the reason why a message cannot be delivered."""
_TIME_DIGITS_MAX: Final = 15
"""Digits of a number in a property: more make no valid time or delay."""


class DelayWish(NamedTuple):
    """When a producer wants one record delivered: a level, or a delay, or a time."""

    level: int = 0
    """From 1; 0: none."""
    delay_ms: int = -1
    """-1: none."""
    deliver_unix_ms: int = -1
    """-1: none."""


def level_delay_ms(level: int) -> int:
    """Return the delay of a level; as in RocketMQ a level above the last means the last."""
    assert level >= 1, f"level {level}"
    return LEVEL_DELAYS_MS[min(level, len(LEVEL_DELAYS_MS)) - 1]


def scheduled(record: bytes, deliver_unix_ms: int, *, level: int = 0) -> bytes:
    """Return a record as it is held until a time: on the queue of a level, or among the timed ones.

    The time is by the clock of the leader that writes it: for a level, `now + level_delay_ms`. Put
    the record into an entry of the broker's own (`OwnAppends.write`), or into a client's batch with
    the right to touch that queue: once the entry is applied the leader delivers the message
    into the topic and queue that `record` names. Raises RecordFormatError, or
    LimitExceededError when its properties get too long.
    """
    assert deliver_unix_ms >= 0, f"time {deliver_unix_ms}"
    layout = record_layout(memoryview(record), 0)
    topic = record[layout.topic_at : layout.topic_hi]
    real_queue_id = fmt.INT32.unpack_from(record, fmt.QUEUE_ID_AT)[0]
    kept, _ = split(record[layout.properties_at :], HELD_ONLY - {_DELIVER_MS})
    kept.append(b"%b\x01%b" % (_REAL_TOPIC, topic))
    kept.append(b"%b\x01%d" % (_REAL_QUEUE_ID, real_queue_id))
    kept.append(b"%b\x01%d" % (_DUE_MS, deliver_unix_ms))
    if level:
        level = min(level, len(LEVEL_DELAYS_MS))
        kept.append(b"%b\x01%d" % (_DELAY, level))
        holder, queue_id = fmt.SCHEDULE_TOPIC.encode(), level - 1
    else:
        holder, queue_id = fmt.TIMER_TOPIC.encode(), 0
    properties, limit = joined(kept), _HELD_PROPERTIES_SIZE_BYTES_MAX
    if len(properties) > limit:
        raise LimitExceededError("properties", len(properties), limit)
    return moved(record, layout, topic=holder, queue_id=queue_id, properties=properties)


def wish_of(record: bytes) -> DelayWish | None:
    """Return when a producer wants a record delivered; None if the record does not say.

    A level takes precedence over a delay, and a delay over a time. Raises RecordFormatError for a
    value that is no number.
    """
    layout = record_layout(memoryview(record), 0)
    _, wishes = split(record[layout.properties_at :], _WISHES)
    if not wishes:
        return None
    if _DELAY in wishes:
        level = _number(wishes, _DELAY, layout)
        return DelayWish(level=level) if level else None
    if _DELAY_MS in wishes:
        return DelayWish(delay_ms=_number(wishes, _DELAY_MS, layout))
    if _DELAY_SECONDS in wishes:
        return DelayWish(delay_ms=1_000 * _number(wishes, _DELAY_SECONDS, layout))
    return DelayWish(deliver_unix_ms=_number(wishes, _DELIVER_MS, layout))


def _number(properties: dict[bytes, bytes], name: bytes, layout: RecordLayout) -> int:
    value = properties[name]
    if not value.isdigit() or len(value) > _TIME_DIGITS_MAX:
        expected = f"a number of at most {_TIME_DIGITS_MAX} digits"
        raise RecordFormatError(
            layout.properties_at, f"property {name.decode()}", expected, repr(value)
        )
    return int(value)


class Held(NamedTuple):
    """Target and due time of a held record."""

    topic: str
    queue_id: int
    due_unix_ms: int


def held(record: bytes) -> Held:
    """Return where and when a held record is to be delivered. Raises RecordFormatError."""
    layout = record_layout(memoryview(record), 0)
    _, texts = split(record[layout.properties_at :], HELD_ONLY)
    return _held(texts, layout)


def _held(properties: dict[bytes, bytes], layout: RecordLayout) -> Held:
    for name in (_REAL_TOPIC, _REAL_QUEUE_ID, _DUE_MS):
        if name not in properties:
            field = f"property {name.decode()}"
            raise RecordFormatError(layout.properties_at, field, "of a held record", "none")
    return Held(
        properties[_REAL_TOPIC].decode("ascii"),
        _number(properties, _REAL_QUEUE_ID, layout),
        _number(properties, _DUE_MS, layout),
    )


def delivered(record: bytes) -> tuple[Held, bytes]:
    """Return target and due time of a held record, and the record for its own topic and queue.

    Raises RecordFormatError when the record is not a held one.
    """
    layout = record_layout(memoryview(record), 0)
    kept, texts = split(record[layout.properties_at :], HELD_ONLY - {_DELIVER_MS})
    own = _held(texts, layout)
    topic, queue_id = texts[_REAL_TOPIC], own.queue_id
    return own, moved(record, layout, topic=topic, queue_id=queue_id, properties=joined(kept))


class DeliveredRecords:
    """As `delivered`, but fast for records of one kind: their tails differ in the time only.

    New tails are cached, at most _KNOWN_TAILS_MAX.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, int, bytes, bytes]] = {}
        """By the old tail without its time: topic, queue id, encoded queue id, new tail."""

    def of(self, record: bytes) -> tuple[str, int, bytes, int]:
        """Return topic, queue id, the record for there, and its due time. Raises as `delivered`."""
        body_hi = fmt.BODY_AT + int.from_bytes(record[fmt.BODY_LENGTH_AT : fmt.BODY_AT], "big")
        tail = record[body_hi:]
        lo = tail.rfind(_DUE_START) + len(_DUE_START)
        hi = tail.find(b"\x02", lo)
        is_plain = record[_MAGIC] == _MAGIC_V1 and not record[_LAST_OF_FLAG] & _ANY_V6
        if not is_plain or lo < len(_DUE_START) or hi < 0:
            own, outside = delivered(record)
            return own.topic, own.queue_id, outside, own.due_unix_ms
        kind = tail[:lo] + tail[hi:]
        tails = self._known.get(kind)
        if tails is None:
            own, outside = delivered(record)
            if outside[_MAGIC] != _MAGIC_V1:
                return own.topic, own.queue_id, outside, own.due_unix_ms
            if len(self._known) >= _KNOWN_TAILS_MAX:
                self._known.clear()
            queue_id = fmt.INT32.pack(own.queue_id)
            self._known[kind] = own.topic, own.queue_id, queue_id, outside[body_hi:]
            return own.topic, own.queue_id, outside, own.due_unix_ms
        topic, queue_id_number, queue_id, new_tail = tails
        size = fmt.INT32.pack(body_hi + len(new_tail))
        start = record[fmt.INT32.size : fmt.QUEUE_ID_AT]
        rest = record[_AFTER_QUEUE_ID:body_hi]
        due = tail[lo:hi]
        if not due.isdigit() or len(due) > _TIME_DIGITS_MAX:
            own, outside = delivered(record)  # Raises the error that names the fault.
            return own.topic, own.queue_id, outside, own.due_unix_ms
        outside = b"".join((size, start, queue_id, rest, new_tail))
        return topic, queue_id_number, outside, int(due)


def undeliverable(record: bytes, reason: str) -> bytes:
    """Return a held record for the topic of those that cannot be delivered.

    The record keeps its target (REAL_TOPIC, REAL_QID) and due time, and gets the reason, if there
    is room for that.
    """
    layout = record_layout(memoryview(record), 0)
    kept, _ = split(record[layout.properties_at :], frozenset({_DELAY, _WAIT}))
    why, to = f"{PROPERTY_UNDELIVERABLE}\x01{reason}".encode(), fmt.UNDELIVERABLE_TOPIC.encode()
    try:
        return moved(record, layout, topic=to, queue_id=0, properties=joined([*kept, why]))
    except LimitExceededError:
        return moved(record, layout, topic=to, queue_id=0, properties=joined(kept))


def split_records(data: bytes) -> Iterator[bytes]:
    """Yield the records that lie back to back."""
    at = 0
    while at < len(data):
        end = at + fmt.INT32.unpack_from(data, at)[0]
        yield data[at:end]
        at = end


def split(
    properties: bytes, names: frozenset[bytes] | set[bytes]
) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Return the properties that are not named, unchanged, and the values of those that are."""
    kept: list[bytes] = []
    values: dict[bytes, bytes] = {}
    for part in properties.split(b"\x02"):
        name, _, value = part.partition(b"\x01")
        if name in names:
            values[name] = value
        elif part:
            kept.append(part)
    return kept, values


def joined(properties: list[bytes]) -> bytes:
    """Return properties as a record has them: a property CRC goes to the end, for the append."""
    block = b"".join([part + b"\x02" for part in properties if part[:9] != _CRC_PREFIX])
    if len(block) != sum(map(len, properties)) + len(properties):
        block += fmt.PROPERTY_CRC_PLACEHOLDER
    return block
