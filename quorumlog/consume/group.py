"""The group consumer: shares queues with the other members of its group, and stores offsets.

Owns the processed and the stored offsets, over all broker groups; must not know how queues are
fetched, nor how they are divided (`membership`). At least once: an offset is stored only after the
messages below it were processed. A message counts as processed when the caller requests the next.
A member that loses a queue drops the fetched messages, and stores its offset once the message in
hand is processed, or after a heartbeat's time: then that one comes again at another member.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Final, Literal

from quorumlog.arguments import checked, shown
from quorumlog.cluster.broker_groups import BrokerGroup, BrokerGroups
from quorumlog.cluster.calls import beside
from quorumlog.cluster.close_once import failures_beside
from quorumlog.cluster.retry import Deadline
from quorumlog.consume.consumer import Consumption, PullArguments
from quorumlog.consume.in_hand import Reader
from quorumlog.consume.local_offsets import LocalOffsets
from quorumlog.consume.membership import (
    AWAY_MS,
    Identity,
    Membership,
    Redeliveries,
    Redelivery,
)
from quorumlog.consume.moves import UNKNOWN, Known, Moves, moved_conflict
from quorumlog.consume.prefetch import (
    HELD_COUNT_MAX,
    HELD_SIZE_BYTES_MAX,
    FetchArguments,
)
from quorumlog.consume.reads import ReadCalls, Reading, unknown_topic
from quorumlog.consume.rebalance import Strategy, strategy_of
from quorumlog.consume.starts import START_MS, Starts
from quorumlog.errors import ConflictError, InvalidRequestError, Outcome, QuorumlogError
from quorumlog.pb import common_pb2, consumer_pb2
from quorumlog.records.message import RETRY_PREFIX, Message
from quorumlog.records.options import FIRST, Position
from quorumlog.records.queues import Offsets, Queue

TOPICS_MAX: Final = 256
HELD_S: Final = 60.0
_log = logging.getLogger("quorumlog.group")

Mode = Literal["clustering", "broadcasting"]


@dataclass(frozen=True, kw_only=True)
class MemberArguments(FetchArguments):
    """What a program says of a member of a group, as `client.group_consumer` describes it."""

    mode: Mode = "clustering"
    strategy: str | Strategy = "averagely"
    position: Position = "first"
    auto_commit: bool = True
    commit_interval_ms: int = 1_000
    max_attempts: int | None = None
    offsets_path: str | None = None
    client_id: str | None = None
    held_size_bytes_max: int = HELD_SIZE_BYTES_MAX
    held_count_max: int = HELD_COUNT_MAX


@dataclass(frozen=True)
class GroupOptions(MemberArguments):
    """The arguments of a member of a group."""

    group: str
    topics: str | Sequence[str]

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a value of no use."""
        if not 0 < len(self.topic_names) <= TOPICS_MAX:
            raise InvalidRequestError(f"{len(self.topic_names)} topics; give 1 to {TOPICS_MAX}")
        if self.offsets_path is not None and self.mode == "clustering":
            raise InvalidRequestError("clustering stores offsets in the cluster; no offsets_path")

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The topics, also where only one is named."""
        return (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)


@dataclass(frozen=True)
class ConsumeOptions(MemberArguments, PullArguments):
    """The arguments of `client.consume`: those of both kinds of consumers, for one of which."""

    topic: str
    _: KW_ONLY
    group: str | None = None

    def of(self, kind: type[MemberArguments | PullArguments]) -> dict[str, Any]:
        """Return the arguments for this kind. Raises InvalidRequestError for one of the other."""
        names = {field.name for field in fields(kind)}
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name not in {"topic", "group", *names} and value is not field.default:
                do = "name the group" if self.group is None else "call consume without group"
                of = "a member of a group" if self.group is None else "no member of a group"
                raise InvalidRequestError(f"{name} is {shown(value)}, an option of {of}; {do}")
        return {name: getattr(self, name) for name in names}


@checked
class GroupConsumer(Consumption):
    """Consumes topics as a member of a group. Made by `client.group_consumer()`.

    Clustering: each queue belongs to one member at a time, and offsets are stored in the cluster.
    Broadcasting: every member reads everything, and keeps its offsets to itself.
    """

    def __init__(
        self,
        reads: ReadCalls,
        groups: BrokerGroups,
        options: GroupOptions,
        client_id: str,
        timeout_ms: int,
        on_known: Callable[[Mapping[Queue, Known]], None],
    ) -> None:
        """`on_known` is called with stored offsets before what lies behind them is read."""
        fetching = replace(
            options.reading(timeout_ms),
            group=options.group,
            held_size_bytes_max=options.held_size_bytes_max,
            held_count_max=options.held_count_max,
            is_patient=True,
            skips_expired=True,
        )
        super().__init__(reads, fetching)
        self._on_known = on_known
        self.group, self.client_id, self.topics = options.group, client_id, options.topic_names
        is_broadcasting = options.mode == "broadcasting"
        self._groups = groups
        self._group_options = options
        self.auto_commit: Final = options.auto_commit
        self._identity = Identity(
            self.group,
            self.client_id,
            self.topics,
            is_broadcasting,
            strategy_of(options.strategy),
            fetching.tags,
            fetching.sql,
        )
        self._local = LocalOffsets(options.offsets_path) if is_broadcasting else None
        self._starts = Starts(options.position)
        self._redeliveries: dict[BrokerGroup, Redeliveries] = {}
        self._storing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Locks by broker group: an older offset must not be stored after a newer one."""
        self._leaving: dict[Queue, None] = {}
        """Queues that it lost, and of which the offset is not stored yet."""
        self._stored: dict[Queue, Known] = {}
        """What this member knows to be stored."""
        self.moves: Final = Moves(self._position, self._read_again)
        """For consuming transactions, too."""
        self._memberships: dict[BrokerGroup, Membership] = {}
        self._held_since: dict[tuple[Queue, int], float] = {}
        self._warned_of: set[tuple[Queue, int]] = set()
        self._keeping: dict[BrokerGroup, list[asyncio.Task[None]]] = {}
        self._forgetting: dict[asyncio.Task[None], None] = {}

    # The public calls.

    async def _begin(self) -> None:
        """Join the group, and begin to fetch the queues that it assigns to this member."""
        try:
            if self._local is not None:
                self._local.open()
                self._starts.begun |= {(q.broker_group, q.topic) for q in self._local.offsets}
            self._starts.begin(group.name for group in self._groups.all)
            await self._join_all()
        except BaseException:
            if self._local is not None:
                self._local.close()
            # Else it would keep queues from the other members for the time of a session.
            await self._stop_all()
            leaves = self._leave_groups(Deadline(min(AWAY_MS, self._options.timeout_ms)))
            await asyncio.gather(*leaves, return_exceptions=True)
            self._memberships.clear()
            raise
        self._groups.on_change.append(self._follow_groups)
        self._follow_groups()

    async def _join_all(self) -> None:
        """Join in every broker group that answers soon, and in at least one."""
        deadline = Deadline(self._options.timeout_ms)
        joins = {
            asyncio.ensure_future(self._membership(group).join(deadline)): group
            for group in self._groups.all
        }
        try:
            pending, patience_s = set(joins), None
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break  # The other groups are joined when they answer.
                if any(task.exception() is None for task in done):
                    patience_s = START_MS / 1000
        finally:
            for task in joins:
                task.cancel()
            results = await asyncio.gather(*joins, return_exceptions=True)
        failed = [result for result in results if isinstance(result, Exception)]
        for error in failed:
            if not isinstance(error, QuorumlogError) or not error.retryable:
                raise error
        if None not in results:
            raise failed[0]
        self._check_topics()

    def assignment(self) -> list[Queue]:
        """Return the queues that this member reads now."""
        return sorted(self._fetchers)

    def members(self) -> list[str]:
        """Return the client ids of the members that share the topics, this one included."""
        return sorted(
            {client for member in self._memberships.values() for client in member.members}
        )

    def offsets(self) -> dict[Queue, int]:
        """Return the offset of the next message to be handed out, by queue."""
        return {queue: self._position(queue) for queue in self._fetchers}

    async def commit(self) -> None:
        """Store the offsets after everything that was handed out so far, processed or not.

        Raises the error of the cluster; the offsets stored before stay then. Raises ConflictError
        if others consumed a queue or reset the group while this member was away: their offset
        stays, and reading goes on there.
        """
        self.in_hand.put_down_all()
        deadline = Deadline(self._options.timeout_ms)
        groups = {self._groups.get(queue.broker_group) for queue in self._processed()}
        try:
            await _all(self._commit_processed(group, deadline) for group in groups)
        except ConflictError:
            self.moves.take_unseen()
            raise
        if unseen := self.moves.take_unseen():
            raise moved_conflict(unseen)

    async def commit_offsets(self, offsets: Offsets) -> None:
        """Store these offsets: of each queue the next message to be consumed.

        Each broker group stores those of its own queues; if one group refuses, another may have
        stored its part. Raises ConflictError as `commit`.
        """
        deadline = Deadline(self._options.timeout_ms)
        by_group: dict[BrokerGroup, dict[Queue, int]] = {}
        for queue, offset in offsets.items():
            group = self._groups.get(queue.broker_group if isinstance(queue, Queue) else "")
            by_group.setdefault(group, {})[Queue(*queue, group.name)] = offset

        async def store(group: BrokerGroup, part: Mapping[Queue, int]) -> None:
            async with self._turn(group, deadline):
                await self._store(group, part, deadline)

        await _all(store(group, part) for group, part in by_group.items())

    async def retry_later(
        self, messages: Message | Sequence[Message], *, delay: float | None = None
    ) -> Redelivery:
        """Have messages delivered to the group again, after `delay` seconds or the group's pauses.

        Messages that were delivered `max_attempts` times become dead letters. The others come with
        `reconsume_times` and `origin_topic`, on the group's retry topic, which its members read by
        themselves. With `auto_commit` the message that was handed out last counts as processed, and
        its offset is stored in the same step: no crash loses it or delivers it twice. All messages
        must be of one broker group. Raises GroupKindError for an orderly group.
        """
        if delay is not None and delay <= 0:
            raise InvalidRequestError(f"delay is {delay} s; use more than 0, or None")
        delay_ms = 0 if delay is None else max(1, round(delay * 1000))
        return await self._give_back(messages, delay_ms=delay_ms)

    async def reject(self, messages: Message | Sequence[Message]) -> Redelivery:
        """Make messages dead letters without another attempt; else as `retry_later`."""
        return await self._give_back(messages, is_dead=True)

    async def _give_back(
        self, messages: Message | Sequence[Message], *, delay_ms: int = 0, is_dead: bool = False
    ) -> Redelivery:
        given = [messages] if isinstance(messages, Message) else list(messages)
        groups = {message.broker_group for message in given}
        if self._local is not None:
            text = "a broadcasting member has no retries; use mode='clustering'"
            raise InvalidRequestError(text)
        if len(groups) != 1:
            raise InvalidRequestError(f"messages of {len(groups)} broker groups; give those of one")
        group = self._groups.get(groups.pop())
        if group not in self._redeliveries:
            self._redeliveries[group] = Redeliveries(group, self.group)
        deadline = Deadline(self._options.timeout_ms)
        async with self._turn(group, deadline):
            whole = self._whole_delivery(given) if self.auto_commit else None
            offsets = {} if whole is None else self._offsets_behind(*whole)
            processed = self._processed()
            unsure = {q: processed[q] for q in offsets if self._known(q).unanswered}
            if unsure:  # The answer does not say whether the offset was taken.
                await self._store(group, unsure, deadline)
            with self._unanswered(offsets):
                done = await self._redeliveries[group].give_back(
                    given,
                    delay_ms=delay_ms,
                    is_dead=is_dead,
                    attempt_count_max=self._group_options.max_attempts or 0,
                    offsets=[self._row(queue, offset) for queue, offset in offsets.items()],
                    deadline=deadline,
                )
            self._note_stored(offsets)
            if whole is not None and self._whole_delivery(given) == whole:  # It took no other one.
                self.in_hand.put_down(whole[1])
        return done

    def _whole_delivery(self, given: Sequence[Message]) -> tuple[Queue, Reader] | None:
        """Return of which queue and reader a whole delivery is given back; None if of none."""
        offsets = defaultdict[Queue, set[int]](set)
        for message in given:
            queue = Queue(message.topic, message.queue_id, message.broker_group)
            offsets[queue].add(message.queue_offset)
        for queue in offsets.keys() & (*self._fetchers, *self._leaving):
            if (reader := self.in_hand.reader_of(queue, offsets[queue])) is not None:
                return queue, *reader
        return None

    def _offsets_behind(self, queue: Queue, reader: Reader) -> dict[Queue, int]:
        """Return the offset to store with a delivery that is given back."""
        others = self.in_hand.offsets(without=reader)
        return {queue: min(self._handed[queue], others.get(queue, self._handed[queue]))}

    @asynccontextmanager
    async def _turn(self, group: BrokerGroup, deadline: Deadline) -> AsyncIterator[None]:
        """Wait until other offsets are stored. Raises DeadlineError."""
        lock = self._storing[group.name]
        try:
            async with asyncio.timeout(max(0.0, deadline.remaining_s)):
                await lock.acquire()
        except TimeoutError:
            raise deadline.error("storing offsets", None, attempts=0) from None
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _unanswered(self, offsets: Mapping[Queue, int]) -> Iterator[None]:
        """Note that offsets may be stored if the call in the block gets no answer."""
        try:
            yield
        except BaseException as error:
            if getattr(error, "outcome", Outcome.UNKNOWN) is not Outcome.NOT_APPLIED:
                for queue, offset in offsets.items():
                    view = self._known(queue)
                    self._stored[queue] = view._replace(unanswered=view.unanswered | {offset})
            raise

    def _row(self, queue: Queue, offset: int) -> consumer_pb2.GroupOffset:
        topic, queue_id = queue
        offset_known, move, _ = self._known(queue)
        return consumer_pb2.GroupOffset(
            topic=topic, queue_id=queue_id, offset=offset, newest_known=offset_known, move=move
        )

    def _known(self, queue: Queue) -> Known:
        return self._stored.get(queue, UNKNOWN)

    def _note_stored(self, offsets: Mapping[Queue, int]) -> None:
        for queue, offset in offsets.items():
            self._stored[queue] = Known(offset, self._known(queue).move)

    async def _store(
        self, group: BrokerGroup, offsets: Mapping[Queue, int], deadline: Deadline
    ) -> None:
        """Store offsets; the caller has its turn. Raises ConflictError if others moved one of them
        from what this member knows: it was away. Reading goes on there."""
        if self._local is not None:
            self._local.store(offsets)
            self._note_stored(offsets)
            return
        held = self.moves.held(offsets)
        free = {queue: offset for queue, offset in offsets.items() if queue not in held}
        if not free:
            raise moved_conflict(held)
        limit = Deadline(min(AWAY_MS, deadline.remaining_ms)) if group.is_away else deadline
        rows = [self._row(queue, offset) for queue, offset in free.items()]
        request = consumer_pb2.CommitOffsetsRequest(
            group=self.group, cluster_id=self._groups.cluster_id, offsets=rows
        )
        with self._unanswered(free):
            response = await self._membership(group).call(request, limit)
        stays = {Queue(row.topic, row.queue_id, group.name): row for row in response.moved}
        self._note_stored({queue: free[queue] for queue in free.keys() - stays.keys()})
        own = {q: Known.of(row) for q, row in stays.items() if self._known(q).may_be(row)}
        moved = await self._follow(group, (row for q, row in stays.items() if q not in own))
        if own:
            self._stored.update(own)
            await self._store(group, {queue: free[queue] for queue in own}, deadline)
        if moved or held:
            raise moved_conflict(moved | held)

    async def _follow(
        self, group: BrokerGroup, rows: Iterable[consumer_pb2.GroupOffset]
    ) -> dict[Queue, int]:
        """Read on where others moved queues, and return these offsets."""
        moved = {Queue(row.topic, row.queue_id, group.name): Known.of(row) for row in rows}
        offsets = {queue: known.offset for queue, known in moved.items()}
        ours = [queue for queue in offsets if queue in self._fetchers]
        for queue in ours:
            self.moves.note(queue, offsets[queue], self._known(queue).offset)
            self._handed[queue] = offsets[queue]
        self._note_known(moved)
        await self._stop_fetching(ours)
        for queue in ours:
            self._fetch(queue, offsets[queue])
        return offsets

    async def _read_again(self, queues: Collection[Queue]) -> None:
        """Read on at the stored offsets: a consuming transaction met others there."""
        deadline = Deadline(self._options.timeout_ms)
        for group in {self._groups.get(queue.broker_group) for queue in queues}:
            async with self._turn(group, deadline):
                ours = [q for q in queues if q.broker_group == group.name and q in self._fetchers]
                rows = await self._fetch_stored(group, ours, deadline) if ours else ()
                await self._follow(group, (row for row in rows if row.offset >= 0))

    def _note_known(self, known: Mapping[Queue, Known]) -> None:
        self._stored.update(known)
        self._on_known(known)

    async def close(self, *, is_processed: bool = True) -> None:
        """Stop, store the offsets, leave the group. Others take over its queues at once.

        `is_processed`: whether the message that was handed out last has been processed.
        """
        await self.close_once.once(lambda: self._leave(is_processed))

    async def _leave(self, is_processed: bool) -> None:
        await self._give_up_starting()
        if self._follow_groups in self._groups.on_change:
            self._groups.on_change.remove(self._follow_groups)
        tasks = [*self._forgetting, *(task for kept in self._keeping.values() for task in kept)]
        self._keeping.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if is_processed:
            self.in_hand.put_down_all()
        processed = self._processed()
        await self._stop_all()
        deadline = Deadline(self._options.timeout_ms)
        try:
            if self.auto_commit and self._is_started:
                groups = {self._groups.get(queue.broker_group) for queue in processed}
                with self._warned():
                    await _all(self._commit(group, processed, deadline) for group in groups)
        finally:
            if self._local is not None:
                self._local.close()
            results = await asyncio.gather(*self._leave_groups(deadline), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and self._is_started:
                raise result

    def _leave_groups(self, deadline: Deadline) -> list[Awaitable[None]]:
        # A group that is away drops this member when its heartbeats are missing.
        memberships = self._memberships.items()
        there = [m for group, m in memberships if m.is_known and not group.is_away]
        return [member.leave(deadline) for member in there]

    async def __aexit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        with failures_beside(error):
            await self.close(is_processed=error is None)

    # Processed offsets.

    def _processed(self) -> dict[Queue, int]:
        offsets = {queue: self._position(queue) for queue in (*self._fetchers, *self._leaving)}
        held = self.in_hand.offsets()
        self._warn_of_held(held)
        return {queue: min(offset, held.get(queue, offset)) for queue, offset in offsets.items()}

    def _warn_of_held(self, held: Mapping[Queue, int]) -> None:
        """Warn once of a message that keeps the offset of its queue back for long: its reader waits
        for something else, or failed."""
        now_s = asyncio.get_running_loop().time()
        since = {
            (queue, offset): self._held_since.get((queue, offset), now_s)
            for queue, offset in held.items()
            if self._handed.get(queue, offset) > offset + 1
        }
        for (queue, offset), began_s in since.items():
            if now_s - began_s >= HELD_S and (queue, offset) not in self._warned_of:
                self._warned_of = {*self._warned_of & since.keys(), (queue, offset)}
                _log.warning(
                    "group %s: message %d of %s is in hand for %d s, and later ones are processed: "
                    "no offset behind it is stored before its task or thread takes another one, or "
                    "commit() is called; all come again after a crash",
                    self.group, offset, queue, HELD_S,
                )  # fmt: skip
        self._held_since = since

    async def _commit_processed(self, group: BrokerGroup, deadline: Deadline) -> None:
        async with self._turn(group, deadline):
            await self._commit(group, self._processed(), deadline)

    async def _commit(
        self, group: BrokerGroup, offsets: Mapping[Queue, int], deadline: Deadline
    ) -> None:
        """Store those of a broker group that have changed; the caller has its turn."""
        changed = {
            queue: offset
            for queue, offset in offsets.items()
            if queue.broker_group == group.name and not self._known(queue).is_surely(offset)
        }
        if changed:
            await self._store(group, changed, deadline)

    @contextmanager
    def _warned(self) -> Iterator[None]:
        """Log a conflict: the program did not ask for what is stored. One of a file is raised:
        another member overwrites what this one stores."""
        try:
            yield
        except ConflictError as error:
            if self._local is not None:
                raise
            _log.warning("group %s: %s", self.group, error)

    async def _keep_committed(self, group: BrokerGroup) -> None:
        while True:
            await asyncio.sleep(self._group_options.commit_interval_ms / 1000)
            try:
                with self._warned():
                    await self._commit_processed(group, Deadline(self._options.timeout_ms))
            except QuorumlogError as error:
                if not error.retryable:
                    self._fail(error)
                    return
                where = group.router.where
                _log.warning("group %s: offsets not stored yet%s: %s", self.group, where, error)

    # Membership, separate in each broker group.

    def _membership(self, group: BrokerGroup) -> Membership:
        if group not in self._memberships:
            self._memberships[group] = Membership(
                group, self._reads, self._identity, self._share, self._starts
            )
        return self._memberships[group]

    def _follow_groups(self) -> None:
        """Keep a membership in every listed broker group, and drop those of the other groups."""
        for group in self._groups.all:
            if group not in self._keeping:
                work = [self._keep_alive(self._membership(group))]
                if self.auto_commit:
                    work.append(self._keep_committed(group))
                tasks = self._keeping[group] = [asyncio.create_task(one) for one in work]
                for task in tasks:
                    task.add_done_callback(self._on_helper_ended)
        for group in self._keeping.keys() - set(self._groups.all):
            for task in self._keeping.pop(group):
                task.cancel()
            forgetting = asyncio.create_task(self._forget(group))
            self._forgetting[forgetting] = None
            forgetting.add_done_callback(self._forgetting.pop)
            forgetting.add_done_callback(self._on_helper_ended)

    async def _forget(self, group: BrokerGroup) -> None:
        """Stop reading the queues of a group that is left out; its stored offsets stay there."""
        self._memberships.pop(group, None)
        ours = [queue for queue in self._fetchers if queue.broker_group == group.name]
        await self._stop_fetching(ours)
        for queue in [*ours, *(q for q in self._leaving if q.broker_group == group.name)]:
            self._leaving.pop(queue, None)
            self._stored.pop(queue, None)
        self.moves.forget(ours)

    async def _keep_alive(self, membership: Membership) -> None:
        while True:
            if membership.is_joined:
                await asyncio.sleep(membership.heartbeat_ms / 1000)
            try:
                await membership.join(Deadline(self._options.timeout_ms))
                await self._follow_moves(membership, Deadline(self._options.timeout_ms))
                self._check_topics()
            except QuorumlogError as error:
                # Without a leader members keep their queues; twice is better than lost.
                if not error.retryable:
                    self._fail(error)
                    return
                where = membership.group.router.where
                _log.warning("group %s: no heartbeat%s: %s", self.group, where, error)
                await asyncio.sleep(membership.heartbeat_ms / 1000)

    def _fail(self, error: Exception) -> None:
        """Stop: this is no member any more, so it hands nothing out and stores nothing."""
        self._inbox.fail(error, at_once=True)
        self._current = None
        for task in [task for kept in self._keeping.values() for task in kept]:
            if task is not asyncio.current_task():
                task.cancel()

    async def _follow_moves(self, membership: Membership, deadline: Deadline) -> None:
        """Read on where a tool moved queues, also without an offset to be stored there."""
        group = membership.group

        def is_news(row: consumer_pb2.GroupOffset) -> bool:
            queue = Queue(row.topic, row.queue_id, group.name)
            return queue in self._fetchers and self._known(queue).move != row.move

        if any(map(is_news, membership.moved)):
            async with self._turn(group, deadline):
                queues = [row for row in membership.moved if is_news(row)]
                # The heartbeat's answer may be that of a leader that was deposed.
                rows = await self._fetch_stored(group, queues, deadline)
                moved = await self._follow(group, filter(is_news, rows))
                if moved:
                    _log.warning("group %s: %s", self.group, moved_conflict(moved))
        numbers = (row.move for row in membership.moved)
        membership.followed_move = max(numbers, default=membership.followed_move)

    async def _fetch_stored(
        self,
        group: BrokerGroup,
        queues: Iterable[Queue | consumer_pb2.GroupOffset],
        deadline: Deadline,
    ) -> Sequence[consumer_pb2.GroupOffset]:
        ids = [common_pb2.QueueId(topic=one.topic, queue_id=one.queue_id) for one in queues]
        request = consumer_pb2.FetchOffsetsRequest(group=self.group, queues=ids)
        response = await self._membership(group).call(request, deadline)
        rows: Sequence[consumer_pb2.GroupOffset] = response.offsets
        return rows

    def _check_topics(self) -> None:
        """Raise UnknownTopicError for a topic that is in none of the broker groups."""
        missing = [m.missing for g, m in self._memberships.items() if g in self._groups.all]
        lost = set(self.topics).intersection(*missing) if missing else set()
        if lost:
            raise unknown_topic(min(lost))

    async def _share(self, group: BrokerGroup, ours: Sequence[Queue], deadline: Deadline) -> None:
        """Give up the queues of a broker group that moved to others, and take over new ones."""
        others = self._fetchers.keys() - ours
        lost = [q for q in self._fetchers if q in others and q.broker_group == group.name]
        for queue in lost:
            self._handed[queue], self._leaving[queue] = self._position(queue), None
        await self._stop_fetching(lost, keeps_hand=True)
        # Also those of a call that failed: their offset is stored before others begin with them.
        lost = [queue for queue in self._leaving if queue.broker_group == group.name]
        await self.in_hand.wait_for(lost, self._membership(group).interval_ms)
        async with self._storing[group.name]:
            processed = self._processed()
            if lost and self.auto_commit:
                with self._warned():
                    offsets = {queue: processed[queue] for queue in lost}
                    await self._commit(group, offsets, deadline)
            for queue in lost:
                self._leaving.pop(queue, None)
                self._stored.pop(queue, None)
            self.in_hand.drop(lost)  # It comes again.
            self.moves.forget(lost)
        gained = [queue for queue in ours if queue not in self._fetchers]
        if gained:
            begun = await self._first_offsets(group, gained, deadline)
            for queue, offset in begun.items():
                self._fetch(queue, offset)

    async def _first_offsets(
        self, group: BrokerGroup, queues: Sequence[Queue], deadline: Deadline
    ) -> dict[Queue, int]:
        """Return the stored offsets, or the start position for queues without one."""
        begins: dict[Queue, Known] = {}
        if self._local is not None:
            own = self._local.offsets
            begins = {queue: Known(own[queue]) for queue in queues if queue in own}
        else:
            for row in await self._fetch_stored(group, queues, deadline):
                begins[Queue(row.topic, row.queue_id, group.name)] = Known.of(row)
        self._note_known(begins)
        stored = {queue: one.offset for queue, one in begins.items() if one.offset >= 0}
        new = [queue for queue in queues if queue not in stored]
        if not new:
            return stored
        reading = Reading(self._options.freshness, deadline)
        returned = [queue for queue in new if queue.topic.startswith(RETRY_PREFIX)]
        others = [queue for queue in new if queue not in returned]
        begun = await self._starts.offsets(self._reads, others, reading)
        if begun and not self._starts.is_first:
            # A member that takes one over before its first message is processed begins there, too.
            await self._store(group, begun, deadline)
        # Every message of a retry topic is for this group, also if it starts at the end of topics.
        begun |= await self._reads.positions(returned, FIRST, reading)
        return {**stored, **begun}


async def _all(stores: Iterable[Awaitable[None]]) -> None:
    """Await all, and raise the first error."""
    results = await asyncio.gather(*stores, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise beside(result, results)
