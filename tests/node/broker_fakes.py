"""A broker over a real log and a driver of one node that commits when it is told to.

The log, the queues and the state machine are those of production, with real files. Only elections
and other replicas are played: the driver can hold commits back, lose leadership, and decide what
the next leader keeps of what was under way.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from node.broker import Broker, BrokerIdentity
from node.broker.core.context import Context
from node.config.limits import Limits
from node.errors.common import NotAppliedError, NotReadyError, OutcomeUnknownError, ReadFailedError
from node.replication.raft.receipts import raft_receipts
from node.replication.raft.storage.log import LedgerLog
from node.state.append_times import AppendTimes
from node.state.appends import Committed, Prepared
from node.state.machine import StateMachine
from quorumlog.pb.admin_pb2 import (
    CreateTopicRequest,
    DeleteGroupRequest,
    DeleteTopicRequest,
    TopicInfo,
)
from quorumlog.pb.common_pb2 import GroupSettings
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, CommitOffsetsResponse, GroupOffset
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from quorumlog.pb.retry_pb2 import SetGroupSettingsRequest
from raft.errors import NotLeaderError
from raft.messages import Index, NodeId, Term
from raft.ready import EntryKind
from raft.transitions import Role
from store.errors import StoreError
from store.files.file_system import FileSystem
from store.record.message import Message
from tests.patience import eventually
from tests.store.records import batch, messages, small_config

CLUSTER = "cluster"
ADDRESSES = {1: "host1:8081", 2: "host2:8082"}


class Pending(NamedTuple):
    """An entry that is written and not decided."""

    index: Index  # type: ignore[assignment]
    term: Term
    prepared: Any
    future: "asyncio.Future[Any]"


class LocalDriver:
    """Be a Driver: node 1, leader of term 1 when made."""

    def __init__(self, log: LedgerLog, machine: StateMachine) -> None:
        self.log, self.machine = log, machine
        self.node_id: NodeId = 1
        self.role = Role.LEADER
        self.term: Term = 1
        self.leader_id: NodeId = 1
        self.no_room: StoreError | None = None
        self.is_ready = True
        self.append_times = AppendTimes()
        self.is_holding = False
        """Entries are written and stay undecided."""
        self.is_cut_off = False
        """Confirmations of reads do not come."""
        self.failure: Exception | None = None
        """What the next append raises."""
        self.append_count = 0
        self.pending: list[Pending] = []
        self.limbo: list[Pending] = []
        """Cut off, and their callers still hope."""
        self.barriers: list[asyncio.Future[Index]] = []
        self._listeners: list[Callable[[], None]] = []
        self._is_scheduled = False

    @property
    def applied_index(self) -> Index:
        return self.machine.applied_index

    def add_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def append(self, records: bytes, check: Callable[[Prepared], None]) -> "asyncio.Future[Any]":
        if self.role is not Role.LEADER:
            raise NotLeaderError(self.leader_id)
        if not self.is_ready:
            raise NotReadyError(self.term)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        prepared = self.log.prepare(records)
        check(prepared)
        index = self.log.last_index + 1
        self.log.append(index, self.term, EntryKind.DATA, prepared)
        self.append_count += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.pending.append(Pending(index, self.term, prepared, future))
        if not self.is_holding and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._commit_soon)
        return future

    def read_barrier(self) -> "asyncio.Future[Index]":
        if self.role is not Role.LEADER:
            raise NotLeaderError(self.leader_id)
        future: asyncio.Future[Index] = asyncio.get_running_loop().create_future()
        if self.is_cut_off:
            self.barriers.append(future)
        else:
            future.set_result(self.applied_index)
        return future

    # --- What tests make it do ---

    def _commit_soon(self) -> None:
        self._is_scheduled = False
        if not self.is_holding:
            self.commit()

    def commit(self, count: int | None = None) -> None:
        """Commit and apply the oldest entries that are pending."""
        done, self.pending = self.pending[:count], self.pending[count:] if count else []
        if not done:
            return
        self._apply(done[-1].index, done)
        self._tell()

    def _apply(self, index: Index, done: list[Pending]) -> None:
        lo = self.applied_index + 1
        self.log.dispatch(index + 1)
        self.machine.apply(lo, index + 1)
        for entry in done:
            if not entry.future.done():
                result = entry.prepared.result
                entry.future.set_result(Committed(entry.index, entry.term, result, (1, 2), 7))

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def release(self) -> None:
        """Commit what was held back, and what comes from now on; tell who was told nothing."""
        self.is_holding = False
        self.commit()
        limbo, self.limbo = self.limbo, []
        for entry in limbo:
            self._fail(entry, OutcomeUnknownError(entry.index, entry.term))

    def lose(self, leader_id: NodeId = 2) -> None:
        """Another node begins to lead; what is pending stays undecided for now."""
        self.role, self.leader_id, self.is_ready = Role.FOLLOWER, leader_id, False
        self.term += 1
        barriers, self.barriers = self.barriers, []
        for barrier in barriers:
            if not barrier.done():
                barrier.set_exception(ReadFailedError(leader_id))
        self._tell()

    def decide(self, keep_count: int, *, is_known: bool | None = True) -> None:
        """The new leader keeps the oldest entries that are pending and replaces the others.

        With `is_known` the callers learn it, else they are told that nobody knows; None: those that
        were cut off are told nothing before `release`.
        """
        kept, cut = self.pending[:keep_count], self.pending[keep_count:]
        if cut:
            self.log.truncate_from(cut[0].index)
        if is_known is None:
            self.limbo += cut
            cut, is_known = [], True
        for entry in cut:
            error = NotAppliedError if is_known else OutcomeUnknownError
            self._fail(entry, error(entry.index, entry.term))
        if not is_known:
            for entry in kept:
                self._fail(entry, OutcomeUnknownError(entry.index, entry.term))
        self.pending = kept
        self.commit()

    def change_leader(self, random: Random) -> None:
        """Lead in a new term, after others who kept some of what was under way."""
        self.lose()
        keep_count = random.randint(0, len(self.pending))
        self.decide(keep_count, is_known=random.choice([True, False, None]))
        self.lead()

    @staticmethod
    def _fail(entry: Pending, error: Exception) -> None:
        if not entry.future.done():
            entry.future.set_exception(error)

    def lead(self, *, is_ready: bool = True) -> None:
        """Lead again, in a new term, and apply its no-op unless it is to wait."""
        self.role, self.leader_id, self.is_ready = Role.LEADER, self.node_id, False
        self.term += 1
        self.log.store.find_offsets()
        self.log.append(self.log.last_index + 1, self.term, EntryKind.NO_OP, None)
        self._tell()
        if is_ready:
            self.get_ready()

    def get_ready(self) -> None:
        """Apply everything up to the no-op."""
        pending, self.pending = self.pending, []
        self._apply(self.log.last_index, pending)
        self.is_ready = True
        self._tell()


class Fixture(NamedTuple):
    """Everything of one node."""

    broker: Broker
    driver: LocalDriver
    machine: StateMachine
    log: LedgerLog
    clock: "Clock"

    async def append(self, lo: int, hi: int, **how: Any) -> AppendResponse:
        """Append messages [lo, hi) and return the receipt."""
        return await self.broker.append(request(lo, hi, **how))

    async def put(self, *records: bytes) -> AppendResponse:
        """Append records as one batch and return the receipt."""
        append = AppendRequest(records=b"".join(records), record_count=len(records))
        return await self.broker.append(append)

    async def create_topic(self, topic: str, **how: Any) -> TopicInfo:
        """Create a topic, or change it."""
        return await self.broker.topics.create_topic(CreateTopicRequest(topic=topic, **how))

    async def delete_topic(self, topic: str) -> None:
        await self.broker.topics.delete_topic(DeleteTopicRequest(topic=topic))

    async def delete_group(self, group: str) -> None:
        await self.broker.groups.delete_group(DeleteGroupRequest(group=group))

    async def commit(self, group: str, *rows: tuple[str, int, int]) -> CommitOffsetsResponse:
        """Commit offsets, each of a topic and a queue."""
        offsets = [GroupOffset(topic=t, queue_id=q, offset=o) for t, q, o in rows]
        commit = CommitOffsetsRequest(group=group, offsets=offsets)
        return await self.broker.groups.commit_offsets(commit)

    async def written(self, call: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Begin a call that writes an entry, which stays undecided like all that come after it."""
        self.driver.is_holding = True
        before = len(self.driver.pending)
        task = asyncio.create_task(call)
        await eventually(lambda: len(self.driver.pending) > before, "it is written")
        return task


class Clock:
    """Monotonic milliseconds that tests move."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def request(lo: int, hi: int, **how: Any) -> AppendRequest:
    """A batch of messages [lo, hi) for queue 0 of topic orders, unless told otherwise."""
    fields = {
        name: how.pop(name)
        for name in ("producer_id", "sequence", "timeout_ms", "cluster_id", "record_count")
        if name in how
    }
    return AppendRequest(records=batch(lo, hi, **how), **{"record_count": hi - lo, **fields})


def hidden(node: Fixture, topic: str, queue_id: int = 0) -> list[Message]:
    """Return what a queue has, also of a topic that no client may read."""
    reads, seen = node.log.store.reads, list[Message]()
    offset, hi = reads.queue_range(topic, queue_id)
    while offset < hi:
        page = reads.pull(topic, queue_id, offset, max_count=10_000)
        seen += messages(page.data)
        offset = page.next_offset
    return seen


async def expire_some(node: Fixture) -> None:
    """Fill three files and let retention delete the first one."""
    store = node.log.store
    while len(store.log.files.files) < 3:
        await node.append(0, 20)
    store.log.delete_first()
    store.engine.queues.correct_min_offsets(store.log.min_position)


async def configure(node: Fixture, group: str, **settings: Any) -> None:
    """Change settings of a consumer group."""
    await node.broker.group_settings.set_group_settings(
        SetGroupSettingsRequest(group=group, settings=GroupSettings(**settings))
    )


@asynccontextmanager
async def node_at(
    root: Path,
    *,
    topics: dict[str, int] | None = None,
    limits: Limits | None = None,
    filled: int = 0,
    **config: Any,
) -> AsyncIterator[Fixture]:
    """Open a node in a directory, with topic orders of 4 queues unless told otherwise.

    `filled`: messages in each queue of orders, which groups may have read."""
    settings = {"container": "ledger", "flush": "async", **config}
    limits = limits or Limits()
    fs = FileSystem()
    fs.make_directory(str(root))
    log = LedgerLog.open(str(root), small_config(**settings), cluster_id=CLUSTER, node_id=1)
    try:
        if not log.is_founded:
            log.found((1,))
        log.start_at(-1)
        machine = StateMachine(log.store.reads, limits, None)
        driver, clock = LocalDriver(log, machine), Clock()
        if log.last_index >= 0:
            driver.term = log.load().hard_state.term
            driver.lead()
        identity = BrokerIdentity(CLUSTER, ADDRESSES, framed_address=":4711")
        receipts = raft_receipts(log.store)
        context = Context(driver, machine, identity, receipts, clock_ms=clock, unix_ms=clock)
        broker = Broker(context)
        clock.now_ms -= limits.group_settle_ms
        driver._tell()
        clock.now_ms += limits.group_settle_ms  # All members of groups had time to speak.
        node = Fixture(broker, driver, machine, log, clock)
        for topic, queue_count in ({"orders": 4} if topics is None else topics).items():
            await node.create_topic(topic, queue_count=queue_count)
        for queue_id in range(4 if filled else 0):
            await node.append(0, filled, queue_id=queue_id)
        yield node
        broker.stop()
        driver.is_holding = True  # What the broker wrote last is not decided any more.
    finally:
        log.close()


def node_with(**config: Any) -> pytest.MarkDecorator:
    """Set what `node_at` opens the node of a test of the broker with."""
    return pytest.mark.parametrize("node", [config], indirect=True, ids=[pytest.HIDDEN_PARAM])
