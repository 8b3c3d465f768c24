"""Reads one range of a queue to Arrow batches, from a follower if one can serve it.

Owns the pulls of one range: one is always under way while the one before is decoded; a node that
fails is replaced by another one. Must not know Spark.
"""

import logging
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Final

import pyarrow as pa

from pipeline.columns import (
    Entries,
    RecordDamagedError,
    check_bodies,
    record_batches,
    with_checked,
)
from pipeline.connection import Connection
from pipeline.errors import DataLossError
from pipeline.options import SourceOptions
from pipeline.plan import OffsetRange, is_gone
from quorumlog.cluster.retry import Backoff, Deadline
from quorumlog.consume.raw import RawRecords
from quorumlog.errors import QuorumlogError

PULL_SIZE_BYTES_MAX: Final = 2 * 1024 * 1024
PATIENCE_MS: Final = 1_000
"""Timeout of one follower. The reader then calls another follower, and finally the leader."""

_log = logging.getLogger("quorumlog.pipeline")


def read_range(options: SourceOptions, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in order. Raises DataLossError, RecordDamagedError, ..."""
    with Connection(options.cluster) as connection:
        yield from _Reader(connection, options, wanted).batches()


class _Reader:
    def __init__(self, connection: Connection, options: SourceOptions, wanted: OffsetRange) -> None:
        self._connection = connection
        self._client = connection.client
        self._options = options
        self._wanted = wanted
        self._columns: Sequence[str] = options.columns
        self._with_entries = bool({"index", "term"} & set(self._columns))
        self._node_id: int | None = None
        self._failed: set[int] = set()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the whole range. Damage is reported to its node, by a second pull."""
        offset, hi = self._wanted.lo, self._wanted.hi
        coming, verify = self._begin(offset), False
        try:
            while offset < hi:
                at = offset
                try:
                    batch = coming.result()
                except QuorumlogError as error:
                    if self._options.fails_on_data_loss or not is_gone(error):
                        raise
                    _log.warning("%s: %s; it is left out", self._wanted.queue, error)
                    return
                if batch.is_out_of_range or not batch.record_count:
                    offset = self._after_loss(offset, batch)
                else:
                    offset = batch.next_offset
                if offset < hi:
                    coming = self._begin(offset)
                try:
                    yield from self._decode(batch)
                except RecordDamagedError:  # Before the first rows of this batch.
                    if verify:
                        raise
                    coming.cancel()
                    offset, verify = at, True
                    coming = self._begin(offset, verify=True)
                else:
                    verify = False
        finally:
            coming.cancel()

    def _decode(self, records: RawRecords) -> Iterator[pa.RecordBatch]:
        if not records.record_count:
            return
        entries = None
        if records.entry_indexes:
            entries = Entries(
                records.entry_first_records, records.entry_indexes, records.entry_terms
            )
        queue = self._wanted.queue
        fails = self._options.fails_on_body_error
        for batch in record_batches(
            records.records,
            with_checked(self._columns) if fails else self._columns,
            entries=entries,
            group=queue.broker_group,
            topic=queue.topic,
        ):
            yield check_bodies(batch, self._columns) if fails else batch

    def _after_loss(self, offset: int, records: RawRecords) -> int:
        """Return the offset behind missing records; raise DataLossError if none may be missing."""
        is_expired = offset < records.first_offset
        if self._options.fails_on_data_loss:
            raise self._lost(offset, records, "expired" if is_expired else "are not there")
        hi = self._wanted.hi
        lost_hi = min(records.first_offset, hi) if is_expired else hi
        _log.warning("%s: the offsets %d to %d are gone", self._wanted.queue, offset, lost_hi - 1)
        return lost_hi

    def _lost(self, offset: int, records: RawRecords, what: str) -> DataLossError:
        has = f"the queue has {records.first_offset} to {records.end_offset}"
        return DataLossError(
            f"{self._wanted.queue}: the offsets from {offset} on {what} ({has})",
            "keep records longer than jobs may lag, or read on without them: failOnDataLoss=false",
        )

    # --- The choice of a node ---

    def _begin(self, offset: int, *, verify: bool = False) -> Future[RawRecords]:
        return self._connection.submit(self._pull(offset, verify))

    async def _pull(self, offset: int, verify: bool) -> RawRecords:
        """Ask a follower, then others, then the leader, until the deadline."""
        deadline = Deadline(self._options.cluster.timeout_ms)
        backoff = Backoff(deadline)
        while True:
            node_id = await self._choose()
            timeout_ms = deadline.remaining_ms
            try:
                response = await self._client.raw.pull(
                    self._wanted.queue,
                    offset,
                    max_count=self._wanted.hi - offset,
                    max_size_bytes=PULL_SIZE_BYTES_MAX,
                    at_least_index=self._wanted.at_least_index,
                    node_id=node_id,
                    with_entries=self._with_entries,
                    verify=verify,
                    timeout_ms=timeout_ms if node_id is None else min(PATIENCE_MS, timeout_ms),
                )
            except QuorumlogError as error:
                if deadline.has_passed or (node_id is None and not error.retryable):
                    raise
                _log.warning("%s: %s; asking another node", self._wanted.queue, error)
            else:
                # A follower's range of offsets is advice: it may have deleted more than the leader.
                if node_id is None or (response.record_count and not response.is_out_of_range):
                    return response
            if node_id is None:
                await backoff.pause()
            else:
                self._failed.add(node_id)
                self._node_id = None

    async def _choose(self) -> int | None:
        """Return a follower, or None for the leader."""
        if not self._options.reads_followers:
            return None
        if self._node_id is None:
            queue = self._wanted.queue
            try:
                route = await self._client.route()
            except QuorumlogError:
                return None  # A pull from the leader waits for one.
            groups = [g for g in route.broker_groups if g.broker_group == queue.broker_group]
            ids = sorted({i for g in groups for i in g.nodes if i != g.leader_id} - self._failed)
            if not ids:
                return None
            # Ranges spread over the followers.
            self._node_id = ids[zlib.crc32(f"{queue}:{self._wanted.lo}".encode()) % len(ids)]
        return self._node_id
