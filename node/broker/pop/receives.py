"""Receives: from the wish for messages to deliveries that are committed.

Owns the calls' limits, the choice and order of queues, and the answers. One take is under way for a
window at a time: the next one begins where it ended. The answer to a take follows the state after
it, so a message that was acknowledged or reset meanwhile is not handed out.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from node.broker.append.produce import Refused
from node.broker.core.context import DAMAGE
from node.broker.groups.member import comparable
from node.broker.groups.members import Consumer, Members
from node.broker.groups.settings import check_reader, settings_of
from node.broker.pop.handles import PopHandle, columns, encode_handle
from node.broker.pop.shared import PopShared, UnderWay
from node.broker.pop.take import EFFORT_MAX, Choice, ChosenMessage, ReceiveWish, Room
from node.broker.pop.waiting_receives import ANY_QUEUE
from node.broker.read.filters import SqlFilter, TagFilter
from node.broker.read.outgoing import Outgoing
from node.broker.records.delayed import split_records
from node.errors.common import (
    AppendTimeoutError,
    BadRequestError,
    TopicNotReadableError,
    UnknownQueueError,
)
from node.errors.pop import PopConflictError, QueueHeldError
from node.runtime.accounts import Account, Kind, caller
from node.state.state import PERMISSION_READ
from node.state.tables.pop import NO_OFFSET, WindowKey
from node.users.calling import check_debt
from quorumlog.pb.pop_pb2 import PopHide, PopTake, ReceiveRequest, ReceiveResponse
from quorumlog.pb.state_pb2 import Command
from raft.messages import Index
from store.derived.queues.pull import PullResult, PullStatus
from store.errors import CorruptionError, DerivedFileError

_CONFLICTS_MAX: Final = 8
"""Takes in a row that an operator's reset crossed, before the caller gets PopConflictError."""
_BUSY_S: Final = 1.0


class _Receive(NamedTuple):
    """One call, checked and with limits put to it."""

    group: str
    topic: str
    queue_id: int
    max_count: int
    invisible_ms: int
    wish: ReceiveWish
    attempt_id: str
    account: Account | None
    client_id: str
    """Empty: the caller is no member."""


class _Taken(NamedTuple):
    key: WindowKey
    given: ChosenMessage


class Receives:
    """Answers receives. One per broker."""

    def __init__(self, shared: PopShared, members: Members, outgoing: Outgoing) -> None:
        self._shared: Final = shared
        self._members, self._outgoing = members, outgoing
        self._context: Final = shared.context
        self._queue_rotation = 0
        self._reserved_count = 0
        """New messages of takes under way."""
        self._last_generation = 0
        self.receives_total = self.delivered_total = self.redelivered_total = 0
        self.full_total = 0
        """Looks at a queue that gave nothing new because too much of it is in flight."""

    async def receive(self, request: ReceiveRequest) -> ReceiveResponse:
        """Take messages; with `wait_ms` wait until there is one.

        Raises UnknownTopicError, UnknownQueueError, BadRequestError, LimitReachedError,
        QueueHeldError when no other queue was asked for, BusyError when the caller's address has
        its share of messages in flight, and the errors of `OwnAppends.submit`; after
        one with an unknown outcome the messages may be in flight until their time is over, unless
        the call is repeated with the same attempt id. A caller that is cancelled takes nothing, or
        its messages are given back.
        """
        check_debt()
        if request.sql:
            await self._context.turn.next()
        receive = self._checked(request)
        self.receives_total += 1
        wait_ms = min(request.wait_ms, self._context.limits.pull_wait_ms_max)
        if request.client_id:
            self._note_member(receive, request, wait_ms)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        busy_deadline = max(deadline, loop.time() + _BUSY_S)
        hint, conflicts = None, 0
        while True:
            unsettled_ms = self._members.unsettled_ms(self._context.clock_ms())
            if unsettled_ms:
                left_s = deadline - loop.time()
                if left_s <= 0:
                    # An empty answer would mean the end, or that a leader let the caller in.
                    if not wait_ms or request.is_new:
                        self._members.check_settled(receive.group, self._context.clock_ms())
                    return self._answer(receive, [], self._shared.unix_ms(), [])
                await asyncio.sleep(min(left_s, unsettled_ms / 1000))
                self._context.check_leads()
                if request.client_id:  # Another one may have come that the old leader let in.
                    self._note_member(receive, request, 0)
                continue
            queue_ids = self._queue_ids(receive, hint)
            repeated = self._attempt(receive, queue_ids) if receive.attempt_id else []
            if repeated:
                return await self._take_again(receive, repeated)
            choices, is_busy = self._choose(receive, queue_ids)
            if any(choice.is_something for choice in choices):
                try:
                    response = await self._take(receive, choices)
                except PopConflictError:
                    conflicts += 1
                    if conflicts == _CONFLICTS_MAX:
                        raise
                    continue
                if response.deliveries or loop.time() >= busy_deadline:
                    return response
                continue
            if hint is not None:  # Other queues may have grown after this one's wake-up.
                hint = None
                continue
            reasons, topic = self._shared.held.reasons, receive.topic
            if reasons and all((topic, queue_id) in reasons for queue_id in queue_ids):
                # There is nothing to wait for.
                raise QueueHeldError(topic, queue_ids[0], reasons[topic, queue_ids[0]])
            if receive.account is not None and any(choice.is_full for choice in choices):
                receive.account.address.check(Kind.DELIVERIES)
            # A call without a wait still waits for a take under way, which may leave something.
            left_s = (busy_deadline if is_busy else deadline) - loop.time()
            if left_s <= 0:
                return self._answer(receive, [], self._shared.unix_ms(), choices)
            hint = await self._shared.lines.wait(
                receive.group, receive.topic, receive.queue_id, left_s
            )

    # --- The request ---

    def _checked(self, request: ReceiveRequest) -> _Receive:
        context, limits = self._context, self._context.limits
        context.check_call(request.cluster_id, "group", request.group)
        tags = request.tags
        if tags and request.sql:
            raise BadRequestError("sql", "tags or an expression", "both")
        if request.queue_id < ANY_QUEUE:
            raise BadRequestError("queue_id", "-1 or more", str(request.queue_id))
        if request.invisible_ms > limits.pop_invisible_ms_max:
            expected = f"at most {limits.pop_invisible_ms_max}"
            raise BadRequestError("invisible_ms", expected, str(request.invisible_ms))
        length, limit = len(request.attempt_id), limits.pop_attempt_id_size_characters_max
        if length > limit:
            raise BadRequestError("attempt_id", f"at most {limit} characters", str(length))
        is_orderly = settings_of(context, request.group).is_orderly
        kept: TagFilter | SqlFilter | None = SqlFilter(request.sql) if request.sql else None
        if tags:
            kept = TagFilter(tags, limits.pull_tag_count_max)
        wish = ReceiveWish(
            request.is_fifo or is_orderly,
            kept,
            request.start == ReceiveRequest.START_END,
            # A consumer of an orderly group handles an answer in its order.
            request.is_fifo and request.is_one_of_each and not is_orderly,
        )
        return _Receive(
            request.group,
            request.topic,
            request.queue_id,
            min(request.max_count or limits.pop_receive_count_max, limits.pop_receive_count_max),
            request.invisible_ms or limits.pop_invisible_ms_default,
            wish,
            request.attempt_id,
            caller(),
            request.client_id,
        )

    def _note_member(self, receive: _Receive, request: ReceiveRequest, wait_ms: int) -> None:
        """Raises UnknownTopicError, BadRequestError, and as `Members.receive`."""
        self._context.check_client(request.client_id)
        self._context.topic(receive.topic)
        self._members.receive(
            receive.group,
            Consumer(request.client_id, request.instance, request.is_new),
            receive.topic,
            comparable(request.tags, request.sql),
            wait_ms,
            receive.invisible_ms,
        )

    def _queue_ids(self, receive: _Receive, hint: int | None) -> Sequence[int]:
        """Return the queues to look at, another one first each time.

        Checked again after each wait: the topic, or this node's right to answer, may be gone, and
        members that share the queues may have come.
        """
        context = self._context
        context.check_leads()
        self._members.check_popping(receive.group, context.clock_ms())
        topic = context.topic(receive.topic)
        if not topic.permission & PERMISSION_READ:
            raise TopicNotReadableError(receive.topic, topic.permission)
        check_reader(context, receive.group, receive.topic)
        count = topic.queue_count
        if receive.queue_id >= count:
            raise UnknownQueueError(receive.topic, receive.queue_id, count)
        if hint is not None and hint < count:
            return (hint,)
        if receive.queue_id != ANY_QUEUE:
            return (receive.queue_id,)
        self._queue_rotation += 1
        first = self._queue_rotation % count
        return (*range(first, count), *range(first))

    # --- Choosing ---

    def _choose(self, receive: _Receive, queue_ids: Sequence[int]) -> tuple[list[Choice], bool]:
        """Choose from queues until there is enough; the others are not looked at.

        Return also whether a take is under way for one of them.
        """
        shared, context, limits = self._shared, self._context, self._context.limits
        state, wish = context.state, self._wish(receive)
        if wish.starts_at_end:
            every = range(context.topic(receive.topic).queue_count)
            keys = ((receive.group, receive.topic, queue_id) for queue_id in every)
            if any(shared.table.next_offset(state, key) != NO_OFFSET for key in keys):
                # A queue without an offset came after the group's start.
                wish = wish._replace(starts_at_end=False)
            else:
                queue_ids = every  # All begin now.
        in_flight_count = shared.table.in_flight_count + self._reserved_count
        left_count = limits.pop_in_flight_count_max - in_flight_count
        account, takers = receive.account, shared.takers
        if account is not None:
            own_count = takers.room(account, shared.table, wish.now_unix_ms)
            left_count = min(left_count, own_count)
        room = Room(receive.max_count, limits.pull_size_bytes_max, left_count, EFFORT_MAX)
        choices, is_busy = [], False
        offsets = state.groups.get(receive.group, {}).get(receive.topic, {})
        for queue_id in queue_ids:
            key = (receive.group, receive.topic, queue_id)
            if room.is_used and not wish.starts_at_end:
                break
            if self._is_read(key, wish, offsets):
                continue
            if not wish.starts_at_end and key[1:] in shared.held.reasons:
                continue  # Else its present end is where the group begins.
            if key in shared.under_way.windows:
                is_busy = True  # The end of that take offers the queue.
                continue
            here = room
            if account is not None:
                own_count = takers.room_of(account, shared.table, key)
                here = room._replace(in_flight_count=min(room.in_flight_count, own_count))
            choice = self._chosen(key, wish, here)
            if choice is None:
                continue
            choices.append(choice)
            if choice.dead:
                shared.deadlines.note(key, wish.now_unix_ms)
            if choice.gone:
                gone = [PopHandle(queue_id, at, item.generation) for at, item in choice.gone]
                shared.run(shared.settle_gone(key, gone))
            self.full_total += choice.is_full
            room = room.without(choice)
        return choices, is_busy

    def _wish(self, receive: _Receive) -> ReceiveWish:
        count_max = settings_of(self._context, receive.group).retry_count_max + 1
        now_unix_ms = self._shared.unix_ms()
        return receive.wish._replace(delivery_count_max=count_max, now_unix_ms=now_unix_ms)

    def _chosen(self, key: WindowKey, wish: ReceiveWish, room: Room) -> Choice | None:
        """Choose from one queue. None: it is damaged there, and now held for a moment."""
        shared = self._shared
        damage: CorruptionError | DerivedFileError
        state, is_ending = self._context.state, shared.under_way.is_ending
        # Messages before the damage are handed out one by one.
        for count in (room.message_count, 1):
            try:
                return shared.taking.choose(
                    state, key, wish, room._replace(message_count=count), is_ending
                )
            except DAMAGE as error:
                damage = error
        shared.held.hold(key[1], key[2], damage)
        return None

    def _is_read(self, key: WindowKey, wish: ReceiveWish, offsets: Mapping[int, int]) -> bool:
        """Whether a queue has nothing in flight and nothing new: a quick answer for most queues."""
        if key in self._shared.table.windows:
            return False
        _, hi = self._context.store.queue_range(key[1], key[2])
        offset = offsets.get(key[2])
        return offset == hi or (offset is None and not hi and not wish.starts_at_end)

    # --- Taking ---

    async def _take(self, receive: _Receive, choices: list[Choice]) -> ReceiveResponse:
        """Commit that messages are in flight, and answer with them."""
        shared = self._shared
        choices = [choice for choice in choices if choice.is_something]
        take = PopTake(
            group=receive.group,
            topic=receive.topic,
            generation=self._next_generation(),
            visible_unix_ms=shared.unix_ms() + receive.invisible_ms,
            attempt_id=receive.attempt_id,
        )
        for choice in choices:
            _add_queue(take, choice)
        new_count = sum(len(choice.new) + len(choice.waiting) for choice in choices)
        # Submit now, and not when the task begins: what others submit next comes behind it.
        committed = shared.own_appends.submit_nowait(Command(pop_take=take))
        keys, under_way = [choice.key for choice in choices], shared.under_way
        under_way.windows.update(keys)
        self._reserve(receive.account, new_count)
        work = asyncio.get_running_loop().create_task(
            self._commit(receive.account, take, committed, keys, new_count, under_way)
        )
        try:
            await self._context.decided(work)
        except (asyncio.CancelledError, AppendTimeoutError):
            shared.run(self._give_back(work, take))
            raise
        table = shared.table  # As it is now: a snapshot may have replaced it.
        taken = [
            _Taken(choice.key, given)
            for choice in choices
            for given in (*choice.again, *choice.new)
            if table.is_newest(choice.key, given.offset, take.generation)
        ]
        self.delivered_total += len(taken)
        size_bytes = sum(len(one.given.record) for one in taken)
        self._outgoing.note(receive.topic, len(taken), size_bytes)
        self.redelivered_total += sum(one.given.delivery_count > 1 for one in taken)
        taken = [_Taken(key, given._replace(generation=take.generation)) for key, given in taken]
        return self._answer(receive, taken, take.visible_unix_ms, choices)

    def _reserve(self, account: Account | None, count: int) -> None:
        """Keep room for new messages of takes under way, or give it back."""
        self._reserved_count += count
        if account is not None:
            account.address.hold(Kind.DELIVERIES, count)

    async def _commit(
        self,
        account: Account | None,
        take: PopTake,
        committed: "asyncio.Future[Index]",
        keys: list[WindowKey],
        new_count: int,
        under_way: UnderWay,
    ) -> None:
        shared = self._shared
        try:
            await committed  # Without a time limit: the take is under way.
            if under_way is shared.under_way:
                for queue in take.queues:
                    key = (take.group, take.topic, queue.queue_id)
                    given = (*queue.again_offsets, *queue.offsets, *queue.waiting_offsets)
                    shared.takers.taken(account, shared.table, key, given)
        finally:
            under_way.windows.end(keys)
            self._reserve(account, -new_count)
            for key in keys:
                shared.lines.offer(*key)
                if key in shared.table.windows:
                    shared.deadlines.note(key, take.visible_unix_ms)

    async def _give_back(self, work: "asyncio.Task[None]", take: PopTake) -> None:
        """Make the messages of a take visible at once: its caller has gone.

        Those that the same attempt was given again meanwhile are another caller's.
        """
        try:
            await work
        except Refused:
            return  # Not taken, or the outcome is unknown: then they stay invisible.
        left = [
            PopHandle(queue.queue_id, offset, take.generation)
            for queue in take.queues
            for offset in (*queue.again_offsets, *queue.offsets)
            if self._is_as_taken((take.group, take.topic, queue.queue_id), offset, take)
        ]
        hide = PopHide(
            group=take.group,
            topic=take.topic,
            visible_unix_ms=self._shared.unix_ms(),
            **columns(left),
        )
        if left:
            try:
                await self._shared.own_appends.submit(Command(pop_hide=hide))
            except Refused:
                return
            for queue in take.queues:
                key = (take.group, take.topic, queue.queue_id)
                self._shared.deadlines.note(key, hide.visible_unix_ms)
                self._shared.lines.offer(*key)

    def _next_generation(self) -> int:
        """Return a number that no delivery had: microseconds, pushed on if need be.

        The number grows within the state, and a new master that lacks the end of the old
        one's log uses other numbers than the old one.
        """
        newest = max(self._last_generation, self._shared.table.last_generation)
        self._last_generation = max(newest + 1, self._shared.unix_ms() * 1_000)
        return self._last_generation

    def _is_as_taken(self, key: WindowKey, offset: int, take: PopTake) -> bool:
        """Whether a message is as a take left it, and nothing is under way for it."""
        item = self._shared.table.in_flight(key, offset)
        if item is None or item.generation != take.generation:
            return False
        is_ending = self._shared.under_way.is_ending(key, offset)
        return item.visible_unix_ms == take.visible_unix_ms and not is_ending

    # --- The same again ---

    def _attempt(self, receive: _Receive, queue_ids: Sequence[int]) -> list[_Taken]:
        """Return the messages in flight that this very attempt was given before.

        Where its invisible time is over, another receive may hold the first message of a group by
        now: those behind it have to wait for that one.
        """
        windows, taken, wish = self._shared.table.windows, list[_Taken](), self._wish(receive)
        for queue_id in queue_ids:
            key = (receive.group, receive.topic, queue_id)
            window = windows.get(key)
            generation = None if window is None else window.attempts.get(receive.attempt_id)
            if window is None or generation is None or key in self._shared.under_way.windows:
                continue
            blocked: set[int] = set()
            for offset, item in window.items.items():
                group = item.message_group
                is_own = item.generation == generation and item.delivery_count
                is_free = group not in blocked or not wish.is_ordered(group)
                result = self._readable(key, offset) if is_own and is_free else None
                if result is None or result.status is not PullStatus.FOUND:
                    blocked.add(group)
                    continue
                record = next(split_records(result.data))
                given = ChosenMessage(offset, generation, item.delivery_count, group, record)
                taken.append(_Taken(key, given))
        return taken

    def _readable(self, key: WindowKey, offset: int) -> PullResult | None:
        """Read one message; None: it is damaged, and stays in flight until its time is over."""
        held = self._shared.held
        try:
            return self._shared.taking.read(key, offset, 1)
        except DAMAGE as error:
            if key[1:] not in held.reasons:
                held.hold(key[1], key[2], error)
            return None

    async def _take_again(self, receive: _Receive, taken: list[_Taken]) -> ReceiveResponse:
        """Repeat an earlier answer, and restart the invisible time of its messages."""
        shared = self._shared
        hide = PopHide(
            group=receive.group,
            topic=receive.topic,
            visible_unix_ms=shared.unix_ms() + receive.invisible_ms,
            **columns([PopHandle(key[2], one.offset, one.generation) for key, one in taken]),
        )
        with shared.under_way.messages.noted([(key, given.offset) for key, given in taken]):
            await shared.own_appends.submit(Command(pop_hide=hide))
        for key in {key for key, _ in taken}:
            shared.deadlines.note(key, hide.visible_unix_ms)
        table = shared.table
        taken = [t for t in taken if table.is_newest(t.key, t.given.offset, t.given.generation)]
        return self._answer(receive, taken, hide.visible_unix_ms, [])

    def _answer(
        self, receive: _Receive, taken: list[_Taken], visible_unix_ms: int, choices: list[Choice]
    ) -> ReceiveResponse:
        members, now_ms = self._members, self._context.clock_ms()
        response = ReceiveResponse(
            records=b"".join(given.record for _, given in taken),
            visible_unix_ms=visible_unix_ms,
            now_unix_ms=self._shared.unix_ms(),
            full_queue_count=sum(choice.is_full for choice in choices),
            warnings=members.warnings_of(receive.group, now_ms) if receive.client_id else (),
        )
        for key, given in taken:
            handle = PopHandle(key[2], given.offset, given.generation)
            response.deliveries.add(
                handle=encode_handle(receive.group, receive.topic, handle),
                delivery_count=given.delivery_count,
            )
        return response


def _add_queue(take: PopTake, choice: Choice) -> None:
    queue = take.queues.add(
        queue_id=choice.key[2],
        expected_offset=choice.expected_offset,
        next_offset=choice.next_offset,
    )
    for given in choice.again:
        queue.again_offsets.append(given.offset)
        queue.again_generations.append(given.generation)
    for given in choice.new:
        queue.offsets.append(given.offset)
        queue.message_groups.append(given.message_group)
    for offset, group in choice.waiting:
        queue.waiting_offsets.append(offset)
        queue.waiting_message_groups.append(group)
