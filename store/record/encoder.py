"""Encodes many records that differ in flag, body and properties only, such as those of one batch.

Owns the fast way to the bytes of `store.record.message.encode_message`. What all records share is
encoded once. A record is one `pack` and four pieces of bytes, without a dict for its properties; of
records that differ in body and key only, all are joined at once. V2 records and IPv6 hosts take the
readable path. Source: storage-formats 1.2.
"""

import struct
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final, NamedTuple

from store import format as fmt
from store.errors import LimitExceededError
from store.files.checksum import crc32
from store.format import Host
from store.record.columns import body_crcs
from store.record.message import (
    check_topic,
    decode_properties,
    encode_host,
    encode_message,
)

_HEAD: Final = struct.Struct(">iIIiiqqiq8sq8siqi")
"""All fields before the body: size, magic, CRC, queue id, flag, queue offset, position, sys flag,
born time and host, store time and host, reconsume times, prepared position, size of the body."""
assert _HEAD.size == fmt.BODY_AT
_CRC: Final = struct.Struct("4s")
_pack: Final = _HEAD.pack


class OwnRecords(bytes):
    """Records that this process has encoded: the CRCs of their bodies are right."""


class CommonFields(NamedTuple):
    """Fields that all records of an encoder share."""

    topic: str
    queue_id: int
    sys_flag: int
    born_unix_ms: int
    born_host: Host
    store_host: Host
    reconsume_times: int


class RecordEncoder:
    """An encoder of records that share fields."""

    def __init__(self, common: CommonFields) -> None:
        """Raises TopicNameError."""
        topic = common.topic.encode()
        check_topic(topic)
        born, stored = encode_host(common.born_host), encode_host(common.store_host)
        self._common = common
        self._queue_id, self._born_unix_ms = common.queue_id, common.born_unix_ms
        self._born, self._stored = born, stored
        self._reconsume_times = common.reconsume_times
        self._sys_flag = common.sys_flag & ~fmt.SYS_FLAG_ANY_V6
        self._topic = bytes((len(topic) & 0xFF,)) + topic
        self._is_plain = (
            len(topic) <= fmt.TOPIC_SIZE_CHARACTERS_MAX
            and len(born) == len(stored) == fmt.HOST_V4_SIZE_BYTES
        )
        self._pieces: list[bytes] = []
        self.sizes: list[int] = []
        """Size of each record in bytes."""
        self._fixed_size_bytes = fmt.BODY_AT + len(self._topic) + fmt.INT16.size

    def add(self, flag: int, body: bytes, properties: bytes) -> None:
        """Encode one record; `properties` are as `encode_properties` returns them.

        Raises LimitExceededError."""
        if not self._is_plain:
            record = self._encode(flag, body, properties)
            self.sizes += (len(record),)
            self._pieces += (record,)
            return
        head = self._head(flag, crc32(body) & fmt.CRC_MASK, len(body), len(properties))
        size = len(properties).to_bytes(2)
        self._pieces += (head, body, self._topic, size, properties)

    def _head(
        self, flag: int, crc: int, body_size_bytes: int, properties_size_bytes: int, count: int = 1
    ) -> bytes:
        """Return the bytes before the body, and note the size of `count` records."""
        if properties_size_bytes > fmt.PROPERTIES_SIZE_BYTES_MAX:
            limit = fmt.PROPERTIES_SIZE_BYTES_MAX
            raise LimitExceededError("properties", properties_size_bytes, limit)
        size_bytes = self._fixed_size_bytes + body_size_bytes + properties_size_bytes
        self.sizes += (size_bytes,) * count
        return _pack(
            size_bytes,
            fmt.MAGIC_V1,
            crc,
            self._queue_id,
            flag,
            0,
            0,
            self._sys_flag,
            self._born_unix_ms,
            self._born,
            0,
            self._stored,
            self._reconsume_times,
            0,
            body_size_bytes,
        )

    def add_run(
        self,
        flag: int,
        bodies: Sequence[bytes],
        before: bytes,
        keys: Sequence[bytes],
        behind: bytes,
    ) -> None:
        """Encode records whose bodies are of one size, as are the keys: the parts of their
        properties that differ, between `before` and `behind`. Errors as `add`."""
        if not self._is_plain:
            for body, key in zip(bodies, keys, strict=True):
                self.add(flag, body, b"".join((before, key, behind)))
            return
        properties_size_bytes = len(before) + len(keys[0]) + len(behind)
        head = self._head(flag, 0, len(bodies[0]), properties_size_bytes, len(bodies))
        crc_hi = fmt.BODY_CRC_AT + 4
        rows = zip(
            repeat(head[: fmt.BODY_CRC_AT]),
            chain.from_iterable(_CRC.iter_unpack(body_crcs(bodies))),
            repeat(head[crc_hi:]),
            bodies,
            repeat(b"".join((self._topic, properties_size_bytes.to_bytes(2), before))),
            keys,
            repeat(behind),
            strict=False,
        )
        self._pieces += chain.from_iterable(rows)

    def records(self) -> OwnRecords:
        """Return all records, back to back."""
        return OwnRecords(b"".join(self._pieces))

    def _encode(self, flag: int, body: bytes, properties: bytes) -> bytes:
        common = self._common
        return encode_message(
            common.topic,
            common.queue_id,
            body,
            decode_properties(properties),
            flag=flag,
            sys_flag=common.sys_flag,
            born_unix_ms=common.born_unix_ms,
            born_host=common.born_host,
            store_host=common.store_host,
            reconsume_times=common.reconsume_times,
        )
