"""Records of messages that a consumer gave back: for the retry topic, as dead letters, sent again.

Owns the properties with the origin of such a message (storage-formats 8.7) as pure functions of one
encoded record; must not know a clock, settings, or the log. Body, keys, tags, unique key and all
other properties stay the same bytes.
"""

from typing import Final

from node.broker.records.delayed import joined, split
from node.errors.common import BadRequestError
from store import format as fmt
from store.errors import LimitExceededError, RecordFormatError
from store.record.edit import moved
from store.record.message import RecordLayout, parse_message_id, record_layout
from store.record.topic_names import dead_letter_topic, retry_topic

PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
UNPROVEN_ORIGIN_ID: Final = "0" * 31 + "1"
"""The origin of a copy whose writer may not publish to the topic that it names: no message has it.
"""
_TOPIC: Final = PROPERTY_RETRY_TOPIC.encode()
_ORIGIN: Final = PROPERTY_ORIGIN_ID.encode()
_OWN: Final = frozenset({_TOPIC, _ORIGIN})
_BEHIND_TIMES: Final = 16
"""The count of retries lies this many bytes before the body, with position and length behind it."""


def times_of(record: bytes) -> int:
    """Return how often a message was given back before.

    A producer can write any number there; one below 0 counts as 0.
    """
    at = record_layout(memoryview(record), 0).body_at - _BEHIND_TIMES
    return max(0, int(fmt.INT32.unpack_from(record, at)[0]))


def given_back(record: bytes, group: str, *, is_dead: bool) -> bytes:
    """Return a message for the retry topic of a group, or for its dead letters.

    An origin in its properties counts only if it came back before: a client may write any
    properties, but only the broker writes to a retry topic. Raises LimitExceededError when its
    properties get too long.
    """
    layout = record_layout(memoryview(record), 0)
    topic = record[layout.topic_at : layout.topic_hi]
    kept, own = split(record[layout.properties_at :], _OWN)
    if topic != retry_topic(group).encode() or not own.keys() >= _OWN:
        host_at = layout.store_timestamp_at + fmt.TIMESTAMP.size
        host = record[host_at : layout.body_at - _BEHIND_TIMES]
        position = record[fmt.PHYSICAL_OFFSET_AT : fmt.PHYSICAL_OFFSET_AT + fmt.TIMESTAMP.size]
        own = {_TOPIC: topic, _ORIGIN: (host + position).hex().upper().encode()}
    kept += [name + b"\x01" + own[name] for name in (_TOPIC, _ORIGIN)]
    to = dead_letter_topic(group) if is_dead else retry_topic(group)
    times = min(times_of(record) + 1, (1 << 31) - 1)
    return _with_times(_moved(record, layout, to, 0, kept), times)


def dead_letter(record: bytes, group: str) -> bytes:
    """Return a message for the dead letters, without its origin if that has no room."""
    try:
        return given_back(record, group, is_dead=True)
    except LimitExceededError:
        layout = record_layout(memoryview(record), 0)
        kept, _ = split(record[layout.properties_at : layout.size_bytes], frozenset())
        return _moved(record, layout, dead_letter_topic(group), 0, kept)


def origin_of(record: bytes) -> tuple[str, int] | None:
    """Return topic and log position of the message that a record of a retry topic came from.

    None if the record does not say.
    """
    layout = record_layout(memoryview(record), 0)
    _, own = split(record[layout.properties_at :], _OWN)
    try:
        _, position = parse_message_id(own[_ORIGIN].decode("ascii"))
        return own[_TOPIC].decode("ascii"), position
    except (KeyError, UnicodeDecodeError, RecordFormatError):
        return None


def origin_topic(record: bytes) -> str:
    """Return the topic a dead letter came from. Raises BadRequestError if it does not say, or its
    writer, who may not publish there, alone does."""
    layout = record_layout(memoryview(record), 0)
    _, own = split(record[layout.properties_at :], _OWN)
    if own.get(_ORIGIN) == UNPROVEN_ORIGIN_ID.encode():
        expected = "messages, or copies by users with Pub on their topic"
        raise BadRequestError("offsets", expected, "a copy by another user")
    if _TOPIC not in own:
        expected = f"a message with property {PROPERTY_RETRY_TOPIC}"
        raise BadRequestError("offsets", expected, "one without")
    return own[_TOPIC].decode("ascii")


def sent_again(record: bytes, topic: str, queue_id: int) -> bytes:
    """Return a dead letter as a new message of a topic; the id of its origin is kept."""
    layout = record_layout(memoryview(record), 0)
    kept, _ = split(record[layout.properties_at :], frozenset({_TOPIC}))
    return _with_times(_moved(record, layout, topic, queue_id, kept), 0)


def _moved(
    record: bytes, layout: RecordLayout, topic: str, queue_id: int, kept: list[bytes]
) -> bytes:
    to = topic.encode()
    return moved(record, layout, topic=to, queue_id=queue_id, properties=joined(kept))


def _with_times(record: bytes, times: int) -> bytes:
    at = record_layout(memoryview(record), 0).body_at - _BEHIND_TIMES
    return b"".join((record[:at], fmt.INT32.pack(times), record[at + fmt.INT32.size :]))
