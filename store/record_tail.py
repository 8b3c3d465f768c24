"""Reads topic, tags and keys from the bytes behind a record's body, for the dispatcher.

Owns the cache of tails that were read before (records of one producer mostly differ in body and
head only) and the fast key hash; must not know queues or files. Whatever is not plain ASCII, or
odd in any way, takes the readable path of `store.message`, which defines the meaning.
Sources: storage-formats 1.2, 1.8, 1.9, 3.2.
"""

from operator import mul
from typing import Final

from store import format as fmt
from store.errors import RecordFormatError, TopicNameError
from store.index_file import positive_hash
from store.message import (
    check_topic,
    decode_properties,
    index_keys,
    java_hash,
    record_layout,
    tags_code,
)

Pending = dict[int, list[int]]  # By queue id: offset, position, size, tags code, and so on.
Tail = tuple[bytes, Pending, int, tuple[int, ...]]  # Topic, its queues, tags code, key hashes.

_KNOWN_MAX: Final = 32_768  # Tails, and topics, that are remembered; about 10 MB.
_KNOWN_SIZE_BYTES_MAX: Final = 512  # Longer tails are read again each time.
_KEY_SIZE_BYTES_MAX: Final = 255  # Longer keys take the readable path.
_POWERS_OF_31: Final = tuple(pow(31, k, 1 << 32) for k in range(_KEY_SIZE_BYTES_MAX + 1))


class TailReader:
    """Turns tails into `Tail`s; one topic's tails share one dict of queues."""

    def __init__(self) -> None:
        self.known: dict[bytes, Tail] = {}
        """Tails without keys that were read before, V1 records only."""
        self._topics: dict[bytes, tuple[Pending, int]] = {}  # And the hash of "topic#".

    def read(self, tail: bytes) -> Tail | None:
        """Read the bytes from the end of the body to the end of a V1 record; None if malformed."""
        if not tail:
            return None
        topic_hi = 1 + tail[0]
        if int.from_bytes(tail[topic_hi : topic_hi + 2], "big") != len(tail) - topic_hi - 2:
            return None
        found = self._read(tail[1:topic_hi], tail[topic_hi + 2 :])
        if found is not None and not found[3] and len(tail) <= _KNOWN_SIZE_BYTES_MAX:
            if len(self.known) >= _KNOWN_MAX:
                self.known.clear()
            self.known[tail] = found
        return found

    def read_record(self, data: bytes, at: int) -> Tail | None:
        """Read the tail of any record at byte `at`; None if the record is malformed."""
        try:
            with memoryview(data) as view:
                layout = record_layout(view, at)
        except RecordFormatError:
            return None
        properties = data[layout.properties_at : at + layout.size_bytes]
        return self._read(data[layout.topic_at : layout.topic_hi], properties)

    def _read(self, topic: bytes, properties: bytes) -> Tail | None:
        known_topic = self._topics.get(topic)
        if known_topic is None:
            try:
                check_topic(topic)  # Its queues' directories get this name.
            except TopicNameError:
                return None
            if len(self._topics) >= _KNOWN_MAX:
                self._topics.clear()
            known_topic = ({}, java_hash(f"{topic.decode('ascii')}#") & 0xFFFFFFFF)
            self._topics[topic] = known_topic
        pending, prefix_hash = known_topic
        block = b"\x02" + properties
        tag = _last_value(block, b"\x02TAGS\x01")
        unique = _last_value(block, b"\x02UNIQ_KEY\x01")
        keys = _last_value(block, b"\x02KEYS\x01")
        if unique is None and keys is None and tag is None:
            return topic, pending, 0, ()
        if not properties.isascii() or tag == b"" or unique == b"" or keys == b"":
            return self._read_slowly(topic, pending, properties)
        code = tags_code(tag.decode("ascii")) if tag else 0
        if unique is None and keys is None:
            return topic, pending, code, ()
        parts = [] if unique is None else [unique]
        if keys is not None:
            parts += [key for key in keys.split(b" ") if key] if b" " in keys else [keys]
        if max(map(len, parts), default=0) > _KEY_SIZE_BYTES_MAX:
            return self._read_slowly(topic, pending, properties)
        return topic, pending, code, tuple([_key_hash(prefix_hash, part) for part in parts])

    def _read_slowly(self, topic: bytes, pending: Pending, properties: bytes) -> Tail:
        """The readable path: any characters, any lengths."""
        decoded = decode_properties(properties)
        prefix = topic.decode("ascii") + "#"
        hashes = [positive_hash(java_hash(prefix + key)) for key in index_keys(decoded)]
        return topic, pending, tags_code(decoded.get(fmt.PROPERTY_TAGS, "")), tuple(hashes)


def _last_value(block: bytes, name: bytes) -> bytes | None:
    """Return the value of the last property of a name, or None. Both start with 0x02."""
    at = block.rfind(name)
    if at < 0:
        return None
    at += len(name)
    hi = block.find(b"\x02", at)
    return block[at:hi] if hi >= 0 else block[at:]


def _key_hash(prefix_hash: int, key: bytes) -> int:
    """`key_hash` of an ASCII key, going on from the hash of "topic#"."""
    value: int = prefix_hash * _POWERS_OF_31[len(key)] + sum(map(mul, key[::-1], _POWERS_OF_31))
    value &= 0xFFFFFFFF
    return value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF
