"""Pop consumption as the broker has it: its calls, and the background work of the leader.

Owns what happens when the time of a message is over: waiting receives are woken, and messages
handed out too often go to the dead letters. The calls are `receives` and `settlement`; what is in
flight is replicated (`node.state.tables.pop`), so a new leader goes on with all of it.
"""

from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Refused
from node.broker.core.context import Context
from node.broker.groups.members import Members
from node.broker.groups.settings import settings_of
from node.broker.pop.receives import Receives
from node.broker.pop.settlement import Settlement
from node.broker.pop.shared import RETRY_MS, PopShared, UnderWay
from node.broker.read.outgoing import Outgoing
from node.state.tables.pop import InFlightMessage, Window, WindowKey, earliest
from quorumlog.pb.pop_pb2 import DescribePopRequest, DescribePopResponse

_AT_ONCE: Final = 1_000
"""Windows whose times a new leader notes before other tasks get their turn: about 1 ms."""
_BUSY_MS: Final = 50
"""Time after which a window is looked at again if messages of it are being taken."""


class Pop:
    """The calls of pop, and its LeaderWork. One per broker."""

    def __init__(
        self, context: Context, own_appends: OwnAppends, members: Members, outgoing: Outgoing
    ) -> None:
        self._context: Final = context
        self.shared: Final = PopShared(context, own_appends, self._on_due)
        self.receives: Final = Receives(self.shared, members, outgoing)
        self.settlement: Final = Settlement(self.shared)
        self.receive = self.receives.receive
        self.ack = self.settlement.ack
        self.change_invisible = self.settlement.change_invisible
        self.give_up = self.settlement.give_up
        self.on_grown = self.shared.lines.on_grown

    # --- The leadership ---

    def begin(self) -> None:
        """See `LeaderWork.begin`: note when messages in flight become visible."""
        self.shared.under_way = UnderWay()
        self.shared.run(self._note_all(self.shared.under_way))

    async def _note_all(self, term: UnderWay) -> None:
        windows = self.shared.table.windows
        async for key, window in self._context.turn.over(list(windows.items())):
            if self.shared.under_way is not term:
                return
            self.shared.deadlines.note(key, window.earliest_unix_ms)

    def end(self) -> None:
        """See `LeaderWork.end`: forget all times; waiting receives look again, and are refused."""
        self.shared.under_way = UnderWay()
        self.shared.deadlines.forget_all()
        self.shared.held.forget_all()
        self.shared.takers.forget_all()
        self.shared.lines.wake_all()

    # --- Times that are over ---

    def _on_due(self, key: WindowKey) -> None:
        """Wake a receive that waits for a window, move dead messages, and note the next time."""
        shared = self.shared
        window, now_ms = shared.table.windows.get(key), shared.unix_ms()
        if window is None:
            return
        if key in shared.under_way.windows:
            shared.deadlines.note(key, now_ms + _BUSY_MS)
            return
        window.earliest_unix_ms = earliest(window)
        later = [i.visible_unix_ms for i in window.items.values() if i.visible_unix_ms > now_ms]
        if later:
            shared.deadlines.note(key, min(later))
        if self._dead(key, window, now_ms):
            shared.run(self._bury(key))
        else:
            shared.lines.offer(*key)

    def _dead(
        self, key: WindowKey, window: Window, now_ms: int
    ) -> list[tuple[int, InFlightMessage]]:
        """Return messages handed out too often, unless something is under way for them."""
        count_max = settings_of(self._context, key[0]).retry_count_max + 1
        return [
            (offset, item)
            for offset, item in window.items.items()
            if item.delivery_count >= count_max
            and item.visible_unix_ms <= now_ms
            and not self.shared.under_way.is_ending(key, offset)
        ]

    async def _bury(self, key: WindowKey) -> None:
        """Move the dead messages of a window, looked up again: other tasks ran meanwhile."""
        shared, under_way = self.shared, self.shared.under_way
        window, now_ms = shared.table.windows.get(key), shared.unix_ms()
        dead = [] if window is None else self._dead(key, window, now_ms)
        if not dead or key in under_way.windows or not self._context.driver.is_ready:
            return
        dying = {(key, offset) for offset, _ in dead}
        next_ms = now_ms + RETRY_MS
        try:
            with under_way.dying.noted(dying), under_way.windows.noted([key]):
                await shared.bury(key, dead)
            next_ms = now_ms
        except Refused:
            return  # The next leader does it.
        finally:
            shared.takers.settled(shared.table, key, [offset for _, offset in dying])
            if under_way is shared.under_way and key in shared.table.windows:
                shared.deadlines.note(key, next_ms)
            shared.lines.offer(*key)

    # --- For people ---

    async def describe_pop(self, request: DescribePopRequest) -> DescribePopResponse:
        """Return what a group has in flight and what is held of its topics, by topic and queue."""
        context, table = self._context, self.shared.table
        context.check_leads()
        response = DescribePopResponse(
            now_unix_ms=self.shared.unix_ms(), parked_count=self.shared.lines.room.used
        )
        held = self.shared.held.reasons
        windows: dict[WindowKey, Window | None] = dict(table.of_group(request.group))
        topics = context.state.groups.get(request.group, {})
        for topic, queue_id in held:
            if topic in topics:
                windows.setdefault((request.group, topic, queue_id), None)
        rows = sorted(windows.items(), key=lambda row: row[0])
        async for key, window in context.turn.over(rows):
            row = response.queues.add(
                topic=key[1], queue_id=key[2], held_reason=held.get(key[1:], "")
            )
            if window is None:
                row.offset = row.next_offset = max(table.next_offset(context.state, key), 0)
                continue
            counts = [item.delivery_count for item in window.items.values()]
            row.offset, row.next_offset = window.floor, window.next_offset
            row.in_flight_count = sum(count > 0 for count in counts)
            row.waiting_count = counts.count(0)
            row.delivery_count_max = max(counts)
            row.first_visible_unix_ms = earliest(window)
            row.is_full = len(counts) >= context.limits.pop_window_count_max
        return response
