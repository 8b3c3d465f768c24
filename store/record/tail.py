"""Reads topic, tags and keys from the bytes behind a record's body, for the dispatcher.

Owns the cache of tails that were read before (records of one producer mostly differ in body and
head only) and the fast key hash; must not know queues or files. A tail that is not plain ASCII, or
odd in any way, takes the readable path of `store.record.message`, which defines the meaning.
Sources: storage-formats 1.2, 1.8, 1.9, 3.2.
"""

from operator import itemgetter, mul
from typing import Final

from store import format as fmt
from store.errors import RecordFormatError, TopicNameError
from store.record.columns import NO_KEY
from store.record.message import (
    SHORT_TAG_LENGTH_MAX,
    check_topic,
    decode_properties,
    index_keys,
    java_hash,
    positive_hash,
    record_layout,
    short_tags_code,
    tags_code,
)

Pending = dict[int, list[int]]  # By queue id: offset, position, size, tags code, and so on.
Tail = tuple[bytes, Pending, int, tuple[int, ...]]  # Topic, its queues, tags code, key hashes.
# The values that tails with the same bytes except for their key share: the key's size, then as in
# `Tail`, but the hash of "topic#" instead of the keys'.
_Shape = tuple[int, bytes, Pending, int, int]

_HOLDING_TOPICS: Final = frozenset({fmt.SCHEDULE_TOPIC.encode(), fmt.TIMER_TOPIC.encode()})
"""Topics whose tails all differ, so that none is remembered."""
_DUE_NAME: Final = b"\x02" + fmt.PROPERTY_DUE_MS.encode() + b"\x01"
_TIME_DIGITS_MAX: Final = 15
_KNOWN_MAX: Final = 32_768  # Tails, shapes and topics that are remembered; about 10 MB each.
_PARTS_MAX: Final = 65_536  # Hashes of parts of keys that are remembered.
_END_SIZE_BYTES: Final = 4  # Keys mostly count up: what is before the last characters repeats.
_KNOWN_SIZE_BYTES_MAX: Final = 512  # Longer tails are read again each time.
_KEY_SIZE_BYTES_MAX: Final = 255  # Longer keys take the readable path.
_head_of: Final = itemgetter(slice(None, -_END_SIZE_BYTES))
_end_of: Final = itemgetter(slice(-_END_SIZE_BYTES, None))
_POWERS_OF_31: Final = tuple(pow(31, k, 1 << 32) for k in range(_KEY_SIZE_BYTES_MAX + 1))
assert _POWERS_OF_31[_END_SIZE_BYTES] == 923_521


class TailReader:
    """Turns tails into `Tail`s; one topic's tails share one dict of queues."""

    def __init__(self) -> None:
        self.known: dict[bytes, Tail] = {}
        """Tails without keys that were read before, V1 records only."""
        self._shapes: dict[bytes, _Shape] = {}
        self._topics: dict[bytes, tuple[Pending, int]] = {}  # And the hash of "topic#".
        self._heads: dict[bytes, int] = {}
        self._ends: dict[bytes, int] = {}

    def key_span(self, tail: bytes) -> range:
        """Return where the only key of a tail lies that was read before; NO_KEY if that is not
        known. Another key there, of visible characters, makes another good tail."""
        lo = tail.find(b"UNIQ_KEY\x01")
        lo = lo + 9 if lo >= 0 else tail.find(b"KEYS\x01") + 5
        hi = tail.find(b"\x02", lo)
        shape = self._shapes.get(tail[:lo] + tail[hi:]) if hi > lo else None
        return range(lo, hi) if shape is not None and shape[0] == hi - lo else NO_KEY

    def key_hashes(self, tail: bytes, keys: list[bytes]) -> list[int]:
        """Return the hash of each key in the place of the one of a tail with a `key_span`."""
        span = self.key_span(tail)
        _, _, _, _, prefix_hash = self._shapes[tail[: span.start] + tail[span.stop :]]
        first = keys[0]
        if len(first) <= _END_SIZE_BYTES or len(set(map(_head_of, keys))) > 1:
            return [self._key_hash(prefix_hash, key) for key in keys]
        # Keys that a client made one behind the other differ in their ends only.
        self._key_hash(prefix_hash, first)
        head_hash = self._heads[first[:-_END_SIZE_BYTES]]
        base = prefix_hash * _POWERS_OF_31[len(first)] + head_hash * 923_521
        ends, hashes = self._ends, list[int]()
        for end in map(_end_of, keys):
            end_hash = ends.get(end)
            if end_hash is None:
                end_hash = _remember(ends, end)
            value = (base + end_hash) & 0xFFFFFFFF
            hashes += (value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF,)
        return hashes

    def read(self, tail: bytes) -> Tail | None:
        """Read the bytes from the end of the body to the end of a V1 record; None if malformed."""
        # A single key, and the rest known: cut the key out and look the rest up.
        unique_at = tail.find(b"UNIQ_KEY\x01")
        keys_at = tail.find(b"KEYS\x01")
        if (unique_at < 0) != (keys_at < 0):
            lo = unique_at + 9 if unique_at >= 0 else keys_at + 5
            hi = tail.find(b"\x02", lo)
            if hi > lo:
                key = tail[lo:hi]
                rest = tail[:lo] + tail[hi:]
                shape = self._shapes.get(rest)
                if shape is None:
                    return self._read_shape(tail, key, rest)
                size_bytes, topic, pending, code, prefix_hash = shape
                if size_bytes == hi - lo and key.isascii() and (keys_at < 0 or b" " not in key):
                    return topic, pending, code, (self._key_hash(prefix_hash, key),)
        return self._read_whole(tail)

    def _read_shape(self, tail: bytes, key: bytes, rest: bytes) -> Tail | None:
        """Read a tail whose bytes without `key` are new, and remember those."""
        shape = self._read_whole(tail)
        if shape is None or len(rest) > _KNOWN_SIZE_BYTES_MAX or shape[0] in _HOLDING_TOPICS:
            return shape
        topic, pending, code, hashes = shape
        prefix_hash = self._topics[topic][1]
        # Exactly one name of a key, at the start of a property, and the key is one word.
        name = b"UNIQ_KEY\x01" if b"UNIQ_KEY\x01" in rest else b"KEYS\x01"
        name_at = rest.find(name)
        is_property = rest[name_at - 1] == 2 or name_at == 3 + len(topic)
        is_only = rest.count(name) == 1 and name not in key and len(key) <= _KEY_SIZE_BYTES_MAX
        if is_property and is_only and hashes == (self._key_hash(prefix_hash, key),):
            if len(self._shapes) >= _KNOWN_MAX:
                self._shapes.clear()
            self._shapes[rest] = (len(key), topic, pending, code, prefix_hash)
        return shape

    def _read_whole(self, tail: bytes) -> Tail | None:
        if not tail:
            return None
        topic_hi = 1 + tail[0]
        if int.from_bytes(tail[topic_hi : topic_hi + 2], "big") != len(tail) - topic_hi - 2:
            return None
        shape = self._read(tail[1:topic_hi], tail[topic_hi + 2 :])
        if shape is None or shape[3] or shape[0] in _HOLDING_TOPICS:
            return shape
        if len(tail) <= _KNOWN_SIZE_BYTES_MAX:
            if len(self.known) >= _KNOWN_MAX:
                self.known.clear()
            self.known[tail] = shape
        return shape

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
                # Together: two dicts of queues for one topic would tear its units apart.
                self._topics.clear()
                self._shapes.clear()
                self.known.clear()
            known_topic = ({}, java_hash(f"{topic.decode('ascii')}#") & 0xFFFFFFFF)
            self._topics[topic] = known_topic
        pending, prefix_hash = known_topic
        if topic in _HOLDING_TOPICS:
            return self._read_held(topic, pending, properties)
        block = b"\x02" + properties
        tag = _last_value(block, b"\x02TAGS\x01")
        unique = _last_value(block, b"\x02UNIQ_KEY\x01")
        keys = _last_value(block, b"\x02KEYS\x01")
        if unique is None and keys is None and tag is None:
            return topic, pending, 0, ()
        if not properties.isascii() or tag == b"" or unique == b"" or keys == b"":
            return self._read_slowly(topic, pending, properties)
        code = 0
        if tag:
            is_short = len(tag) <= SHORT_TAG_LENGTH_MAX
            code = (short_tags_code if is_short else tags_code)(tag.decode("ascii"))
        if unique is None and keys is None:
            return topic, pending, code, ()
        parts = [] if unique is None else [unique]
        if keys is not None:
            parts += [key for key in keys.split(b" ") if key] if b" " in keys else [keys]
        if max(map(len, parts), default=0) > _KEY_SIZE_BYTES_MAX:
            return self._read_slowly(topic, pending, properties)
        return topic, pending, code, tuple([self._key_hash(prefix_hash, part) for part in parts])

    def _read_slowly(self, topic: bytes, pending: Pending, properties: bytes) -> Tail:
        """Read properties by the readable path: any characters, any lengths."""
        decoded = decode_properties(properties)
        prefix = topic.decode("ascii") + "#"
        hashes = [positive_hash(java_hash(prefix + key)) for key in index_keys(decoded)]
        return topic, pending, tags_code(decoded.get(fmt.PROPERTY_TAGS, "")), tuple(hashes)

    def _read_held(self, topic: bytes, pending: Pending, properties: bytes) -> Tail:
        """Read the tail of a delayed message that is held: its queue keeps the time, not a tag.

        A record without a time, which is none of ours, counts as due.
        """
        _, _, _, hashes = self._read_slowly(topic, pending, properties)
        due_unix_ms = _last_value(b"\x02" + properties, _DUE_NAME) or b""
        is_time = due_unix_ms.isdigit() and len(due_unix_ms) <= _TIME_DIGITS_MAX
        return topic, pending, int(due_unix_ms) if is_time else 0, hashes

    def _key_hash(self, prefix_hash: int, key: bytes) -> int:
        """Return `index_file.key_hash` of an ASCII key, going on from the hash of "topic#"."""
        size_bytes = len(key)
        head, end = key[:-_END_SIZE_BYTES], key[-_END_SIZE_BYTES:]
        head_hash = self._heads.get(head)
        if head_hash is None:
            head_hash = _remember(self._heads, head)
        end_hash = self._ends.get(end)
        if end_hash is None:
            end_hash = _remember(self._ends, end)
        value: int = prefix_hash * _POWERS_OF_31[size_bytes] + head_hash * 923_521 + end_hash
        value &= 0xFFFFFFFF
        return value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF


def _remember(hashes: dict[bytes, int], part: bytes) -> int:
    """Add the hash of a part of a key to those that are remembered, and return it."""
    value: int = sum(map(mul, part[::-1], _POWERS_OF_31)) & 0xFFFFFFFF
    if len(hashes) >= _PARTS_MAX:
        hashes.clear()
    hashes[part] = value
    return value


def _last_value(block: bytes, name: bytes) -> bytes | None:
    """Return the value of the last property of a name, or None. Both start with 0x02."""
    at = block.rfind(name)
    if at < 0:
        return None
    at += len(name)
    hi = block.find(b"\x02", at)
    return block[at:hi] if hi >= 0 else block[at:]
