"""Messages that a consumer could not process: back to its group after a pause, or to dead letters.

Owns what such a call must look like and what it writes. One entry holds the moved messages, the
topics they need, and the offsets that the consumer stores with them: the next leader finds all of
it or nothing. A message is read from the log and never taken from the caller. The pause is the work
of delayed messages (`records.delayed`); `produce` owns a batch's way into the log.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from node.broker.append.attached import AttachedCommands, OnDecided
from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Produce
from node.broker.append.repeats import asked_digest, stored_rows
from node.broker.core.context import Context
from node.broker.core.offset_moves import commit_command
from node.broker.groups.members import Members
from node.broker.groups.settings import check_reader, settings_of
from node.broker.records.delayed import held, level_delay_ms, scheduled
from node.broker.records.retry import dead_letter, given_back, times_of
from node.errors.common import BadRequestError, ReservedTopicError
from node.errors.groups import GroupOrderlyError, MessageExpiredError
from node.runtime.accounts import caller
from node.state.appends import Committed, Prepared
from node.state.state import PERMISSION_ALL
from node.state.tables.group_settings import SubscriptionSettings
from node.users.calling import may, require
from node.users.rules import Action, ResourceKind
from quorumlog.pb import common_pb2
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from quorumlog.pb.retry_pb2 import RetryLaterRequest, RetryLaterResponse, RetryMessage
from quorumlog.pb.state_pb2 import Command
from store import format as fmt
from store.derived.queues.pull import PullStatus
from store.errors import LimitExceededError
from store.record.edit import start_of
from store.record.message import record_layout
from store.record.stamp import QueueKey
from store.record.topic_names import dead_letter_topic, is_reserved, retry_topic

_FIRST_LEVEL: Final = 3
"""The first pause is that of delay level 3, 10 s: RocketMQ's 3 + reconsumeTimes."""
_ROOM_SIZE_BYTES: Final = 1_024
"""Room that the entry of the delivery needs beside the message."""
QUEUE: Final = 0
"""The only queue of a retry or dead-letter topic."""


class Retry:
    """The call that gives messages back. One per broker."""

    def __init__(
        self, context: Context, produce: Produce, own_appends: OwnAppends, members: Members
    ) -> None:
        self._context: Final = context
        self._produce = produce
        self._own_appends = own_appends
        self._members = members
        self.retried_total = self.dead_total = 0

    async def retry_later(self, request: RetryLaterRequest) -> RetryLaterResponse:
        """Move messages to the retry topic or to the dead letters, and store offsets with them.

        A repeated call (same producer and sequence) gets the first answer. Raises
        SequenceReusedError for such a call that asks another thing,
        GroupDisabledError, GroupOrderlyError, TopicForbiddenError, MessageExpiredError,
        GroupKindError for offsets of a group that is read by pop,
        BadRequestError, the errors of `Produce.append` and, for a group or offset that is new,
        those of `OwnAppends.submit`.
        """
        context, group, messages = self._context, request.group, request.messages
        context.check_call(request.cluster_id, "group", group)
        context.check_count("messages", len(messages), context.limits.retry_batch_count_max, 1)
        context.check_rows("offsets", request.offsets, least=0)
        wanted = _asked(request)
        before = self._produce.known(request.producer_id, request.sequence, len(messages), wanted)
        if before is not None:
            return self._answer(await before)
        if request.offsets:
            self._members.check_sharing(group, context.clock_ms())
        settings = settings_of(context, group)
        if settings.is_orderly:
            raise GroupOrderlyError(group)
        count_max = settings.retry_count_max
        if request.attempt_count_max:
            count_max = min(count_max, request.attempt_count_max - 1)
        now_unix_ms = self._context.unix_ms()
        records, queues, size_bytes = [], set(), 0
        due_unix_ms = []
        for message in messages:
            record = self._record(group, message)
            is_dead = message.is_dead or times_of(record) >= count_max
            moved = b""
            if not is_dead:
                # Without room for where it came from a message cannot be tried again. It must not
                # hold up its queue.
                with suppress(LimitExceededError):
                    moved = given_back(record, group, is_dead=False)
                    moved = _held(moved, message, settings, times_of(record), now_unix_ms)
            if not moved:
                moved = dead_letter(record, group)
            else:
                due_unix_ms.append(held(moved).due_unix_ms)
                limit = self._own_appends.entry_size_bytes_max - _ROOM_SIZE_BYTES
                if len(moved) > limit:
                    raise LimitExceededError("message to be tried again", len(moved), limit)
            records.append(moved)
            queues.add(_queue_of(moved))
            size_bytes += len(moved)
            if size_bytes > self._produce.own_size_bytes_max:  # Read no more.
                raise LimitExceededError("batch", size_bytes, self._produce.own_size_bytes_max)
        await self._make_room(request)
        commands = self._topics_of(group)
        if request.offsets:
            commands.append(commit_command(group, request.offsets))
        append = AppendRequest(
            records=b"".join(records),
            record_count=len(records),
            producer_id=request.producer_id,
            sequence=request.sequence,
            cluster_id=request.cluster_id,
        )
        attached_commands = self._attached_commands(
            commands, frozenset(queues), due_unix_ms
        )._replace(asked=wanted)
        return self._answer(await self._produce.append(append, attached_commands))

    def check_copy(self, topic: str) -> bool:
        """Return whether the running call may publish to the topic that a copy is of, in the
        consumer's word: else the copy is never sent to it. Raises ReservedTopicError, and
        ForbiddenError for one that it may not read."""
        if is_reserved(topic):
            raise ReservedTopicError(topic)
        require(Action.SUB, ResourceKind.TOPIC, topic)
        return may(Action.PUB, ResourceKind.TOPIC, topic)

    async def take_copy(
        self, group: str, record: bytes, *, is_dead: bool, level: int
    ) -> AppendResponse:
        """Append a message of the group's retry topic that a consumer copied itself, held for the
        delay of a level, or make it a dead letter. Errors as `retry_later`."""
        context, due_unix_ms = self._context, list[int]()
        context.check_name("group", group)
        context.check_leads()
        if is_dead:
            moved = dead_letter(record, group)
        elif level > 0:
            due_unix_ms.append(self._context.unix_ms() + level_delay_ms(level))
            moved = scheduled(record, due_unix_ms[0], level=level)
        else:
            moved = record
        limit = self._own_appends.entry_size_bytes_max - _ROOM_SIZE_BYTES
        if len(moved) > limit:
            raise LimitExceededError("message to be tried again", len(moved), limit)
        await self._make_room(RetryLaterRequest(group=group))
        queues = frozenset({_queue_of(moved)})
        attached_commands = self._attached_commands(self._topics_of(group), queues, due_unix_ms)
        append = AppendRequest(records=moved, record_count=1)
        return await self._produce.append(append, attached_commands)

    def _record(self, group: str, message: RetryMessage) -> bytes:
        context, topic = self._context, message.topic
        if is_reserved(topic) and topic != retry_topic(group):
            raise ReservedTopicError(topic)
        check_reader(context, group, topic)
        longest_ms = context.limits.retry_delay_ms_max
        if message.delay_ms > longest_ms:
            raise BadRequestError("delay_ms", f"at most {longest_ms}", str(message.delay_ms))
        return read_record(context, topic, message.queue_id, message.offset)

    # --- The parts of an entry ---

    def _attached_commands(
        self, commands: list[Command], queues: frozenset[QueueKey], due_unix_ms: Sequence[int]
    ) -> AttachedCommands:
        """Return the commands of an entry, attached so that its offsets are noted meanwhile, and
        the messages that are held until due times."""
        context, account = self._context, caller()

        def enter(_prepared: Prepared) -> OnDecided:
            release = context.makers.hold_delayed(account, due_unix_ms, context.unix_ms())
            moves = context.moves.begin(commands)

            def leave(committed: Committed | None) -> None:
                context.moves.end(moves)
                release(committed)

            return leave

        encoded = self._own_appends.encode(commands)
        return AttachedCommands(encoded, len(commands), queues, enter, moves_stored=True)

    async def _make_room(self, request: RetryLaterRequest) -> None:
        """Create the group, each offset and a retry topic with an origin before the entry.

        Groups and offsets are limited, and the commands of an entry must not be refused for a limit
        when the messages have moved. A new offset is first stored as that of the first message that
        is given back, or lower: it promises nothing yet.
        """
        group = request.group
        stored = self._context.state.groups.get(group)
        new = []
        for row in request.offsets:
            self._context.check_offset(row.topic, row.queue_id, row.offset)
            if stored is None or row.queue_id not in stored.get(row.topic, ()):
                given = (
                    message.offset
                    for message in request.messages
                    if (message.topic, message.queue_id) == (row.topic, row.queue_id)
                )
                lowest = min((row.offset, *given))
                first = GroupOffset(topic=row.topic, queue_id=row.queue_id, offset=lowest)
                first.newest_known = -1  # None is stored: it moves no group.
                new.append(first)
        if new:
            await self._own_appends.submit(commit_command(group, new))
        elif stored is None:
            settings = common_pb2.GroupSettings()
            put = Command.PutGroup(group=group, settings=settings)
            await self._own_appends.submit(Command(put_group=put))
        if retry_topic(group) not in self._context.state.topics:
            create = self._context.create_command(_topic(retry_topic(group)))
            if create.HasField("recreate_topic"):  # Its records come behind it.
                await self._own_appends.submit(create)

    def _topics_of(self, group: str) -> list[Command]:
        topics = self._context.state.topics
        return [
            Command(put_topic=_topic(name))
            for name in (retry_topic(group), dead_letter_topic(group))
            if name not in topics
        ]

    def _answer(self, receipt: AppendResponse) -> RetryLaterResponse:
        dead_count = sum(
            queue.count
            for queue in receipt.queues
            if queue.topic.startswith(fmt.DEAD_LETTER_TOPIC_PREFIX)
        )
        retried_count = receipt.record_count - dead_count
        if not receipt.is_duplicate:
            self.dead_total += dead_count
            self.retried_total += retried_count
        return RetryLaterResponse(
            index=receipt.index,
            retried_count=retried_count,
            dead_count=dead_count,
            is_duplicate=receipt.is_duplicate,
        )


def read_record(context: Context, topic: str, queue_id: int, offset: int) -> bytes:
    """Return the record at an offset. Raises MessageExpiredError, UnknownTopicError and the like,
    CorruptionError."""
    context.readable(topic, queue_id)
    if offset >= 0:
        pulled = context.store.pull(topic, queue_id, offset, max_count=1)
        if pulled.status is PullStatus.FOUND:
            return pulled.data
    lo, hi = context.store.queue_range(topic, queue_id)
    raise MessageExpiredError(topic, queue_id, offset, lo, hi)


def _held(
    record: bytes,
    message: RetryMessage,
    settings: SubscriptionSettings,
    times: int,
    now_unix_ms: int,
) -> bytes:
    """Return a message of the retry topic, held until it is due."""
    if message.delay_ms:
        return scheduled(record, now_unix_ms + message.delay_ms)
    delays = settings.retry_delays_ms
    if delays:
        return scheduled(record, now_unix_ms + delays[min(times, len(delays) - 1)])
    level = _FIRST_LEVEL + times
    return scheduled(record, now_unix_ms + level_delay_ms(level), level=level)


def _asked(request: RetryLaterRequest) -> bytes:
    given = [(m.topic, m.queue_id, m.offset, m.delay_ms, m.is_dead) for m in request.messages]
    offsets = stored_rows(request.offsets)
    return asked_digest(request.group, request.attempt_count_max, given, offsets)


def _queue_of(record: bytes) -> QueueKey:
    layout = record_layout(memoryview(record), 0)
    queue_id = fmt.INT32.unpack_from(record, start_of(layout) + fmt.QUEUE_ID_AT)[0]
    return record[layout.topic_at : layout.topic_hi], queue_id


def _topic(name: str) -> Command.PutTopic:
    return Command.PutTopic(topic=name, queue_count=1, permission=PERMISSION_ALL)
