"""Summarizes a file that was cut off a log: which records a replica lost, and where they were.

Owns the summary that `qlog store inspect FILE` prints; must not know why they were cut.
"""

from collections.abc import Iterator
from typing import Final

from store import format as fmt
from store.errors import CorruptionError, RecordFormatError
from store.fsck.files import ReadOnlyFileSystem
from store.fsck.inspect import Row, readable_time
from store.log.cut_file import read_cut_file, read_cut_header
from store.record.message import Message, decode_message

RECORDS_SHOWN: Final = 1_000


def inspect_cut(path: str) -> Row:
    """Return the content of a file, as plain values that JSON knows; reads and checks all of it.

    Raises CorruptionError when it is not whole, FileSystemError.
    """
    cut, _ = read_cut_header(ReadOnlyFileSystem(), path)
    queues: dict[tuple[str, int], Row] = {}
    shown: list[Row] = []
    count = 0
    for message in _messages(path):
        count += 1
        key = message.topic, message.queue_id
        row = queues.setdefault(
            key, {"topic": key[0], "queue_id": key[1], "first_offset": message.queue_offset}
        )
        row["last_offset"] = message.queue_offset
        row["record_count"] = int(str(row.get("record_count", 0))) + 1
        if len(shown) < RECORDS_SHOWN:
            shown.append(_record_row(message))
    return {
        "file": path,
        "epoch": cut.epoch,
        "first_log_position": cut.lo,
        "end_log_position": cut.hi,
        "size_bytes": cut.hi - cut.lo,
        "cut_time": readable_time(cut.cut_unix_ms),
        "record_count": count,
        "queues": [queues[key] for key in sorted(queues)],
        "records": shown,
        "records_not_shown": count - len(shown),
    }


def _record_row(message: Message) -> Row:
    return {
        "log_position": message.position,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "store_time": readable_time(message.store_unix_ms),
        "keys": " ".join(message.keys),
        "body_size_bytes": len(message.body),
    }


def _messages(path: str) -> Iterator[Message]:
    """Decode the records of a file, in order; blanks are passed over."""
    data, to_skip = b"", 0
    for _, part in read_cut_file(ReadOnlyFileSystem(), path):
        data += part
        at = min(to_skip, len(data))
        to_skip -= at
        while len(data) - at >= fmt.BLANK_SIZE_BYTES_MIN:
            size_bytes, magic = fmt.BLANK.unpack_from(data, at)
            if magic == fmt.MAGIC_BLANK:
                to_skip = max(0, size_bytes - (len(data) - at))
                at = min(at + size_bytes, len(data))
                continue
            if 0 < len(data) - at < size_bytes:
                break  # The rest of the record comes with the next part.
            try:
                message = decode_message(data, at)
            except RecordFormatError as error:
                what = error.field, error.expected, error.actual
                raise CorruptionError(path, 0, *what) from error
            yield message
            at += message.size_bytes
        data = data[at:]
    if data:
        raise CorruptionError(path, 0, "last record", "a whole one", f"{len(data)} bytes")
