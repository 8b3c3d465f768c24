"""Acknowledgements and other answers of consumers to messages they were given.

Owns the calls that name receipt handles. A handle counts until its message is handed out again,
also when its time is over: that depends on no clock. A message that is not in flight any more is
done, so an acknowledgement may be repeated, also at the next leader.
"""

import asyncio
from typing import Final

from node.broker.core.context import Context
from node.broker.groups.settings import check_reader
from node.broker.pop.handles import PopHandle, columns, decode_handle, encode_handle
from node.broker.pop.shared import PopShared
from node.errors.common import BadRequestError, BusyError
from node.errors.pop import StaleHandleError
from node.state.tables.pop import InFlightMessage, WindowKey
from quorumlog.pb.pop_pb2 import (
    AckRequest,
    AckResponse,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
    GiveUpRequest,
    GiveUpResponse,
    PopHide,
    PopSettle,
)
from quorumlog.pb.state_pb2 import Command
from raft.messages import Index

_AGAIN: Final = "its message was handed out again, or is on its way to the dead letters"
_NOT_IN_FLIGHT: Final = "its message is not in flight"


class Settlement:
    """Answers calls that name receipt handles. One per broker."""

    def __init__(self, shared: PopShared) -> None:
        self._shared: Final = shared
        self._context: Final[Context] = shared.context
        self.acked_total = self.stale_total = 0

    async def ack(self, request: AckRequest) -> AckResponse:
        """Take messages out of flight permanently; return the handles that were stale.

        May be repeated. Raises the errors of `OwnAppends.submit`.
        """
        context, limit = self._context, self._context.limits.pop_handle_count_max
        context.check_call(request.cluster_id, "group", request.group)
        context.check_count("handles", len(request.handles), limit, 1)
        rows: list[tuple[str, WindowKey, PopHandle]] = []
        stale: list[str] = []
        for text in request.handles:
            try:
                handle = decode_handle(request.group, request.topic, text)
                key = (request.group, request.topic, handle.queue_id)
                item = self._in_flight(key, handle, text)
            except StaleHandleError:
                stale.append(text)
                continue
            if item is not None:
                rows.append((text, key, handle))
        if rows:
            named = columns([handle for _, _, handle in rows])
            settle = PopSettle(group=request.group, topic=request.topic, **named)
            await self._submit(Command(pop_settle=settle), [(key, h.offset) for _, key, h in rows])
            table = self._shared.table
            again = {text for text, key, h in rows if table.in_flight(key, h.offset) is not None}
            stale += again
            self.acked_total += len(rows) - len(again)
        self.stale_total += len(stale)
        return AckResponse(stale_handles=stale)

    async def change_invisible(self, request: ChangeInvisibleRequest) -> ChangeInvisibleResponse:
        """Make a message visible later or earlier. The handle stays the same.

        Raises StaleHandleError and the errors of `OwnAppends.submit`.
        """
        self._context.check_call(request.cluster_id, "group", request.group)
        limit = self._context.limits.pop_invisible_ms_max
        if request.invisible_ms > limit:
            raise BadRequestError("invisible_ms", f"at most {limit}", str(request.invisible_ms))
        key, handle, _ = self._named(request)
        visible_unix_ms = self._shared.unix_ms() + request.invisible_ms
        hide = PopHide(
            group=request.group,
            topic=request.topic,
            visible_unix_ms=visible_unix_ms,
            **columns([handle]),
        )
        await self._submit(Command(pop_hide=hide), [(key, handle.offset)])
        if not self._shared.table.is_newest(key, handle.offset, handle.generation):
            self.stale_total += 1
            raise StaleHandleError(request.handle, _AGAIN)
        self._shared.deadlines.note(key, visible_unix_ms)
        return ChangeInvisibleResponse(
            handle=encode_handle(request.group, request.topic, handle),
            visible_unix_ms=visible_unix_ms,
        )

    async def give_up(self, request: GiveUpRequest) -> GiveUpResponse:
        """Move a message to the dead letters of its group now.

        Raises StaleHandleError, BusyError, and the errors of `OwnAppends.write`.
        """
        self._context.check_call(request.cluster_id, "group", request.group)
        key, handle, item = self._named(request)
        shared, under_way = self._shared, self._shared.under_way
        if key in under_way.windows or under_way.is_ending(key, handle.offset):
            raise BusyError("calls for one message or queue", 1, 1)
        message = (key, handle.offset)
        under_way.dying.update([message])
        under_way.windows.update([key])

        async def move() -> None:
            try:
                await shared.bury(key, [(handle.offset, item)])
            finally:
                under_way.dying.end([message])
                under_way.windows.end([key])
                shared.takers.settled(shared.table, key, [handle.offset])
                shared.lines.offer(*key)

        await self._context.decided(shared.run(move()))  # It must not be moved twice.
        return GiveUpResponse()

    # --- Handles ---

    def _named(
        self, request: ChangeInvisibleRequest | GiveUpRequest
    ) -> tuple[WindowKey, PopHandle, InFlightMessage]:
        """Return the message that a call is about. Raises StaleHandleError."""
        check_reader(self._context, request.group, request.topic)
        try:
            handle = decode_handle(request.group, request.topic, request.handle)
            key = (request.group, request.topic, handle.queue_id)
            item = self._in_flight(key, handle, request.handle)
            if item is None:
                raise StaleHandleError(request.handle, _NOT_IN_FLIGHT)
        except StaleHandleError:
            self.stale_total += 1
            raise
        return key, handle, item

    def _in_flight(self, key: WindowKey, handle: PopHandle, text: str) -> InFlightMessage | None:
        """Return the message of a handle; None: it is done. Raises StaleHandleError."""
        shared = self._shared
        item = shared.table.in_flight(key, handle.offset)
        if item is None:
            if handle.offset >= shared.table.next_offset(self._context.state, key):
                raise StaleHandleError(text, "the offset of the group was set back")
            return None
        is_dying = (key, handle.offset) in shared.under_way.dying
        if item.generation != handle.generation or is_dying:
            raise StaleHandleError(text, _AGAIN)
        return item

    async def _submit(self, command: Command, messages: list[tuple[WindowKey, int]]) -> None:
        """Submit a command and wait for it; then offer its queues to waiting receives.

        The messages are noted until it is decided: a caller that gives up does not withdraw it.
        """
        shared, under_way = self._shared, self._shared.under_way.messages
        decided = shared.own_appends.submit_nowait(command)
        under_way.update(messages)

        def on_decided(_decided: "asyncio.Future[Index]") -> None:
            under_way.end(messages)
            now_ms = shared.unix_ms()
            offsets: dict[WindowKey, list[int]] = {}
            for key, offset in messages:
                offsets.setdefault(key, []).append(offset)
            for key, of_key in offsets.items():
                shared.takers.settled(shared.table, key, of_key)
                shared.lines.offer(*key)
                window = shared.table.windows.get(key)
                if window is not None and window.earliest_unix_ms <= now_ms:
                    shared.deadlines.note(key, now_ms)  # Was left alone while noted.

        decided.add_done_callback(on_decided)
        await shared.own_appends.decided(decided)
