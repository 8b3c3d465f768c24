"""Message records for the wire: many encoded in one pass, decoded to objects that cost little.

Owns the client's half of the record format (storage-formats 1.2 to 1.10, docs/format.md): the same
bytes as the store's codec makes, which a property test proves, but made for speed. Must not know
where records are kept or how they travel. Queue offset, position, store time and store host are
zero here; the leader fills them in.
"""

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final, NamedTuple

from quorumlog.errors import (
    CorruptRecordError,
    InvalidRequestError,
    TooLargeError,
    WrongTypeError,
)
from quorumlog.records.compression import IS_COMPRESSED, CompressedMessage
from quorumlog.records.message import TOPICS_OF_GROUPS, Message

try:
    from isal.isal_zlib import crc32
except ImportError:  # Wheels do not exist for every platform; zlib takes six times as long.
    from zlib import crc32

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB  # The topic length has two bytes: topics of over 127 characters.
RECORD_SIZE_BYTES_MIN: Final = 91
PROPERTIES_SIZE_BYTES_MAX: Final = 32767
TOPIC_SIZE_CHARACTERS_MAX: Final = 127
TOPIC_SIZE_CHARACTERS_HARD_MAX: Final = 255  # Retry and dead-letter topics only.
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
PROPERTY_CRC: Final = "__CRC32#"

COLUMNS_FROM_COUNT: Final = 8
"""Messages from which on columns pay for being looked at."""

_CRC_MASK: Final = 0x7FFFFFFF
_TOPIC_CHARACTERS: Final = frozenset(
    "%|_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0, 0))
# Size, magic, body CRC, 72 bytes that are mostly equal from record to record, body size.
_HEAD: Final = struct.Struct(">iIi72si")
# Queue id, flag; 16 bytes of offsets; sys flag; born time, born host; 8 bytes of store time;
# store host; 12 bytes of reconsume times and prepared position.
_MIDDLE: Final = struct.Struct(">ii16xi8s8s8x8s12x")
# Head and middle of a record in one, for a record that is encoded alone.
_SINGLE: Final = struct.Struct(">iIiii16xiq8s8x8s12xi")
_DECODE: Final = struct.Struct(">iIIi4xq8xi44xi")  # size, magic, crc, queue, offset, sys, body.
_BODY_AT: Final = 88
_LENGTH: Final = struct.Struct(">H")
_INT32: Final = struct.Struct(">i")
_TIME: Final = struct.Struct(">q")

assert _HEAD.size == _SINGLE.size == _DECODE.size == _BODY_AT


class EncodedTopic(NamedTuple):
    """The bytes that all records of one topic share, made once."""

    name: str
    magic: int
    field: bytes  # Length and name, as in the record.
    plain_tail: bytes  # The bytes behind the body when there are no properties.
    overhead_size_bytes: int  # Of a record, besides body and properties.


_overhead = operator.attrgetter("overhead_size_bytes")


@lru_cache(maxsize=1024)  # A client writes to few topics; checking one costs microseconds.
def topic_template(name: str) -> EncodedTopic:
    """Check a topic's name and prepare its bytes. Raises InvalidRequestError, TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"a topic is no {type(name).__name__}; use text")
    bad = sorted(set(name) - _TOPIC_CHARACTERS)
    is_long = name.startswith(TOPICS_OF_GROUPS)
    limit = TOPIC_SIZE_CHARACTERS_HARD_MAX if is_long else TOPIC_SIZE_CHARACTERS_MAX
    if bad or not 0 < len(name) <= limit:
        reason = f"character {bad[0]!r} is not allowed" if bad else f"{len(name)} characters"
        raise InvalidRequestError(
            f"topic {name!r:.100} is refused: {reason}; use 1 to {limit} of letters, digits, "
            f"'%', '|', '_' and '-'",
            code="client.bad_topic",
        )
    is_v2 = len(name) > TOPIC_SIZE_CHARACTERS_MAX
    length = _LENGTH.pack(len(name)) if is_v2 else bytes((len(name),))
    field = length + name.encode()
    magic = MAGIC_V2 if is_v2 else MAGIC_V1
    return EncodedTopic(name, magic, field, field + b"\0\0", _BODY_AT + len(field) + 2)


def encode_properties(
    key: str | None, tag: str | None, properties: Mapping[str, str] | None
) -> bytes:
    """Encode key, tag and properties as `name 0x01 value 0x02` each, in this order.

    Raises InvalidRequestError for a value that cannot be read back, TooLargeError for over 32,767
    bytes.
    """
    block = ""
    if key is not None:
        block = f"{KEYS}\x01{_checked(KEYS, key)}\x02"
    if tag is not None:
        block += f"{TAGS}\x01{_checked(TAGS, tag)}\x02"
    if properties:
        for name, value in properties.items():
            if not isinstance(name, str):
                raise WrongTypeError(f"property name {name!r:.100} is no text; use text")
            taken = (name == KEYS and key is not None) or (name == TAGS and tag is not None)
            if not name or "\x01" in name or "\x02" in name or "\0" in name or taken:
                reason = "it is given twice" if taken else "empty, or with 0x00, 0x01 or 0x02"
                raise InvalidRequestError(f"property name {name!r:.100}: {reason}; use another")
            if name == PROPERTY_CRC:
                raise InvalidRequestError(f"property name {name!r} is reserved; use another")
            block += f"{name}\x01{_checked(name, value)}\x02"
    try:
        data = block.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"a property is no valid text ({error}); use UTF-8") from None
    if len(data) > PROPERTIES_SIZE_BYTES_MAX:
        raise TooLargeError(
            f"properties have {len(data)} bytes, the limit is {PROPERTIES_SIZE_BYTES_MAX}; "
            f"put large values into the body"
        )
    return data


def _checked(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise WrongTypeError(f"property {name!r} is {value!r:.100}, which is no text; use text")
    is_empty = not value or (name == KEYS and not value.strip(" "))  # Blanks part keys.
    if is_empty or "\x02" in value or "\0" in value:
        raise InvalidRequestError(
            f"property {name!r} is {value!r:.100}; use text that is not empty, without 0x00 and "
            f"0x02, and keys that are not only blanks"
        )
    return value


Entry = tuple[EncodedTopic, int | None, str | None, bytes, bytes, int, int]
"""A message that is not encoded yet: topic, queue id (None: chosen when its batch leaves), key,
body, encoded properties, flag, system flag. A plain tuple, because this is the hot path."""

Place = tuple[str, int]
"""Topic and queue id."""


class Encoded(NamedTuple):
    """Records in pieces (join them), and the size in bytes and the place of each."""

    pieces: list[bytes]
    sizes: list[int]
    places: list[Place]


def size_bytes_of(entry: Entry) -> int:
    return entry[0].overhead_size_bytes + len(entry[3]) + len(entry[4])


def size_bytes_of_all(entries: Sequence[Entry]) -> int:
    topics, _, _, bodies, properties, _, _ = zip(*entries, strict=True)
    overhead_size_bytes: int = sum(map(_overhead, topics))
    return overhead_size_bytes + sum(map(len, bodies)) + sum(map(len, properties))


def encode_entries(
    entries: Sequence[Entry],
    place_of: Callable[[str, int | None, str | None], Place],
    *,
    born_unix_ms: int,
) -> Encoded:
    """Encode records back to back. `place_of` chooses by topic, wanted queue id and key.

    A record has three pieces, head, body and tail, so that a body is copied once, by the join. The
    place and the head of a message without a key are used again for the like messages directly
    behind it; only size and checksum of the body are new. Where all messages are alike but for body
    and properties, no line of Python runs for each of them.
    """
    if len(entries) >= COLUMNS_FROM_COUNT:
        by_columns = _encode_columns(entries, place_of, born_unix_ms)
        if by_columns is not None:
            return by_columns
    pack = _HEAD.pack
    times = _TIME.pack(born_unix_ms)
    encoded = Encoded([], [], [])
    pieces, sizes, places = encoded
    last_topic: EncodedTopic | None = None
    last_queue_id: int | None = None
    last_flag = last_sys_flag = 0
    for topic, wanted, key, body, properties, flag, sys_flag in entries:
        is_like_last = topic is last_topic and wanted == last_queue_id and flag == last_flag
        if key is not None or not is_like_last or sys_flag != last_sys_flag:
            place = place_of(topic.name, wanted, key)
            last_topic, last_queue_id = (topic if key is None else None), wanted
            last_flag, last_sys_flag = flag, sys_flag
            magic, overhead, plain_tail = topic.magic, topic.overhead_size_bytes, topic.plain_tail
            middle = _MIDDLE.pack(place[1], flag, sys_flag, times, _HOST, _HOST)
        n = len(body)
        size_bytes, tail = overhead + n, plain_tail
        if properties:
            size_bytes += len(properties)
            tail = topic.field + _LENGTH.pack(len(properties)) + properties
        pieces += (pack(size_bytes, magic, crc32(body) & 0x7FFFFFFF, middle, n), body, tail)
        sizes.append(size_bytes)
        places.append(place)
    return encoded


def _encode_columns(
    entries: Sequence[Entry],
    place_of: Callable[[str, int | None, str | None], Place],
    born_unix_ms: int,
) -> Encoded | None:
    """Encode records of one topic, queue and kind column by column; None: they differ."""
    columns = zip(*entries, strict=True)
    topics, wanted, keys, bodies, properties, flags, sys_flags = columns
    count = len(entries)
    for column in (topics, wanted, keys, flags, sys_flags):
        if column.count(column[0]) != count:
            return None
    topic: EncodedTopic = topics[0]
    place = place_of(topic.name, wanted[0], keys[0])
    times = _TIME.pack(born_unix_ms)
    middle = _MIDDLE.pack(place[1], flags[0], sys_flags[0], times, _HOST, _HOST)
    body_sizes = list(map(len, bodies))
    sizes = list(map(topic.overhead_size_bytes.__add__, body_sizes))
    tails = [topic.plain_tail] * count
    if any(properties):
        property_sizes = list(map(len, properties))
        sizes = list(map(operator.add, sizes, property_sizes))
        lengths = map(_LENGTH.pack, property_sizes)
        tails = list(map(b"".join, zip(repeat(topic.field), lengths, properties)))
    checksums = map(_CRC_MASK.__and__, map(crc32, bodies))
    heads = map(_HEAD.pack, sizes, repeat(topic.magic), checksums, repeat(middle), body_sizes)
    pieces: list[bytes] = [b""] * (3 * count)
    pieces[0::3], pieces[1::3], pieces[2::3] = heads, bodies, tails
    return Encoded(pieces, sizes, [place] * count)


def encode_single(entry: Entry, queue_id: int, born_unix_ms: int) -> bytes:
    """Encode the record of one entry, to the same bytes as `encode_entries` does."""
    topic, _, _, body, properties, flag, sys_flag = entry
    n = len(body)
    size_bytes, tail = topic.overhead_size_bytes + n, topic.plain_tail
    if properties:
        size_bytes += len(properties)
        tail = topic.field + _LENGTH.pack(len(properties)) + properties
    crc = crc32(body) & 0x7FFFFFFF
    head = _SINGLE.pack(
        size_bytes, topic.magic, crc, queue_id, flag, sys_flag, born_unix_ms, _HOST, _HOST, n
    )
    return head + body + tail


def decode_records(
    records: bytes, *, topic: str = "", broker_group: str = "", newest_move: int | None = None
) -> list[Message]:
    """Decode records that lie back to back, in order; every body CRC is checked.

    `topic` is the expected one: it saves time and is not required. `broker_group`
    has the log, `newest_move` is the last move when they were read. The messages hold no reference
    to `records`. Raises CorruptRecordError naming the byte.
    """
    messages: list[Message] = []
    append, unpack = messages.append, _DECODE.unpack_from
    at, hi = 0, len(records)
    expected = topic.encode()
    expected_tail: bytes | None = None  # An empty one would fit a record of no size.
    if 0 < len(expected) < 128:
        expected_tail = bytes((len(expected),)) + expected + b"\0\0"
    while at + 91 <= hi:
        size_bytes, magic, crc, queue_id, offset, sys_flag, n = unpack(records, at)
        end = at + size_bytes
        body_hi = at + 88 + n
        if (
            magic == 0xDAA320A7
            and not sys_flag & 0x31
            and n >= 0
            and end <= hi
            and records[body_hi:end] == expected_tail
        ):
            body = records[at + 88 : body_hi]
            if crc32(body) & 0x7FFFFFFF != crc:
                raise _corrupt(at, f"body CRC is {crc32(body) & 0x7FFFFFFF:08X}, not {crc:08X}")
            head = records[at : at + 88]
            append(Message(topic, queue_id, offset, body, head, b"", broker_group, newest_move))
        else:
            append(_decode_any(records, at, hi, broker_group, newest_move))
        at = end
    if at != hi:
        raise _corrupt(at, f"{hi - at} bytes are left over")
    return messages


def _decode_any(records: bytes, at: int, hi: int, where: str, newest_move: int | None) -> Message:
    """Decode a record of any kind: properties, other topic, compressed, version 2, IPv6 hosts."""
    size_bytes, magic, crc, queue_id, offset, sys_flag, _ = _DECODE.unpack_from(records, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise _corrupt(at, f"magic is {magic:08X}")
    extra = 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
    end, body_at = at + size_bytes, at + _BODY_AT + extra
    length_size = 2 if magic == MAGIC_V2 else 1
    if size_bytes < RECORD_SIZE_BYTES_MIN or end > hi or body_at + length_size + 2 > end:
        raise _corrupt(at, f"size is {size_bytes}, with {hi - at} bytes there")
    n = _INT32.unpack_from(records, body_at - 4)[0]
    body_hi = body_at + n
    if n < 0 or body_hi + length_size + 2 > end:
        raise _corrupt(at, f"body size is {n}")
    topic_at = body_hi + length_size
    topic_hi = topic_at + int.from_bytes(records[body_hi:topic_at], "big")
    if topic_hi + 2 > end or topic_hi + 2 + _LENGTH.unpack_from(records, topic_hi)[0] != end:
        raise _corrupt(at, "lengths of topic and properties do not add up")
    body = records[body_at:body_hi]
    if crc32(body) & _CRC_MASK != crc:
        raise _corrupt(at, f"body CRC is {crc32(body) & _CRC_MASK:08X}, not {crc:08X}")
    properties = records[topic_hi + 2 : end]
    _check_property_crc(records, at, end, properties)
    try:
        topic = records[topic_at:topic_hi].decode()
    except UnicodeDecodeError:
        raise _corrupt(at, "topic is no text") from None
    kind = CompressedMessage if sys_flag & IS_COMPRESSED else Message
    head = records[at:body_at]
    return kind(topic, queue_id, offset, body, head, properties, where, newest_move)


def _check_property_crc(records: bytes, at: int, end: int, properties: bytes) -> None:
    area = properties[-20:]
    if area.startswith(b"__CRC32#\x01"):
        crc = crc32(records[at : end - 20]) & _CRC_MASK
        # Ten decimal digits, the least significant first (1.7).
        if area[9:] != (b"%010d" % crc)[::-1] + b"\x02":
            raise _corrupt(at, "property CRC does not match")


def message_id(store_host: bytes, log_position: int) -> str:
    """Return the message id: the host field and the log position in upper-case hex (1.10)."""
    return (store_host + _TIME.pack(log_position)).hex().upper()


def key_queue(key: str, queue_count: int) -> int:
    """Return the queue of a key: CRC-32 of its UTF-8 bytes, modulo the number of queues.

    Stable, so that messages of one key keep their order for as long as the number does not change.
    """
    return crc32(key.encode()) % queue_count


def _corrupt(at: int, detail: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"byte {at} of the records served: {detail}; read again, and verify that replica's store"
    )
