"""The message record: encode, decode, properties, tag hash and message id.

Owns the meaning of a RocketMQ V1/V2 record (storage-formats 1.2 to 1.10); must not know where
records are kept. This is the readable path, one object a record, for clients, tools and tests. The
append path (`store.record.stamp`) and the dispatcher read the same bytes without building objects.
"""

import ipaddress
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Final

from store import format as fmt
from store.errors import LimitExceededError, RecordFormatError, TopicNameError
from store.files.checksum import body_crc, crc32
from store.format import LOOPBACK, Host

Buffer = bytes | bytearray | memoryview

_TOPIC_CHARACTERS: Final = frozenset(
    b"%|_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_HASH_CHUNK: Final = 1024
SHORT_TAG_LENGTH_MAX: Final = 128
_POWERS_OF_31: Final = tuple(pow(31, k, 1 << 32) for k in range(_HASH_CHUNK + 1))
_AFTER_HOST: Final = struct.Struct(">iqi")  # Reconsume times, prepared position, body length.


@dataclass(frozen=True, slots=True)
class Message:
    """One decoded record. `size_bytes` is its size on disk, `position` its own physicalOffset."""

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    size_bytes: int
    flag: int
    sys_flag: int
    born_unix_ms: int
    born_host: Host
    store_unix_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_position: int
    body: bytes
    properties: dict[str, str]

    @property
    def message_id(self) -> str:
        """The offset message id that the broker gives out (1.10)."""
        return message_id(self.store_host, self.position)

    @property
    def tags_code(self) -> int:
        """Hash that the consume queue keeps of the tag (1.9)."""
        return tags_code(self.properties.get(fmt.PROPERTY_TAGS, ""))

    @property
    def keys(self) -> list[str]:
        """The keys that the index file holds, unique key first (3.2)."""
        return index_keys(self.properties)


def check_topic(topic: bytes) -> None:
    """Raise TopicNameError unless the name is one that a broker takes (1.5)."""
    name = topic.decode("utf-8", "backslashreplace")
    if not topic:
        raise TopicNameError(name, "it is empty")
    if not _TOPIC_CHARACTERS.issuperset(topic):
        bad = next(c for c in name if not _TOPIC_CHARACTERS.issuperset(c.encode()))
        raise TopicNameError(name, f"character {bad!r} is not allowed")
    long = name.startswith((fmt.RETRY_TOPIC_PREFIX, fmt.DEAD_LETTER_TOPIC_PREFIX))
    limit = fmt.TOPIC_SIZE_CHARACTERS_HARD_MAX if long else fmt.TOPIC_SIZE_CHARACTERS_MAX
    if len(topic) > limit:
        raise TopicNameError(name, f"it has {len(topic)} characters, the limit is {limit}")


def encode_message(
    topic: str,
    queue_id: int,
    body: bytes,
    properties: Mapping[str, str] | None = None,
    *,
    flag: int = 0,
    sys_flag: int = 0,
    born_unix_ms: int = 0,
    born_host: Host = LOOPBACK,
    store_unix_ms: int = 0,
    store_host: Host = LOOPBACK,
    queue_offset: int = 0,
    position: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_position: int = 0,
    property_crc: bool = False,
) -> bytes:
    """Encode one record, V1, or V2 when the topic has more than 127 characters (1.3).

    Queue offset, position, store time and store host are patched when the record is appended, so a
    producer leaves them alone; only the family of `store_host` matters, which must be the store's.
    With `property_crc` room for the property CRC is reserved; the append fills it in.
    Raises TopicNameError or LimitExceededError.
    """
    topic_bytes = topic.encode()
    check_topic(topic_bytes)
    properties_bytes = encode_properties(properties or {})
    if property_crc:
        properties_bytes += fmt.PROPERTY_CRC_PLACEHOLDER
    if len(properties_bytes) > fmt.PROPERTIES_SIZE_BYTES_MAX:
        raise LimitExceededError("properties", len(properties_bytes), fmt.PROPERTIES_SIZE_BYTES_MAX)
    born, stored = encode_host(born_host), encode_host(store_host)
    sys_flag &= ~fmt.SYS_FLAG_ANY_V6
    sys_flag |= fmt.SYS_FLAG_BORN_HOST_V6 if len(born) == fmt.HOST_V6_SIZE_BYTES else 0
    sys_flag |= fmt.SYS_FLAG_STORE_HOST_V6 if len(stored) == fmt.HOST_V6_SIZE_BYTES else 0
    version_2 = len(topic) > fmt.TOPIC_SIZE_CHARACTERS_MAX
    topic_field = struct.pack(">H" if version_2 else ">B", len(topic_bytes)) + topic_bytes
    tail = topic_field + struct.pack(">H", len(properties_bytes)) + properties_bytes
    head_size_bytes = fmt.BODY_AT - 2 * fmt.HOST_V4_SIZE_BYTES + len(born) + len(stored)
    size_bytes = head_size_bytes + len(body) + len(tail)
    return b"".join(
        (
            struct.pack(
                ">iIiiiqqiq",
                size_bytes,
                fmt.MAGIC_V2 if version_2 else fmt.MAGIC_V1,
                body_crc(body),
                queue_id,
                flag,
                queue_offset,
                position,
                sys_flag,
                born_unix_ms,
            ),
            born,
            fmt.TIMESTAMP.pack(store_unix_ms),
            stored,
            _AFTER_HOST.pack(reconsume_times, prepared_transaction_position, len(body)),
            body,
            tail,
        )
    )


def decode_message(data: Buffer, at: int = 0, *, check_crc: bool = True) -> Message:
    """Decode the record that starts at byte `at`. Raises RecordFormatError naming byte and field.

    Source: RocketMQ CommitLog#checkMessageAndReturnSize (1.13), and the property CRC if present.
    """
    view = memoryview(data)
    layout = record_layout(view, at)
    body = bytes(view[layout.body_at : layout.body_hi])
    crc = fmt.INT32.unpack_from(view, at + fmt.BODY_CRC_AT)[0]
    if check_crc and body_crc(body) != crc:
        raise RecordFormatError(
            at + fmt.BODY_CRC_AT, "body CRC", f"{body_crc(body):08X}", f"{crc:08X}"
        )
    properties_bytes = bytes(view[layout.properties_at : at + layout.size_bytes])
    if check_crc:
        check_property_crc(view, at, layout.size_bytes, properties_bytes)
    queue_id, flag, queue_offset, position, _, born_ms = struct.unpack_from(
        ">iiqqiq", view, at + fmt.QUEUE_ID_AT
    )
    try:
        topic = bytes(view[layout.topic_at : layout.topic_hi]).decode()
    except UnicodeDecodeError as error:
        raise RecordFormatError(layout.topic_at, "topic", "UTF-8", repr(error.object)) from error
    store_at = layout.store_timestamp_at
    reconsume_times, prepared, _ = _AFTER_HOST.unpack_from(view, layout.body_at - _AFTER_HOST.size)
    store_host_hi = layout.body_at - _AFTER_HOST.size
    return Message(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        position=position,
        size_bytes=layout.size_bytes,
        flag=flag,
        sys_flag=layout.sys_flag,
        born_unix_ms=born_ms,
        born_host=decode_host(bytes(view[at + fmt.BORN_HOST_AT : store_at])),
        store_unix_ms=fmt.TIMESTAMP.unpack_from(view, store_at)[0],
        store_host=decode_host(bytes(view[store_at + 8 : store_host_hi])),
        reconsume_times=reconsume_times,
        prepared_transaction_position=prepared,
        body=body,
        properties=decode_properties(properties_bytes),
    )


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Where the variable parts of one record lie, as bytes of the buffer it was found in."""

    size_bytes: int
    sys_flag: int
    store_timestamp_at: int
    body_at: int
    body_hi: int
    topic_at: int
    topic_hi: int
    properties_at: int


def record_layout(view: memoryview, at: int) -> RecordLayout:
    """Find the parts of the record at byte `at`; every length is checked against the others.

    Raises RecordFormatError with the byte, the field, what was expected and what was found.
    """
    room = len(view) - at
    if room < fmt.RECORD_SIZE_BYTES_MIN:
        raise RecordFormatError(
            at, "record", f"{fmt.RECORD_SIZE_BYTES_MIN} bytes or more", f"{room} bytes"
        )
    size_bytes, magic, _, _, sys_flag, _ = fmt.RECORD_HEAD.unpack_from(view, at)
    if magic not in (fmt.MAGIC_V1, fmt.MAGIC_V2):
        expected = f"{fmt.MAGIC_V1:08X} or {fmt.MAGIC_V2:08X}"
        raise RecordFormatError(at + 4, "magic", expected, f"{magic:08X}")
    if not fmt.RECORD_SIZE_BYTES_MIN <= size_bytes <= room:
        raise RecordFormatError(
            at, "total size", f"{fmt.RECORD_SIZE_BYTES_MIN} to {room}", str(size_bytes)
        )
    born_extra = fmt.HOST_V6_EXTRA_BYTES if sys_flag & fmt.SYS_FLAG_BORN_HOST_V6 else 0
    store_extra = fmt.HOST_V6_EXTRA_BYTES if sys_flag & fmt.SYS_FLAG_STORE_HOST_V6 else 0
    body_at = at + fmt.BODY_AT + born_extra + store_extra
    end = at + size_bytes
    topic_length_size = 2 if magic == fmt.MAGIC_V2 else 1
    least_tail = topic_length_size + 2
    if body_at + least_tail > end:
        raise RecordFormatError(at, "total size", f"{body_at + least_tail - at}+", str(size_bytes))
    body_size_bytes = fmt.INT32.unpack_from(view, body_at - 4)[0]
    body_hi = body_at + body_size_bytes
    if body_size_bytes < 0 or body_hi + least_tail > end:
        most = end - least_tail - body_at
        raise RecordFormatError(body_at - 4, "body length", f"0 to {most}", str(body_size_bytes))
    topic_at = body_hi + topic_length_size
    topic_hi = topic_at + int.from_bytes(view[body_hi:topic_at], "big")
    if topic_hi + 2 > end:
        raise RecordFormatError(
            body_hi, "topic length", f"at most {end - 2 - topic_at}", str(topic_hi - topic_at)
        )
    properties_size_bytes = fmt.INT16.unpack_from(view, topic_hi)[0]
    if topic_hi + 2 + properties_size_bytes != end:
        raise RecordFormatError(
            topic_hi, "properties length", str(end - topic_hi - 2), str(properties_size_bytes)
        )
    return RecordLayout(
        size_bytes=size_bytes,
        sys_flag=sys_flag,
        store_timestamp_at=at + fmt.STORE_TIMESTAMP_AT + born_extra,
        body_at=body_at,
        body_hi=body_hi,
        topic_at=topic_at,
        topic_hi=topic_hi,
        properties_at=topic_hi + 2,
    )


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode `name 0x01 value 0x02` for each property, in the order of the mapping (1.8).

    Raises RecordFormatError for a name or value that could not be read back.
    """
    for name, value in properties.items():
        if not name or fmt.NAME_VALUE_SEPARATOR in name or fmt.PROPERTY_SEPARATOR in name:
            raise RecordFormatError(0, "property name", "text without 0x01 and 0x02", repr(name))
        if not value or fmt.PROPERTY_SEPARATOR in value:
            raise RecordFormatError(0, "property value", "text without 0x02", repr(value))
        if "\0" in name or "\0" in value:
            raise RecordFormatError(0, f"property {name!r}", "text without NUL", repr(value))
        if name == fmt.PROPERTY_CRC:
            raise RecordFormatError(0, "property name", "a name that is not reserved", name)
    text = "".join(f"{n}\x01{v}\x02" for n, v in properties.items())
    return text.encode()


def decode_properties(data: bytes) -> dict[str, str]:
    """Decode a property block; the last 0x02 may be missing (1.8)."""
    properties: dict[str, str] = {}
    for segment in data.decode("utf-8", "surrogateescape").split(fmt.PROPERTY_SEPARATOR):
        name, separator, value = segment.partition(fmt.NAME_VALUE_SEPARATOR)
        if separator and name and value:
            properties[name] = value
    return properties


def valid_text(text: str) -> str:
    """Return a decoded name or value as UTF-8 can hold it: bytes that were none are replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def index_keys(properties: Mapping[str, str]) -> list[str]:
    """Return the keys under which a message can be found: UNIQ_KEY, then each of KEYS (3.2)."""
    unique, keys = properties.get(fmt.PROPERTY_UNIQUE_KEY), keys_in(properties)
    return [unique, *keys] if unique else keys


def keys_in(properties: Mapping[str, str]) -> list[str]:
    """Return each of KEYS. One blank separates them, as in RocketMQ; no other white space does."""
    return [key for key in properties.get(fmt.PROPERTY_KEYS, "").split(" ") if key]


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` as a signed 32-bit value, over UTF-16 code units (1.9)."""
    units: bytes | tuple[int, ...]
    if text.isascii():
        units = text.encode("ascii")
    else:
        wide = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(wide) // 2}H", wide)
    value = 0
    for lo in range(0, len(units), _HASH_CHUNK):
        part = units[lo : lo + _HASH_CHUNK]
        # One C-level pass a chunk: sum of unit * 31^k, the last unit has k = 0.
        value = value * _POWERS_OF_31[len(part)] + sum(map(mul, part[::-1], _POWERS_OF_31))
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def tags_code(tag: str) -> int:
    """Return the hash that the consume queue keeps of a tag: Java's, 0 without a tag (1.9)."""
    return short_tags_code(tag) if len(tag) <= SHORT_TAG_LENGTH_MAX else java_hash(tag)


@lru_cache(maxsize=4096)  # Tags are few and repeat; a hash costs about 30 ns a character.
def short_tags_code(tag: str) -> int:
    """Return `tags_code` of a tag of at most SHORT_TAG_LENGTH_MAX characters: it is remembered."""
    return java_hash(tag)


def property_crc_digits(crc: int) -> bytes:
    """Return ten decimal digits, the least significant first (1.7)."""
    return (b"%010d" % (crc & fmt.CRC_MASK))[::-1]


def check_property_crc(view: memoryview, at: int, size_bytes: int, properties: bytes) -> None:
    """Check the record's property CRC if it carries one. Raises RecordFormatError."""
    area = properties[-fmt.PROPERTY_CRC_SIZE_BYTES :]
    if not area.startswith(fmt.PROPERTY_CRC_PREFIX):
        return
    covered_hi = at + size_bytes - fmt.PROPERTY_CRC_SIZE_BYTES
    expected = property_crc_digits(crc32(view[at:covered_hi])) + b"\x02"
    stored = area[len(fmt.PROPERTY_CRC_PREFIX) :]
    if stored != expected:
        raise RecordFormatError(covered_hi, "property CRC", repr(expected), repr(stored))


@lru_cache(maxsize=1_024)  # A gateway has few of them, and each of its messages has two.
def encode_host(host: Host) -> bytes:
    """Encode an address and port as stored: 4 or 16 address bytes, then the port as i4."""
    return ipaddress.ip_address(host[0]).packed + fmt.INT32.pack(host[1])


def decode_host(data: bytes) -> Host:
    """Decode an 8 or 20 byte host field."""
    return str(ipaddress.ip_address(data[:-4])), fmt.INT32.unpack_from(data, len(data) - 4)[0]


def message_id(store_host: Host, position: int) -> str:
    """Return the offset message id: host and position in upper-case hex (1.10)."""
    return (encode_host(store_host) + fmt.TIMESTAMP.pack(position)).hex().upper()


def parse_message_id(text: str) -> tuple[Host, int]:
    """Return (store host, position) of an offset message id. Raises RecordFormatError."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        raise RecordFormatError(0, "message id", "32 or 56 hex digits", repr(text))
    return decode_host(data[:-8]), fmt.TIMESTAMP.unpack_from(data, len(data) - 8)[0]


def positive_hash(value: int) -> int:
    """Return Java's abs in 32 bits, with 0 for the one value that stays negative."""
    return abs(value) & 0x7FFFFFFF
