"""One encoded record made into another: other topic, queue and properties, the same message.

Owns the splice of bytes; must not know why a record moves. The message itself (body, user flag,
born time and host, keys, tags) is copied and never decoded: it stays the same byte for byte.
"""

import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from store import format as fmt
from store.errors import LimitExceededError
from store.record.message import RecordLayout, record_layout

Property = tuple[bytes, bytes]
"""Name and value."""

_NAME_END: Final = fmt.NAME_VALUE_SEPARATOR.encode()
_END: Final = fmt.PROPERTY_SEPARATOR.encode()
_LENGTH: Final = struct.Struct(">H")
_SIZE_AND_MAGIC: Final = struct.Struct(">iI")
_PREPARED_FROM_BODY: Final = 12
"""Prepared position (8) and body length (4) end where the body begins."""


def layouts(records: bytes) -> Iterator[RecordLayout]:
    """Walk records that lie back to back. Raises RecordFormatError."""
    view, at = memoryview(records), 0
    while at < len(records):
        layout = record_layout(view, at)
        yield layout
        at += layout.size_bytes


def properties_of(record: bytes, layout: RecordLayout) -> bytes:
    """Return the encoded properties of a record in a buffer."""
    return record[layout.properties_at : start_of(layout) + layout.size_bytes]


def start_of(layout: RecordLayout) -> int:
    """Return the byte of the buffer at which the record begins."""
    v6 = fmt.HOST_V6_EXTRA_BYTES if layout.sys_flag & fmt.SYS_FLAG_BORN_HOST_V6 else 0
    return layout.store_timestamp_at - fmt.STORE_TIMESTAMP_AT - v6


def values(properties: bytes, names: Collection[bytes]) -> dict[bytes, bytes]:
    """Return those of the named properties that are among the encoded ones."""
    by_name = {}
    for segment in properties.split(_END):
        name, separator, value = segment.partition(_NAME_END)
        if separator and name in names:
            by_name[name] = value
    return by_name


def changed(properties: bytes, without: Collection[bytes], added: Iterable[Property]) -> bytes:
    """Return encoded properties without the named ones, and with others behind the rest.

    The property CRC goes too: it would be that of other bytes.
    """
    crc = fmt.PROPERTY_CRC.encode()
    kept = [
        segment
        for segment in properties.split(_END)
        if segment and (name := segment.partition(_NAME_END)[0]) not in without and name != crc
    ]
    kept += [name + _NAME_END + value for name, value in added]
    return b"".join(segment + _END for segment in kept)


def moved(
    records: bytes,
    layout: RecordLayout,
    *,
    topic: bytes,
    queue_id: int,
    properties: bytes,
    transaction: int | None = None,
    prepared_position: int | None = None,
) -> bytes:
    """Return the record at `layout` as one of another queue; the append fills in the rest.

    The two bits of `transaction` and `prepared_position` stay as they are unless given. Raises
    LimitExceededError when the properties have become too long.
    """
    if len(properties) > fmt.PROPERTIES_SIZE_BYTES_MAX:
        raise LimitExceededError("properties", len(properties), fmt.PROPERTIES_SIZE_BYTES_MAX)
    is_v2 = len(topic) > fmt.TOPIC_SIZE_CHARACTERS_MAX
    length = _LENGTH.pack(len(topic)) if is_v2 else bytes((len(topic),))
    tail = b"".join((length, topic, _LENGTH.pack(len(properties)), properties))
    at = start_of(layout)
    head = bytearray(records[at : layout.body_at])
    size_bytes = layout.body_hi - at + len(tail)
    _SIZE_AND_MAGIC.pack_into(head, 0, size_bytes, fmt.MAGIC_V2 if is_v2 else fmt.MAGIC_V1)
    fmt.INT32.pack_into(head, fmt.QUEUE_ID_AT, queue_id)
    if transaction is not None:
        sys_flag = layout.sys_flag & ~fmt.SYS_FLAG_TRANSACTION_MASK | transaction
        fmt.INT32.pack_into(head, fmt.SYS_FLAG_AT, sys_flag)
    if prepared_position is not None:
        fmt.TIMESTAMP.pack_into(head, len(head) - _PREPARED_FROM_BODY, prepared_position)
    return b"".join((head, records[layout.body_at : layout.body_hi], tail))
