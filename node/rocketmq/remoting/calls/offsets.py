"""Offsets: where queues begin and end, and how far groups are.

Owns the answers for queues without messages and groups without offsets, which decide where a new
consumer begins. All are the leader's: a reader that was told an offset by one node must not be told
an earlier one by the next.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from node.broker.groups.member import MemberKind
from node.errors.common import BusyError, NodeError
from node.rocketmq.remoting.access import unsigned
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.conversation import Handler, Request
from node.rocketmq.remoting.known_offsets import NOTHING, Key, Known, KnownOffsets, Target
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError, refusal_of
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.fields import INT64_MAX, QUEUE_ID_MAX, int_of, text_of
from node.rocketmq.remoting.protocol.marks import KNOWN, MOVE, MOVED, TOLD, UNANSWERED
from node.state.state import INTERNAL_TOPICS
from node.state.tables.moved_offsets import Move, MovedOffsetsTable
from quorumlog.pb.common_pb2 import CONSISTENCY_LEADER, QueueId
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, FetchOffsetsRequest, GroupOffset
from quorumlog.pb.log_pb2 import QueueOffsetsRequest

_UPPER: Final = "UPPER"
_log: Final = structlog.get_logger(component="remoting")


class OffsetCalls(Calls):
    """Answers the requests about offsets. One per gateway."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.known: Final = KnownOffsets()

    def _queue(self, request: Request) -> tuple[str, int]:
        ext, number = request.command.ext, self._shared.number_of(request)
        queue_id = self._names.queue(number, int_of(ext, "queueId", hi=QUEUE_ID_MAX))
        return text_of(ext, "topic"), queue_id

    # --- Queues ---

    async def end_of_queue(self, request: Request) -> Answer:
        """Return the first offset that can be read, or the next one to be written."""
        lo, hi = await self._range(*self._queue(request))
        is_lower = request.command.code == RequestCode.GET_MIN_OFFSET
        return Answer(ext={"offset": str(lo if is_lower else hi)})

    async def _range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return where a queue begins and ends; 0, 0 for one that does not exist."""
        described = self._context.state.topic(topic)
        if described is None or topic in INTERNAL_TOPICS or queue_id >= described.queue_count:
            return 0, 0
        range_request = QueueOffsetsRequest(
            queues=[QueueId(topic=topic, queue_id=queue_id)], consistency=CONSISTENCY_LEADER
        )
        row = (await self._broker.queries.queue_offsets(range_request)).queues[0]
        return row.min_offset, row.max_offset

    async def by_time(self, request: Request) -> Answer:
        """Return the first offset stored at a time or later; UPPER: the last one not after it."""
        topic, queue_id = self._queue(request)
        lo, hi = await self._range(topic, queue_id)
        unix_ms = int_of(request.command.ext, "timestamp", lo=-INT64_MAX)
        is_upper = request.command.ext.get("boundaryType", "").upper() == _UPPER
        if lo == hi:
            return Answer(ext={"offset": str(lo)})
        at_ms = min(max(0, unix_ms) + is_upper, INT64_MAX)
        offset = await self._offset_at(topic, queue_id, at_ms)
        if is_upper:
            offset = max(lo, offset - 1)
        return Answer(ext={"offset": str(offset)})

    async def earliest_time(self, request: Request) -> Answer:
        """Return when the first message of a queue was stored, -1 without one."""
        topic, queue_id = self._queue(request)
        lo, hi = await self._range(topic, queue_id)
        unix_ms = self._context.stored_ms(topic, queue_id, lo) if lo < hi else None
        return Answer(ext={"timestamp": str(-1 if unix_ms is None else unix_ms)})

    # --- Groups ---

    async def fetch(self, request: Request) -> Answer:
        """Return how far a group is in a queue, by the leader."""
        if request.connection.is_node:
            return await self._shared.ask_leader(request, self._fetch)
        key, client_id = self._key(request), request.connection.client_id
        group = self._shared.clients.consumers.get(key[0])
        is_member = group is not None and client_id in group.members
        if group is not None and is_member:
            await self.known.handed_over(client_id, key, group.members, group.changed_s)
        offset_view, now_s = self.known.of(request.connection, key), time.monotonic()
        answer = await self._ask(request, offset_view, self._fetch)
        if answer.code != ResponseCode.SUCCESS:
            return answer
        offset, move = int(answer.ext["offset"]), int(answer.ext[MOVE])
        # A member may ask for it without going there.
        moved = offset_view._replace(target=Target(offset, move, is_asked=True))
        self._note(request, key, moved if MOVED in answer.ext else Known(offset, move))
        if is_member:
            self.known.read(request.connection, key, now_s)
        return answer._replace(ext={"offset": answer.ext["offset"]})

    async def _fetch(self, request: Request) -> Answer:
        """Return how far a group is in a queue; where it has no offset, where it begins.

        A group without an offset begins with the first message where nothing of the topic was
        deleted yet: a consumer that starts after its producer gets what was sent before. A queue
        that came after the group has begun with the topic is read from its first message. Else the
        client decides.
        """
        ext, (topic, queue_id) = request.command.ext, self._queue(request)
        group = text_of(ext, "consumerGroup")
        self._context.check_name("consumerGroup", group)
        fetch_request = FetchOffsetsRequest(
            group=group, queues=[QueueId(topic=topic, queue_id=queue_id)]
        )
        offset = (await self._broker.groups.fetch_offsets(fetch_request)).offsets[0].offset
        if offset < 0:
            is_told = ext.get("setZeroIfNotFound", "").lower() == "false"
            offset = (await self._range(topic, queue_id))[0]
            has_begun = self._context.state.groups.get(group, {}).get(topic)
            # Queues of a topic that was made again begin behind those of the deleted one.
            is_whole = not offset or self._context.store.log.min_position <= self._context.origin(
                topic
            )
            if is_told or not (is_whole or has_begun):
                text = f"group {group[:200]!r} has no offset of this queue"
                raise RefusedError(ResponseCode.QUERY_NOT_FOUND, text)
        move = self._context.state.table(MovedOffsetsTable).of(group, topic, queue_id)
        is_news = move is not None and move.is_news(_followed(request))
        return Answer(ext={"offset": str(offset), MOVE: _number(move)} | _moved(is_news))

    async def commit(self, request: Request) -> Answer:
        """Store how far a group is, unless others have moved it from what the client knows."""
        if request.connection.is_node:
            return await self._shared.ask_leader(request, self._store)
        key, offset = self._key(request), int_of(request.command.ext, "commitOffset")
        offset_view = self.known.of(request.connection, key)
        try:
            with self.known.storing(request.connection, key):
                answer = await self._ask(request, offset_view, self._store)
        except (asyncio.CancelledError, NodeError, RefusedError) as error:
            if isinstance(error, asyncio.CancelledError) or _is_open(refusal_of(error)):
                self._note(request, key, offset_view.without_answer(offset))
            raise
        if answer.code == ResponseCode.SUCCESS:
            move = int(answer.ext[MOVE]) if MOVE in answer.ext else offset_view.move
            self._note(request, key, Known(offset, move))
        elif MOVED in answer.ext and offset_view.target is None:
            self._note(request, key, offset_view._replace(is_behind=True))
        elif _is_open(answer):
            self._note(request, key, offset_view.without_answer(offset))
        return answer._replace(ext={})

    async def _ask(self, request: Request, known: Known, answer: Handler) -> Answer:
        ext = request.command.ext | {KNOWN: str(known.offset)}
        if known.move is not None:
            ext |= {MOVE: str(known.move)}
        if known.unanswered:
            ext |= {UNANSWERED: " ".join(map(str, known.unanswered))}
        if known.target is not None and known.target.is_asked:
            ext |= {TOLD: str(known.target.move)}
        request = request._replace(command=replace(request.command, ext=ext))
        return await self._shared.ask_leader(request, answer)

    async def moved(self, request: Request, key: Key, at: int) -> Answer | None:
        """Return the group's offset for a pull at an offset whose client has to be told that others
        moved it, as this node's state or the leader's answer to a commit says; None: it may read
        where it is."""
        offset_view = self.known.of(request.connection, key)
        move = self._context.state.table(MovedOffsetsTable).of(*key)
        is_behind = offset_view.is_behind or offset_view.target is not None
        if not is_behind and (move is None or not move.is_news(offset_view.move)):
            return None
        clients, group = self._shared.clients, key[0]
        own = clients.consumer(group, request.connection.client_id)
        # One without a heartbeat over its connection counts as what all others of its group are.
        members = [own] if own is not None else [*clients.members((True, group)).values()]
        if members and all(one.kind is MemberKind.BROADCASTING for one in members):
            return None  # It keeps its own offsets.
        if offset_view.target is not None and offset_view.target.offset == at:
            await self._follow(request, key, Known(at, offset_view.target.move))
            return None
        query = replace(request.command, code=RequestCode.QUERY_CONSUMER_OFFSET)
        answer = await self._ask(request._replace(command=query), offset_view, self._fetch)
        if answer.code == ResponseCode.SUCCESS:
            target = Target(int(answer.ext["offset"]), int(answer.ext[MOVE]), is_asked=False)
            # Else this node's state lags.
            is_new = MOVED in answer.ext or (is_behind and target.offset != offset_view.offset)
            if is_new:  # Without room it is refused: else it would be told for ever.
                followed = offset_view._replace(target=target, is_behind=False)
                self.known.note(request.connection, key, followed)
                return answer
            self._note(request, key, Known(offset_view.offset, offset_view.move))
            return None
        return answer

    async def _follow(self, request: Request, key: Key, known: Known) -> None:
        """Have the leader note that a client went where its group was moved: one that never commits
        would be told again over each connection."""
        self._note(request, key, known)
        # Its client signed another command.
        ext = unsigned(request.command.ext) | {"commitOffset": str(known.offset)}
        command = replace(request.command, code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext)
        try:
            answer = await self._ask(request._replace(command=command), known, self._store)
            reason = answer.remark or ""
        except (NodeError, RefusedError) as error:
            reason = str(error)
        if reason:  # The pull is right all the same; the next connection hears it once more.
            _log.debug("that a move is followed is not noted", reason=reason)

    def _key(self, request: Request) -> Key:
        return text_of(request.command.ext, "consumerGroup"), *self._queue(request)

    def _note(self, request: Request, key: Key, known: Known) -> None:
        """Remember what a client knows; without room it is forgotten, and cannot go back."""
        with suppress(BusyError):
            self.known.note(request.connection, key, known)

    async def _store(self, request: Request) -> Answer:
        """Store an offset, unless it is there already: clients repeat theirs every 5 s. One that
        others have moved from what the client knows stays, and the answer says if it went back."""
        ext, (topic, queue_id) = request.command.ext, self._queue(request)
        if self._shared.is_unmade(topic):
            return Answer(ext={MOVE: "0"})  # At its beginning.
        group, offset = text_of(ext, "consumerGroup"), int_of(ext, "commitOffset")
        row = GroupOffset(topic=topic, queue_id=queue_id, offset=offset)
        row.newest_known, followed = int_of(ext, KNOWN, NOTHING, lo=NOTHING), _followed(request)
        if followed is not None:
            row.move = followed
        why = "which others stored; ask for the group's offset, then go back"
        stored = self._context.state.groups.get(group, {}).get(topic, {}).get(queue_id)
        move = self._context.state.table(MovedOffsetsTable).of(group, topic, queue_id)
        is_news = move is not None and move.is_news(followed)
        if stored is not None and str(stored) in ext.get(UNANSWERED, "").split():
            row.newest_known = stored
        is_told = move is not None and ext.get(TOLD) == str(move.number)
        if stored is not None and is_told and self._has_no_members(group):
            row.newest_known, row.move, is_news = stored, int(ext[TOLD]), False
        if stored == offset and (is_news or move is None or move.is_followed):
            return Answer(ext={} if is_news else {MOVE: _number(move)})
        if is_news:
            why = "where it was moved; go on there, or have a tool reset the group"
        elif stored is not None and offset < stored and offset != row.newest_known:
            # Rarely: all members may be looked at. What a client repeats does not go back.
            now_ms = self._context.clock_ms()
            reader = self._broker.group_members.reader_of(group, now_ms).get((topic, queue_id))
            if reader is not None:  # Of another protocol.
                row.newest_known = 0
                why = f"and {reader!r} reads it; stop the members, then reset the group"
            elif self._has_no_members(group):
                row.newest_known = stored  # Without members it may be a tool's.
        commit_request = CommitOffsetsRequest(group=group, offsets=[row])
        response = await self._broker.groups.commit_offsets(commit_request)
        for moved in response.moved:
            text = (
                f"offset {offset} is not stored: group {group[:200]!r} is at {moved.offset} in "
                f"queue {queue_id} of {topic[:200]!r}, {why}"
            )
            # What lies beyond is read by others; what they went back to, perhaps by no member.
            ext = _moved(is_news or moved.offset < row.newest_known)
            return Answer(ResponseCode.SYSTEM_ERROR, ext, remark=text)
        return Answer(ext={MOVE: _number(move)})

    def _has_no_members(self, group: str) -> bool:
        members, now_ms = self._broker.group_members, self._context.clock_ms()
        return not members.clients_of(group, now_ms) and not members.unsettled_ms(now_ms)


def _followed(request: Request) -> int | None:
    ext = request.command.ext
    return int_of(ext, MOVE) if MOVE in ext else None


def _is_open(refusal: Answer) -> bool:
    """Whether a commit may be stored although it was refused: its outcome, or the leader, is not
    known."""
    return refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE


def _number(move: Move | None) -> str:
    return str(0 if move is None else move.number)


def _moved(is_moved: bool) -> dict[str, str]:
    return {MOVED: "true"} if is_moved else {}
