"""Dead letters of a group: listed, and sent again to the topics that they came from, each once.

Owns what is under way; the letters sent before are replicated (`tables/dead_letters`). The mark
travels in one entry with the message, and a last look at both happens in the order of the log, so
two callers that send the same one, before and after a change of leaders, send it once.
"""

from typing import Final

from node.broker.append.attached import AttachedCommands, OnDecided
from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Produce
from node.broker.core.context import Context
from node.broker.records.retry import origin_topic, sent_again
from node.broker.retry.retry import QUEUE, read_record
from node.config.limits import COMMAND_SIZE_BYTES_MAX
from node.errors.common import BusyError, LimitReachedError, NodeError, UnknownGroupError
from node.errors.groups import AlreadyResentError, MessageExpiredError
from node.state.appends import Prepared
from node.state.tables.dead_letters import DeadLettersTable
from node.users.calling import may, require
from node.users.rules import Action, ResourceKind
from quorumlog.pb.log_pb2 import AppendRequest
from quorumlog.pb.retry_pb2 import (
    ListDeadLettersRequest,
    ListDeadLettersResponse,
    ResendDeadLettersRequest,
    ResendDeadLettersResponse,
)
from quorumlog.pb.state_pb2 import Command
from store.errors import LimitExceededError, StoreError
from store.record.topic_names import dead_letter_topic

_LIST_COUNT: Final = 64


class DeadLetters:
    """The calls about dead letters. One per broker."""

    def __init__(self, context: Context, produce: Produce, own_appends: OwnAppends) -> None:
        self._context: Final = context
        self._produce = produce
        self._own_appends = own_appends
        self._under_way: set[tuple[str, int]] = set()
        """Group and offset of letters whose entry is written and not decided."""
        self.resent_total = 0

    async def list_dead_letters(self, request: ListDeadLettersRequest) -> ListDeadLettersResponse:
        """Return dead letters from an offset on, and which of them were sent again.

        Raises UnknownGroupError, CorruptionError.
        """
        context, group = self._context, request.group
        context.check_leads()
        self._check_group(group)
        topic = dead_letter_topic(group)
        lo, hi = self._range(group)
        offset = max(request.offset, lo)
        limit = context.limits.pull_count_max
        count = min(request.max_count or _LIST_COUNT, limit)
        pulled = context.store.pull(topic, QUEUE, offset, max_count=count)
        marks = self._marks()
        next_offset = pulled.next_offset if pulled.record_count else offset
        return ListDeadLettersResponse(
            records=pulled.data,
            record_count=pulled.record_count,
            resent=[o for o in range(offset, next_offset) if marks.is_resent(group, o)],
            next_offset=next_offset,
            min_offset=lo,
            max_offset=hi,
        )

    async def resend_dead_letters(
        self, request: ResendDeadLettersRequest
    ) -> ResendDeadLettersResponse:
        """Put dead letters back into their topics; those sent before are left out.

        All or none, or `in_pieces`: then a letter that cannot go is named and keeps no other back,
        and the first ones that fit into one batch go. Raises UnknownGroupError, BusyError while
        another call sends one of them, and the errors of `Produce.append`; all or none
        MessageExpiredError and refusals of the topics, too. A user needs Pub on the topics, or
        Update as an operator has it.
        """
        context, group = self._context, request.group
        context.check_cluster(request.cluster_id)
        context.check_leads()
        self._check_group(group)
        limit = context.limits.retry_batch_count_max
        context.check_count("offsets", len(request.offsets), limit, 1)
        offsets = sorted(set(request.offsets))
        topic, marks = dead_letter_topic(group), self._marks()
        done = [offset for offset in offsets if marks.is_resent(group, offset)]
        left = [offset for offset in offsets if offset not in done]
        response = ResendDeadLettersResponse(index=-1, resent=left, already_resent=done)
        if not left:
            return response
        lo, hi = self._range(group)
        mark = Command.MarkResent(group=group, offsets=left, min_offset=lo)
        limit = self._produce.own_size_bytes_max
        if request.in_pieces:  # The record of the mark is a part of the batch.
            limit -= COMMAND_SIZE_BYTES_MAX + mark.ByteSize()
        records, sent, size_bytes = list[bytes](), list[int](), 0
        for offset in left:
            letter = b""
            try:
                if offset < lo:
                    raise MessageExpiredError(topic, QUEUE, offset, lo, hi)
                letter = read_record(context, topic, QUEUE, offset)
                origin = origin_topic(letter)
                if not may(Action.UPDATE, ResourceKind.TOPIC, origin):
                    require(Action.PUB, ResourceKind.TOPIC, origin)
                queue_id = offset % context.topic(origin).queue_count
                self._produce.check_queue((origin.encode(), queue_id), frozenset())
                record = sent_again(letter, origin, queue_id)
            except (NodeError, StoreError) as error:
                if not request.in_pieces:
                    raise
                context.note_damage(error)
                response.kept.add(offset=offset, code=error.code, reason=str(error))
                size_bytes += len(letter)  # What stays was read as well.
                if size_bytes > limit:
                    break
                continue
            size_bytes += len(record)
            if size_bytes > limit and not request.in_pieces:  # Read no more.
                raise LimitExceededError("batch", size_bytes, limit)
            if size_bytes > limit and (records or response.kept):
                break
            records.append(record)
            sent.append(offset)
        response.resent[:] = mark.offsets[:] = sent
        if not sent:
            return response
        append = AppendRequest(records=b"".join(records), record_count=len(records))
        receipt = await self._produce.append(append, self._attached_commands(mark))
        self.resent_total += len(sent)
        response.index = receipt.index
        return response

    def _check_group(self, group: str) -> None:
        if group not in self._context.state.groups:
            raise UnknownGroupError(group)

    def _range(self, group: str) -> tuple[int, int]:
        """Return the offsets [lo, hi) of a group's dead letters.

        Earlier offsets may be those of a deleted group of the same name, or may have expired from
        the log of another leader. Of neither is it known any more which ones were sent again.
        """
        lo, hi = self._context.store.queue_range(dead_letter_topic(group), QUEUE)
        return min(max(lo, self._marks().first_offset(group)), hi), hi

    def _marks(self) -> DeadLettersTable:
        return self._context.state.table(DeadLettersTable)

    def _attached_commands(self, mark: Command.MarkResent) -> AttachedCommands:
        """Return the mark of an entry, attached so that its letters are held meanwhile."""
        group, topic = mark.group, dead_letter_topic(mark.group)
        held = {(group, offset) for offset in mark.offsets}

        def look(_prepared: Prepared) -> OnDecided:
            self._check_group(group)
            marks, (lo, hi) = self._marks(), self._range(group)
            if mark.offsets[0] < lo:  # The group was deleted and created again.
                raise MessageExpiredError(topic, QUEUE, mark.offsets[0], lo, hi)
            for offset in mark.offsets:
                if marks.is_resent(group, offset):
                    raise AlreadyResentError(group, offset)
            busy = self._under_way & held
            if busy:
                raise BusyError("dead letters under way", len(busy), 0)
            others = [offset for name, offset in self._under_way if name == group]
            runs = marks.runs_with(group, [*others, *mark.offsets], mark.min_offset)
            limit = self._context.limits.resent_range_count_max
            if len(runs) + len(others) > limit:  # Holds for any outcome of the others.
                raise LimitReachedError("runs of resent dead letters", len(runs), limit)
            self._under_way.update(held)
            return lambda _committed: self._under_way.difference_update(held)

        commands = self._own_appends.encode([Command(mark_resent=mark)])
        return AttachedCommands(commands, 1, frozenset(), look, moves_stored=True)
