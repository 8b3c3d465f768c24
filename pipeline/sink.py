"""`write.format("quorumlog")` and `writeStream`: rows to records, each exactly once.

Owns the numbers that make it so. A task sends its rows in batches under a producer id that is a
hash of the write, the micro-batch and the partition, and under the sequences 0, 1, 2...; the bounds
of the batches depend on the rows alone. So a task that runs again, even after a crash of
everything, sends the same batches under the same numbers, and the log recognises them. Must not
know how rows are encoded.

The condition: the rows of a partition are the same and in the same order whenever its task runs.
Rows that are read from a log or from files fulfil it, rows behind a shuffle without a sort do not.
"""

import hashlib
import secrets
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pipeline.connection import Connection
from pipeline.encoding import RowEncoder, check_columns
from pipeline.errors import OptionError
from pipeline.options import SinkOptions

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class WrittenPartition(WriterCommitMessage):
    """The result of one task."""

    def __init__(self, record_count: int, duplicate_count: int) -> None:
        self.record_count = record_count
        self.duplicate_count = duplicate_count
        """Records of batches that were in the log already."""


def check_overwrite(overwrite: bool) -> None:
    """Raise OptionError for an overwrite: a log can only be appended to."""
    if overwrite:
        raise OptionError("a log cannot be overwritten", "write with mode('append')")


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


class BatchWriter(DataSourceArrowWriter):
    """Writes a table once, and again under the same `writeId` without doubling any row."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(_types(schema), options)
        self._options = options
        self._write_id = options.write_id or secrets.token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        """Send the rows of a partition."""
        return send(iterator, self._options, f"write/{self._write_id}", _partition())


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(_types(schema), options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        """Send the rows of a partition of a micro-batch."""
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        assert query is not None, "a stream has an id"
        assert batch is not None, "a micro-batch has a number"
        query = self._options.write_id or query
        return send(iterator, self._options, f"stream/{query}/{batch}", _partition())

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Do nothing: sent rows are in the log."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: sent rows stay, and another attempt does not send them twice."""


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None, "Spark runs this in a task"
    return context.partitionId()


def producer_id(name: str) -> int:
    """Return the id of a producer by the name of its write; never 0, which means none."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def send(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, name: str, partition: int
) -> WrittenPartition:
    """Send the rows of a partition of the write of that name. Raises RowError, QuorumlogError."""
    producer = producer_id(f"{name}/{partition}")
    sequence = record_count = duplicate_count = 0
    with Connection(options.cluster) as connection:
        encoder = RowEncoder(connection, options, partition)
        for records, count in encoder.batches(batches):
            receipt = connection.raw.append(
                records,
                count,
                producer_id=producer,
                sequence=sequence,
                broker_group=options.broker_group,
            )
            sequence += 1
            record_count += count
            duplicate_count += count if receipt.is_duplicate else 0
    return WrittenPartition(record_count, duplicate_count)
