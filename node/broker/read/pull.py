"""Reads of one queue: once, waiting for the first message, or as it grows.

Owns the limits of a read, its statuses and when a reader is parked; must not know how waiting works
(`parked_readers`) or what freshness costs (`freshness`). Data is copied once, out of the log.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from node.broker.core.context import Context
from node.broker.core.freshness import Freshness
from node.broker.core.parked_readers import ParkedReaders
from node.broker.groups.settings import check_reader
from node.broker.read.filters import SqlFilter, TagFilter, pull_kept
from node.broker.read.outgoing import Outgoing
from node.errors.common import BadRequestError
from node.state.tables.moved_offsets import MovedOffsetsTable
from node.users.calling import calling, check_debt, wait_for_reading
from quorumlog.pb import common_pb2, log_pb2
from quorumlog.pb.log_pb2 import PullRequest, PullResponse, TailRequest
from store.derived.queues.pull import PullResult, PullStatus
from store.record.topic_names import retry_topic

_TRIES: Final = 3  # A read that meets a deletion is done again; a second one is rare.
_PROGRESS_S: Final = 0.1
"""Time after which a reader that waits learns what its filter skipped: its group seems to lag until
then."""
_NOTHING_GIVEN_BACK: Final = PullResult(PullStatus.OFFSET_OVERFLOW_ONE, 0, 0, 0)
"""Of the retry topic of a group, which is made with its first message: members wait for that."""
_STATUS: Final = {
    PullStatus.FOUND: log_pb2.PULL_STATUS_FOUND,
    PullStatus.NO_MATCHED_MESSAGE: log_pb2.PULL_STATUS_NO_MATCHED_MESSAGE,
    PullStatus.MESSAGE_WAS_REMOVING: log_pb2.PULL_STATUS_OFFSET_TOO_SMALL,
    PullStatus.OFFSET_OVERFLOW_ONE: log_pb2.PULL_STATUS_NO_NEW_MESSAGE,
    PullStatus.OFFSET_OVERFLOW_BADLY: log_pb2.PULL_STATUS_OFFSET_TOO_BIG,
    PullStatus.OFFSET_TOO_SMALL: log_pb2.PULL_STATUS_OFFSET_TOO_SMALL,
}


class _Reader(NamedTuple):
    """The checked request of one caller."""

    topic: str
    queue_id: int
    max_count: int
    max_size_bytes: int
    tags: TagFilter | None
    consistency: common_pb2.Consistency
    group: str
    """The group whose settings must allow the read; empty: a reader of its own."""
    sql: SqlFilter | None
    verify: bool


class PulledRecords(NamedTuple):
    """An answer in two parts, for a port that carries records outside of the message."""

    response: PullResponse
    """Everything but `records`."""
    records: bytes

    def joined(self) -> PullResponse:
        """Return the response with its records, which are copied."""
        self.response.records = self.records
        return self.response


class Pulls:
    """Answers pulls and tails. One per broker."""

    def __init__(
        self, context: Context, parked: ParkedReaders, freshness: Freshness, outgoing: Outgoing
    ) -> None:
        self._context: Final = context
        self._outgoing = outgoing
        self._parked = parked
        self._freshness = freshness
        self.pulls_total = self.records_total = self.size_bytes_total = 0

    # --- Calls ---

    async def pull(self, request: PullRequest) -> PulledRecords:
        """Return records from an offset on; with `wait_ms` wait until there are some, or the filter
        skipped some."""
        self._context.check_cluster(request.cluster_id)
        check_debt()
        count_max = request.max_count
        if request.with_entries:  # Each record may be an entry of its own, and looked up.
            limits = self._context.limits
            count_max = min(count_max or limits.pull_count_default, limits.pull_count_filtered_max)
        reader = await self._reader(request, count_max)
        at_least = request.at_least_index if request.HasField("at_least_index") else None
        await self._freshness.ensure(request.consistency, at_least)
        offset = request.offset
        result = self._read(reader, offset)
        wait_ms = min(request.wait_ms, self._context.limits.pull_wait_ms_max)
        if wait_ms and self._is_nothing(reader, result):
            result = await self._read_later(
                reader, max(result.next_offset, offset), wait_ms, known_offset=offset
            )
            if result.status is PullStatus.OFFSET_OVERFLOW_ONE and result.next_offset > offset:
                # Nothing came after those that do not match.
                result = result._replace(status=PullStatus.NO_MATCHED_MESSAGE)
        self.pulls_total += 1
        pulled = self._pulled(result)
        if request.with_entries and result.data:
            # In a log without entries there are none.
            runs, response = self._context.store.log.entry_runs(pulled.records), pulled.response
            response.entry_first_records.extend(run.first_record for run in runs)
            response.entry_indexes.extend(run.entry_index for run in runs)
            response.entry_terms.extend(run.term for run in runs)
        return pulled

    async def tail(self, request: TailRequest) -> AsyncGenerator[PulledRecords, None]:
        """Yield records from an offset on as they come, until the caller closes it.

        A slow consumer slows it down: nothing is read before the previous response was taken. So
        do the rates of its user.
        Without news for `tail_idle_ms` it yields an empty response. Expired offsets are reported
        and passed over.
        """
        self._context.check_cluster(request.cluster_id)
        if request.consistency == common_pb2.CONSISTENCY_LINEARIZABLE:
            raise BadRequestError("consistency", "LEADER or LOCAL for a tail", "LINEARIZABLE")
        reader = await self._reader(request, 0)
        await self._freshness.ensure(request.consistency)
        offset = request.offset
        is_told = request.consistency == common_pb2.CONSISTENCY_LOCAL
        idle_ms = self._context.limits.tail_idle_ms
        while True:
            # Its consumer may take all without a pause: a long queue is not one step.
            if self._context.turn.is_over():
                await self._context.turn.next()
            if calling() is not None:
                await wait_for_reading()
            self._freshness.check(reader.consistency)
            result = self._read(reader, offset)
            if self._is_beyond(result) and not is_told:
                is_told = True  # Report it at once: it may be a mistake.
            elif self._is_beyond(result):
                # Wait for it, and never go back: on a replica that lags, records that the
                # reader has seen elsewhere are still to come.
                result = await self._read_later(reader, offset, idle_ms)
            elif self._is_nothing(reader, result):
                result = await self._read_later(reader, result.next_offset, idle_ms)
            yield self._pulled(result)
            if not self._is_beyond(result):
                offset = result.next_offset

    # --- Reading ---

    async def _reader(self, request: PullRequest | TailRequest, max_count: int) -> _Reader:
        """Check a request and put limits to it."""
        limits = self._context.limits
        if request.offset < 0:
            raise BadRequestError("offset", "0 or more", str(request.offset))
        tags = request.tags
        count_max, size_bytes_max, sql = limits.pull_count_max, limits.pull_size_bytes_max, None
        if request.sql:
            await self._context.turn.next()
            sql = SqlFilter(request.sql)
            affordable_count = max(1, limits.pull_test_count_max // sql.test_count)
            count_max = min(limits.pull_count_filtered_max, affordable_count)
            size_bytes_max = limits.pull_size_bytes_default
        return _Reader(
            request.topic,
            request.queue_id,
            min(max_count or limits.pull_count_default, count_max),
            min(request.max_size_bytes or limits.pull_size_bytes_default, size_bytes_max),
            TagFilter(tags, limits.pull_tag_count_max) if tags else None,
            request.consistency,
            request.group,
            sql,
            isinstance(request, PullRequest) and request.verify,
        )

    def _read(self, reader: _Reader, offset: int) -> PullResult:
        """Read once, now. Raises UnknownTopicError and the like, CorruptionError."""
        topic, queue_id, group = reader.topic, reader.queue_id, reader.group
        context, tags = self._context, reader.tags
        if group:
            check_reader(context, group, topic)
        if topic == retry_topic(group) and context.state.topic(topic) is None:
            return _NOTHING_GIVEN_BACK
        context.readable(topic, queue_id)

        def read(*, verify: bool = reader.verify) -> PullResult:
            for _ in range(_TRIES):
                result = context.store.pull(
                    topic,
                    queue_id,
                    offset,
                    max_count=reader.max_count,
                    max_size_bytes=reader.max_size_bytes,
                    tags=None if tags is None else tags.codes,
                    verify=verify,
                )
                if result.status is not PullStatus.MESSAGE_WAS_REMOVING:
                    break
            return result

        filters = [kept for kept in (tags, reader.sql) if kept is not None]
        if filters:
            result, data, count = pull_kept(read, *filters)
            result = result._replace(data=data, record_count=count)
            if result.status is PullStatus.FOUND and not count:
                result = result._replace(status=PullStatus.NO_MATCHED_MESSAGE)
        else:
            result = read()
        if result.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE):
            self.records_total += result.record_count
            self.size_bytes_total += len(result.data)
            self._outgoing.note(topic, result.record_count, len(result.data))
        elif result.max_offset == 0:  # The queue never had a message.
            status = PullStatus.OFFSET_OVERFLOW_BADLY if offset else PullStatus.OFFSET_OVERFLOW_ONE
            result = PullResult(status, 0, 0, 0)
        return result

    def _is_nothing(self, reader: _Reader, result: PullResult) -> bool:
        """Whether waiting may help."""
        match result.status:
            case PullStatus.OFFSET_OVERFLOW_ONE:
                return True
            case PullStatus.NO_MATCHED_MESSAGE:
                return result.next_offset >= result.max_offset
            case PullStatus.OFFSET_OVERFLOW_BADLY:  # This replica may be behind the reader.
                return reader.consistency == common_pb2.CONSISTENCY_LOCAL
        return False

    @staticmethod
    def _is_beyond(result: PullResult) -> bool:
        return result.status is PullStatus.OFFSET_OVERFLOW_BADLY

    async def _read_later(
        self, reader: _Reader, offset: int, wait_ms: int, known_offset: int | None = None
    ) -> PullResult:
        """Wait until there is something at or behind an offset, at most `wait_ms`; less if the
        reader does not know yet that it is beyond `known_offset`."""
        loop, key = asyncio.get_running_loop(), (reader.topic.encode(), reader.queue_id)
        deadline, rest_s = loop.time() + wait_ms / 1000, 0.0
        with self._parked.crowd(key) as crowd:
            while True:
                if known_offset is not None and offset > known_offset:
                    known_offset = None
                    deadline = min(deadline, loop.time() + max(_PROGRESS_S, crowd.rest_s))
                left_s = deadline - loop.time()
                if rest_s:
                    await asyncio.sleep(max(0.0, min(rest_s, left_s)))
                elif left_s > 0:
                    await self._parked.for_growth(key, left_s)
                if reader.sql is not None or crowd.rest_s:
                    await self._context.turn.next()  # An append wakes all readers of a queue.
                self._freshness.check(reader.consistency)
                result = self._read(reader, offset)
                is_nothing = self._is_nothing(reader, result) or self._is_beyond(result)
                if not is_nothing or deadline <= loop.time():
                    return result
                rest_s = 0.0
                if result.status is PullStatus.NO_MATCHED_MESSAGE:
                    offset, rest_s = result.next_offset, crowd.rest_s

    def _pulled(self, result: PullResult) -> PulledRecords:
        context = self._context
        response = PullResponse(
            status=_STATUS[result.status],
            record_count=result.record_count,
            next_offset=result.next_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            applied_index=context.driver.applied_index,
            node_id=context.driver.node_id,
            newest_move=context.state.table(MovedOffsetsTable).newest,
        )
        return PulledRecords(response, result.data)
