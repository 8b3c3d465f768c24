"""The group consumer: shares queues with the other members of its group, and stores offsets.

Owns membership, the assignment of queues and what has been processed; must not know how queues are
fetched. At least once: an offset is stored only after the messages below it were processed, and a
message counts as processed when the next one is asked for. A member that loses a queue stores its
offset and forgets what it had fetched; what was handed out and not yet processed comes again
elsewhere.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal

from quorumlog.calls import Calls
from quorumlog.consumer import Consumption
from quorumlog.errors import InvalidRequestError, QuorumlogError
from quorumlog.fetching import FetchOptions, Queue
from quorumlog.local_offsets import LocalOffsets
from quorumlog.options import Position, parse_position
from quorumlog.pb import common_pb2, consumer_pb2
from quorumlog.reads import Reads
from quorumlog.rebalance import Strategy, assign, strategy_of
from quorumlog.retry import Deadline

HEARTBEAT_MS_MIN: Final = 50
HEARTBEAT_MS_MAX: Final = 30_000
COMMIT_INTERVAL_MS_MIN: Final = 10
TOPICS_MAX: Final = 256
_log = logging.getLogger("quorumlog.group")

Mode = Literal["clustering", "broadcasting"]


class GroupConsumer(Consumption):
    """Consumes topics as a member of a group. Made by `client.group_consumer()`.

    Clustering: each queue belongs to one member at a time, and offsets are stored in the cluster.
    Broadcasting: every member reads everything, and keeps its offsets to itself.
    """

    def __init__(
        self,
        reads: Reads,
        calls: Calls,
        options: FetchOptions,
        *,
        group: str,
        topics: Sequence[str],
        client_id: str,
        cluster_id: str,
        mode: Mode,
        strategy: str | Strategy,
        position: Position,
        auto_commit: bool,
        commit_interval_ms: int,
        offsets_path: str | None,
    ) -> None:
        super().__init__(reads, options)
        if mode not in ("clustering", "broadcasting"):
            raise InvalidRequestError(f"mode {mode!r} is unknown; use clustering or broadcasting")
        if not 0 < len(topics) <= TOPICS_MAX:
            raise InvalidRequestError(f"{len(topics)} topics; give 1 to {TOPICS_MAX}")
        if offsets_path is not None and mode == "clustering":
            raise InvalidRequestError("clustering stores offsets in the cluster; no offsets_path")
        if commit_interval_ms < COMMIT_INTERVAL_MS_MIN:
            text = (
                f"commit_interval_ms is {commit_interval_ms}; use {COMMIT_INTERVAL_MS_MIN} or more"
            )
            raise InvalidRequestError(text)
        parse_position(position)
        self.group, self.client_id, self.topics = group, client_id, tuple(topics)
        self._calls = calls
        self._cluster_id = cluster_id
        self._is_broadcasting = mode == "broadcasting"
        self._strategy = strategy_of(strategy)
        self._position = position
        self._auto_commit = auto_commit
        self._commit_interval_ms = commit_interval_ms
        self._local = LocalOffsets(offsets_path) if self._is_broadcasting else None
        self._members: tuple[str, ...] = ()
        self._stored: dict[Queue, int] = {}
        self._heartbeat_ms = HEARTBEAT_MS_MIN
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()

    # What callers see.

    async def start(self) -> None:
        """Join the group, and begin to fetch the queues that it assigns to this member."""
        async with self._starting:
            if self._is_started:
                return
            await self._heartbeat()
            await self._rebalance()
            self._is_started = True
            self._tasks.append(asyncio.create_task(self._keep_alive()))
            if self._auto_commit:
                self._tasks.append(asyncio.create_task(self._keep_committed()))

    def assignment(self) -> list[Queue]:
        """Return the queues that this member reads now."""
        return sorted(self._fetchers)

    def offsets(self) -> dict[Queue, int]:
        """Return the offset of the next message to be handed out, by queue."""
        return {queue: self._handed[queue] for queue in self._fetchers}

    async def commit(self) -> None:
        """Store the offsets after everything that was handed out so far, processed or not.

        Raises what the cluster says; the offsets stored before stay then.
        """
        self._in_hand = None
        await self._commit(self._processed())

    async def commit_offsets(self, offsets: Mapping[Queue, int]) -> None:
        """Store these offsets: of each queue the next message to be consumed."""
        if self._local is not None:
            self._local.store(offsets)
        elif offsets:
            request = consumer_pb2.CommitOffsetsRequest(
                group=self.group, cluster_id=self._cluster_id
            )
            for (topic, queue_id), offset in offsets.items():
                request.offsets.add(topic=topic, queue_id=queue_id, offset=offset)
            await self._call("CommitOffsets", request)
        self._stored.update(offsets)

    async def close(self, *, is_processed: bool = True) -> None:
        """Stop, store the offsets, leave the group. Others take over its queues at once.

        `is_processed`: whether the message that was handed out last has been processed.
        """
        if self._is_closed:
            return
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if is_processed:
            self._in_hand = None
        processed = self._processed()
        await super().close()
        if not self._is_started:
            return
        try:
            if self._auto_commit:
                await self._commit(processed)
        finally:
            request = consumer_pb2.LeaveGroupRequest(group=self.group, client_id=self.client_id)
            await self._call("LeaveGroup", request)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(is_processed=error is None)

    # What has been processed.

    def _processed(self) -> dict[Queue, int]:
        offsets = {queue: self._handed[queue] for queue in self._fetchers}
        if self._in_hand is not None and self._in_hand[0] in offsets:
            queue, offset = self._in_hand
            offsets[queue] = offset
        return offsets

    async def _commit(self, offsets: Mapping[Queue, int]) -> None:
        changed = {q: offset for q, offset in offsets.items() if self._stored.get(q) != offset}
        if changed:
            await self.commit_offsets(changed)

    async def _keep_committed(self) -> None:
        while True:
            await asyncio.sleep(self._commit_interval_ms / 1000)
            try:
                await self._commit(self._processed())
            except QuorumlogError as error:
                if not error.retryable:
                    self._inbox.fail(error)
                    return
                _log.warning("group %s: offsets not stored yet: %s", self.group, error)

    # Membership.

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_ms / 1000)
            try:
                await self._heartbeat()
                await self._rebalance()
            except QuorumlogError as error:
                # Without a leader everybody goes on with what they have; twice is better than lost.
                if not error.retryable:
                    self._inbox.fail(error)
                    return
                _log.warning("group %s: no heartbeat: %s", self.group, error)

    async def _heartbeat(self) -> None:
        request = consumer_pb2.HeartbeatRequest(
            group=self.group,
            client_id=self.client_id,
            topics=self.topics,
            is_broadcasting=self._is_broadcasting,
            cluster_id=self._cluster_id,
        )
        response = await self._call("Heartbeat", request)
        self._members = tuple(response.client_ids)
        wanted_ms = response.heartbeat_ms or HEARTBEAT_MS_MAX
        self._heartbeat_ms = min(max(wanted_ms, HEARTBEAT_MS_MIN), HEARTBEAT_MS_MAX)

    async def _rebalance(self) -> None:
        """Give up queues that are not ours any more, take over those that are now."""
        deadline = Deadline(self._options.timeout_ms)
        routes = await self._reads.topics(self.topics, self._options.freshness, deadline)
        counts = {name: route.queue_count for name, route in routes.items()}
        members = [self.client_id] if self._is_broadcasting else self._members
        ours = assign(self._strategy, self.client_id, counts, members)
        processed = self._processed()
        lost = {queue: processed[queue] for queue in self._fetchers if queue not in ours}
        for queue in lost:
            await self._stop_fetching(queue)
        if lost and self._auto_commit:
            await self._commit(lost)
        for queue in lost:
            self._stored.pop(queue, None)
        gained = [queue for queue in ours if queue not in self._fetchers]
        if gained:
            for queue, offset in (await self._first_offsets(gained)).items():
                self._fetch(queue, offset)

    async def _first_offsets(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        """Stored offsets, or the start position for queues without one."""
        stored: dict[Queue, int] = {}
        if self._local is not None:
            found = {queue: self._local.get(queue) for queue in queues}
            stored = {queue: offset for queue, offset in found.items() if offset is not None}
        else:
            ids = [common_pb2.QueueId(topic=topic, queue_id=i) for topic, i in queues]
            request = consumer_pb2.FetchOffsetsRequest(group=self.group, queues=ids)
            response = await self._call("FetchOffsets", request)
            stored = {(o.topic, o.queue_id): o.offset for o in response.offsets if o.offset >= 0}
        self._stored.update(stored)
        new = [queue for queue in queues if queue not in stored]
        if not new:
            return stored
        deadline = Deadline(self._options.timeout_ms)
        begun = await self._reads.positions(new, self._position, self._options.freshness, deadline)
        return {**stored, **begun}

    async def _call(self, method: str, request: object) -> Any:
        deadline = Deadline(self._options.timeout_ms)
        return await self._calls.leader("consumer", method, request, deadline, is_repeatable=True)
