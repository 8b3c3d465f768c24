"""Offsets of a consumer group, stored with the outputs made of the messages: exactly once.

Owns the condition and the order: the consumer states the offset that it expects to be stored, and
the batch enters the log only if that offset is stored, or will be by the entries before it in the
log. So of two consumers that have read the same messages one is refused, with its outputs. Must not
know how outputs are made. Changes of offsets without a condition are known from `offset_moves`:
while one is under way, the offset that it will store is unknown, and the batch is refused.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from node.broker.append.attached import AttachedCommands, OnDecided
from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Produce, Refused
from node.broker.append.repeats import asked_digest, stored_rows
from node.broker.core.context import Context
from node.broker.core.offset_moves import OffsetKey, commit_command
from node.broker.groups.members import Members
from node.errors.common import BadRequestError, BusyError, LimitReachedError
from node.errors.transactions import OffsetConflictError
from node.runtime.background import BackgroundTasks
from node.state.appends import Prepared
from node.state.tables.moved_offsets import MovedOffsetsTable
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from quorumlog.pb.transaction_pb2 import (
    CommitConsumedRequest,
    CommitConsumedResponse,
    ConsumedOffsets,
)
from store import format as fmt

_NOT_SET: Final = -1


class OffsetsUnderWay:
    """The offsets that entries under way store under a condition, of one term: see `end`."""

    def __init__(
        self, context: Context, produce: Produce, own_appends: OwnAppends, members: Members
    ) -> None:
        self._context: Final = context
        self._members = members
        self._produce = produce
        self._own_appends = own_appends
        self._coming: dict[OffsetKey, deque[int]] = {}
        """Offsets that entries under way will store, in the order of the log."""
        self._tasks = BackgroundTasks("a commit of consumed offsets failed", Refused)

    # --- Calls ---

    def append(self, request: AppendRequest) -> "asyncio.Future[AppendResponse]":
        """Store a batch and the offsets behind it, or neither.

        No error is raised here: the future fails, as that of `Produce.append`, and with
        OffsetConflictError when another consumer has moved an offset.
        """
        try:
            self._look(request.consumed)
        except Refused as error:
            return self._produce.refuse(error)
        refusal: Exception | None = None
        try:
            self._check_group(request.consumed)
        except Refused as error:
            refusal = error

        def check(_prepared: Prepared) -> OnDecided:
            if refusal is not None:  # Only here: the batch is no repeat of a stored one.
                raise refusal
            entered = ExitStack()
            entered.enter_context(self._noted(request.consumed))
            return lambda _committed: entered.close()

        command = commit_command(request.consumed.group, request.consumed.offsets)
        attached_commands = AttachedCommands(
            self._own_appends.encode([command]),
            1,
            check=check,
            asked=asked_digest(request.consumed.group, stored_rows(request.consumed.offsets)),
        )
        return self._produce.append(request, attached_commands)

    async def commit_consumed(self, request: CommitConsumedRequest) -> CommitConsumedResponse:
        """Store offsets alone, under the same condition. Errors as `append`."""
        self._context.check_cluster(request.cluster_id)
        self._look(request.consumed)
        self._check_group(request.consumed)
        index = await self._context.decided(self._tasks.run(self._write(request.consumed)))
        return CommitConsumedResponse(index=index)

    async def _write(self, consumed: ConsumedOffsets) -> int:
        command = commit_command(consumed.group, consumed.offsets)
        with self._noted(consumed):
            # The entry is written before anything else can happen, so the condition still holds.
            written = await self._own_appends.write(b"", [command], has_noted=True)
        return written.index

    # --- The condition ---

    def _look(self, consumed: ConsumedOffsets) -> None:
        """Check what does not depend on the state."""
        context = self._context
        context.check_name("group", consumed.group)
        context.check_leads()
        context.check_rows("consumed", consumed.offsets)
        for row in consumed.offsets:
            if row.offset < max(0, row.expected):
                expected = f"{max(0, row.expected)} or more"
                raise BadRequestError("offset", expected, str(row.offset))

    def _check_group(self, consumed: ConsumedOffsets) -> None:
        """Check that the group divides its queues, and that the caller may make its offsets."""
        self._members.check_sharing(consumed.group, self._context.clock_ms())
        queues = [(row.topic, row.queue_id) for row in consumed.offsets]
        self._context.makers.check_offsets(consumed.group, queues)

    @contextmanager
    def _noted(self, consumed: ConsumedOffsets) -> Iterator[None]:
        """Compare with the offsets stored and under way, and note these as under way until they are
        decided or not written: only then others may come before.

        Raises OffsetConflictError, BusyError, LimitReachedError, UnknownTopicError,
        UnknownQueueError.
        """
        moves, group = self._context.moves, consumed.group
        if moves.deleted_groups[group]:
            raise BusyError(f"deletions of group {group}", 1, 1)
        new_count = 0
        moved = self._context.state.table(MovedOffsetsTable)
        for row in consumed.offsets:
            # How far an import is counts in messages of its source.
            is_own = not group.startswith(fmt.IMPORT_GROUP_PREFIX)
            self._context.check_offset(row.topic, row.queue_id, row.offset, has_end=is_own)
            key = (group, row.topic, row.queue_id)
            if moves.deleted_topics[row.topic]:
                raise BusyError(f"deletions of topic {row.topic}", 1, 1)
            if moves.offsets[key]:
                raise BusyError(f"commits of {row.topic}/{row.queue_id} by {group}", 1, 1)
            coming = self._coming.get(key)
            newest = coming[-1] if coming else self._stored(key)
            new_count += newest == _NOT_SET
            move = moved.of(*key)
            is_moved = row.HasField("move") and move is not None and move.is_news(row.move)
            if newest != row.expected or is_moved:
                raise OffsetConflictError(group, row.topic, row.queue_id, row.expected, newest)
        if new_count:
            self._check_room(group, new_count)
        table = self._coming
        rows = [((group, row.topic, row.queue_id), row.offset) for row in consumed.offsets]
        for key, offset in rows:
            table.setdefault(key, deque()).append(offset)
        try:
            yield
        finally:
            for key, offset in rows:
                table[key].remove(offset)  # Of equal ones any: they only grow.
                if not table[key]:
                    del table[key]

    def _stored(self, key: OffsetKey) -> int:
        group, topic, queue_id = key
        return self._context.state.groups.get(group, {}).get(topic, {}).get(queue_id, _NOT_SET)

    def _check_room(self, group: str, new_count: int) -> None:
        """Raise LimitReachedError if the state would, with everything under way applied.

        A later command lies behind in the log and is refused there. So no commit of an entry whose
        outputs are visible is ever refused.
        """
        state, moves, limits = self._context.state, self._context.moves, self._context.limits
        coming = [
            key
            for key in self._coming.keys() | moves.offsets.keys()
            if self._stored(key) == _NOT_SET
        ]
        groups = {key[0] for key in coming} | moves.groups.keys() | {group}
        count = len(state.groups) + sum(name not in state.groups for name in groups)
        if count > limits.group_count_max:
            raise LimitReachedError("groups", count, limits.group_count_max)
        count = sum(map(len, state.groups.get(group, {}).values())) + new_count
        count += sum(key[0] == group for key in coming)
        if count > limits.group_offset_count_max:
            raise LimitReachedError("offsets of a group", count, limits.group_offset_count_max)
        count = state.offset_count + len(coming) + new_count
        if count > limits.offset_count_max:
            raise LimitReachedError("offsets of all groups", count, limits.offset_count_max)

    def end(self) -> None:
        """Forget what was under way: the next leader's log decides it."""
        self._coming = {}
