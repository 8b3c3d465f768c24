"""Rows to records: the meaning of the columns, and the bounds of the batches.

Owns the meaning of a row that is written. The bounds of a batch depend on the rows alone, never on
how Spark hands them over: `pipeline.sink` relies on it. Must not know how batches are sent.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from pipeline.connection import Connection
from pipeline.errors import OptionError, RowError
from pipeline.options import SinkOptions
from pipeline.schema import COLUMNS
from quorumlog.errors import InvalidRequestError, TooLargeError, UnknownTopicError
from quorumlog.produce.outgoing_messages import entry_of
from quorumlog.records.batch import (
    KEYS,
    PROPERTY_CRC,
    TAGS,
    Entry,
    Place,
    encode_entries,
    key_queue,
    size_bytes_of,
)

BATCH_SIZE_BYTES: Final = 512 * 1024
BATCH_COUNT: Final = 1_000
_TEXT: Final = ("string", "varchar", "char")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": _TEXT,
    "queue_id": ("tinyint", "smallint", "int", "bigint"),
    "keys": ("array<string>",),
    "key": _TEXT,
    "tag": _TEXT,
    "properties": ("map<string,string>",),
    "body": ("binary", *_TEXT),
}
"""Spark's types of the columns that make a record."""
_NO_TYPE: Final = "void"
"""Spark's type of a column of nulls."""
TAKEN: Final = tuple(_TYPES)
"""The columns that make a record; the others are set by the log itself, and left out."""
_KNOWN: Final = frozenset((*TAKEN, *COLUMNS))


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Check names and Spark's types of columns before anything is written. Raises OptionError."""
    unknown = [name for name in columns if name not in _KNOWN]
    if unknown:
        raise OptionError(
            f"a record has no {unknown[0]!r}", f"name columns as these: {', '.join(TAKEN)}"
        )
    if "body" not in columns:
        raise OptionError("there is no column 'body'", "rename a column of text or bytes to it")
    if "topic" not in columns and options.topic is None:
        raise OptionError("option 'topic' is missing", "set it, or add a column 'topic'")
    if "key" in columns and "keys" in columns:
        raise OptionError("there are columns 'key' and 'keys'", "drop one of them")
    for name, accepted in _TYPES.items():
        column_type = columns.get(name, _NO_TYPE)
        # The length of a varchar and the collation of a string do not matter.
        if (
            column_type != _NO_TYPE
            and column_type.partition("(")[0].partition(" ")[0] not in accepted
        ):
            do = f"cast it to {' or '.join(accepted)}"
            raise OptionError(f"column {name!r} is of type {column_type}", do)


class RowEncoder:
    """Encodes the rows of one partition."""

    def __init__(self, connection: Connection, options: SinkOptions, partition: int) -> None:
        self._connection = connection
        self._options = options
        self._next_queue = partition
        self._counts: dict[str, int] = {}
        self._born_unix_ms = int(time.time() * 1000)

    def batches(self, rows: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, int]]:
        """Yield encoded batches, each with its count of records."""
        waiting: list[Entry] = []
        size_bytes = 0
        for entry in self._entries(rows):
            record_size_bytes = size_bytes_of(entry)
            if waiting and (
                len(waiting) == BATCH_COUNT or size_bytes + record_size_bytes > BATCH_SIZE_BYTES
            ):
                yield self._encoded(waiting)
                waiting, size_bytes = [], 0
            waiting.append(entry)
            size_bytes += record_size_bytes
        if waiting:
            yield self._encoded(waiting)

    def _encoded(self, entries: list[Entry]) -> tuple[bytes, int]:
        encoded = encode_entries(entries, self._place, born_unix_ms=self._born_unix_ms)
        return b"".join(encoded.pieces), len(entries)

    def _entries(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Entry]:
        number = 0
        for batch in rows:
            names = [name for name in batch.schema.names if name in TAKEN]
            columns = [batch.column(name).to_pylist() for name in names]
            for values in zip(*columns, strict=True):
                try:
                    yield self._entry(dict(zip(names, values, strict=True)))
                except (InvalidRequestError, TooLargeError, TypeError, AttributeError) as error:
                    raise RowError(
                        f"row {number} of the partition cannot be written: {error}",
                        "correct it, or leave it out",
                    ) from error
                number += 1

    def _entry(self, row: Mapping[str, Any]) -> Entry:
        topic, body, queue_id = row.get("topic"), row["body"], row.get("queue_id")
        if self._options.topic is not None:
            topic = self._options.topic  # A named topic moves the rows there.
        if topic is None or body is None:
            raise InvalidRequestError(f"{'topic' if topic is None else 'body'} is null")
        key, tag = row.get("key"), row.get("tag")
        if keys := row.get("keys"):
            for one in keys:
                if not one or " " in one:
                    raise InvalidRequestError(f"keys has {one!r}: use text without a blank")
            key = " ".join(keys)
        properties = {
            name: value
            for name, value in row.get("properties") or ()
            # Not the CRC of the old record, nor properties that have columns of their own.
            if name != PROPERTY_CRC
            and not (name == KEYS and key is not None)
            and not (name == TAGS and tag is not None)
        }
        return entry_of(topic, body, key, tag, queue_id, properties, 0)

    def _place(self, topic: str, queue_id: int | None, key: str | None) -> Place:
        """Return a queue: the wanted one, the one of the key, or the next in turn."""
        count = self._counts.get(topic) or self._ask_count(topic)
        if queue_id is not None:
            return topic, queue_id
        if key is not None:
            return topic, key_queue(key, count)
        self._next_queue += 1
        return topic, self._next_queue % count

    def _ask_count(self, topic: str) -> int:
        route = self._connection.route(topic)
        wanted = self._options.broker_group or route.broker_groups[0].broker_group
        for group in route.broker_groups:
            if group.broker_group == wanted and topic in group.topics:
                self._counts[topic] = group.topics[topic].queue_count
                return self._counts[topic]
        raise UnknownTopicError(f"topic {topic!r} does not exist; run 'qlog topic create {topic}'")
