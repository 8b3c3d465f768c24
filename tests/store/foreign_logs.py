"""Directories as RocketMQ leaves them, with what only RocketMQ writes; made of bytes.

Owns the way from records to the files of a plain log. The real ones are in tests/compat.
"""

from pathlib import Path
from typing import Final, NamedTuple

from store import format as fmt
from store.config import StoreConfig
from store.record.message import encode_message
from tests.store.records import BORN

BATCHES: Final = "batches"
INNER_FLAGS: Final = fmt.SYS_FLAG_INNER_BATCH | fmt.SYS_FLAG_NEED_UNWRAP


class Foreign(NamedTuple):
    """A record to be written with the queue offset that RocketMQ gave it."""

    topic: str
    queue_offset: int
    body: bytes
    properties: dict[str, str]
    sys_flag: int = 0


def plain(topic: str, queue_offset: int, **properties: str) -> Foreign:
    """An ordinary message."""
    return Foreign(topic, queue_offset, b"%08d" % queue_offset, properties)


def inner_batch(
    queue_offset: int, count: int, *, topic: str = BATCHES, **properties: str
) -> Foreign:
    """`count` messages as one record."""
    inner = b"\0\0\0\x1a" + bytes(12) + b"\0\0\0\4body" + b"\0\0"
    numbers = {fmt.PROPERTY_INNER_NUM: str(count), fmt.PROPERTY_INNER_BASE: str(queue_offset)}
    return Foreign(topic, queue_offset, inner * count, {**properties, **numbers}, INNER_FLAGS)


def write_log(root: Path, config: StoreConfig, records: list[Foreign]) -> int:
    """Write the files of a log that holds these records; return where it ends."""
    data, size_bytes = bytearray(), config.file_size_bytes
    for number, one in enumerate(records):
        for _ in range(2):
            record = encode_message(
                one.topic,
                0,
                one.body,
                one.properties,
                sys_flag=one.sys_flag,
                queue_offset=one.queue_offset,
                position=len(data),
                store_unix_ms=BORN + number,
            )
            left = size_bytes - len(data) % size_bytes
            if len(record) + fmt.BLANK_SIZE_BYTES_MIN <= left:
                break
            data += fmt.BLANK.pack(left, fmt.MAGIC_BLANK).ljust(left, b"\0")
        data += record
    directory = root / "commitlog"
    directory.mkdir(parents=True)
    for lo in range(0, len(data), size_bytes):
        file = data[lo : lo + size_bytes].ljust(size_bytes, b"\0")
        (directory / fmt.file_name(lo)).write_bytes(file)
    return len(data)
