"""Chooses what one receive may take of one queue: first messages due again, then new ones.

Owns that choice, and reads the records that it needs; changes nothing. In FIFO order a message
waits while an earlier one of its message group is in flight and not part of the same receive; those
without a message group are one group, so a queue without any keeps its order as a whole. With
`is_one_of_each` a receive gets at most one message of a message group, and messages without one are
free. Messages that have to wait are noted and passed over, so that others behind them can go.
"""

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from node.broker.read.filters import SqlFilter, TagFilter, pull_kept
from node.broker.records.delayed import split_records
from node.config.limits import Limits
from node.state.state import State
from node.state.tables.pop import NO_OFFSET, InFlightMessage, PopTable, Window, WindowKey, earliest
from store import format as fmt
from store.derived.queues.pull import PullResult, PullStatus
from store.reads import Reads
from store.record.edit import properties_of, values
from store.record.message import record_layout

_MESSAGE_GROUP: Final = b"__SHARDINGKEY"
NO_MESSAGE_GROUP: Final = 0
WAITING_MAX: Final = 512
"""Messages of one window that wait, so that others behind them can go. Each receive looks at them,
and they count as in flight: queues with one slow message each must not stop all other groups."""
EFFORT_MAX: Final = 512
"""Cost of one look, in records that are looked at: some 5 ms. A receive that found nothing by then
stores how far it looked, and goes on from there when others had their turn."""
_PULL_EFFORT: Final = 4
_UNITS_OF_EFFORT: Final = 32
"""Units of a queue that a filter for tags passes over for the cost of one record."""
_TESTS_OF_EFFORT: Final = 8
"""Tests that a filter makes of one record for the cost of one more."""
_FILTERED_COUNT: Final = 64
"""Records read at once for an expression, which may take none of them."""


class ReceiveWish(NamedTuple):
    """The wish of a receive, the same for all queues."""

    is_fifo: bool
    filter: TagFilter | SqlFilter | None
    starts_at_end: bool
    is_one_of_each: bool
    """With `is_fifo`: the receiver handles the messages of one answer beside each other."""
    delivery_count_max: int = 0
    """A message given so often is dead; this and the time are those of a look."""
    now_unix_ms: int = 0

    def is_ordered(self, message_group: int) -> bool:
        """Whether messages of this group wait for each other."""
        return self.is_fifo and (message_group != NO_MESSAGE_GROUP or not self.is_one_of_each)


class Room(NamedTuple):
    """How much more a receive may take."""

    message_count: int
    """Messages to hand out."""
    size_bytes: int
    """Of these, about: the first one, however large, has room."""
    in_flight_count: int
    """Messages that may be in flight of all groups, beside those that are."""
    effort: int
    """Cost of looking for new messages, as in EFFORT_MAX."""

    @property
    def is_used(self) -> bool:
        """Whether there is no more room in an answer."""
        return self.message_count <= 0 or self.size_bytes <= 0 or self.effort <= 0

    def without(self, choice: "Choice") -> "Room":
        """Return the room that a choice leaves."""
        return Room(
            self.message_count - choice.count,
            self.size_bytes - choice.size_bytes,
            self.in_flight_count - len(choice.new) - len(choice.waiting),
            self.effort - choice.effort,
        )


class ChosenMessage(NamedTuple):
    """One message that is to be handed out."""

    offset: int
    generation: int
    """Generation of the delivery before, or 0."""
    delivery_count: int
    message_group: int
    record: bytes


class Choice:
    """The choice for a receive in one queue."""

    __slots__ = (
        "again",
        "blocked",
        "dead",
        "effort",
        "expected_offset",
        "gone",
        "is_full",
        "key",
        "new",
        "next_offset",
        "room",
        "size_bytes",
        "waiting",
        "wish",
    )

    def __init__(self, key: WindowKey, expected_offset: int, wish: ReceiveWish, room: Room) -> None:
        self.key, self.wish, self.room = key, wish, room
        self.expected_offset = self.next_offset = expected_offset
        self.again: list[ChosenMessage] = []
        self.new: list[ChosenMessage] = []
        self.waiting: list[tuple[int, int]] = []
        """(offset, message group)."""
        self.dead: list[tuple[int, InFlightMessage]] = []
        self.gone: list[tuple[int, InFlightMessage]] = []
        """Messages in flight that have expired from the log."""
        self.blocked: set[int] = set()
        """Message groups whose next messages have to wait."""
        self.is_full = False
        self.size_bytes = self.effort = 0

    @property
    def count(self) -> int:
        """Count of messages that are to be handed out."""
        return len(self.again) + len(self.new)

    @property
    def is_something(self) -> bool:
        """Whether the state has to change for this choice."""
        return bool(self.again or self.new or self.next_offset != self.expected_offset)

    @property
    def has_room(self) -> bool:
        """Whether one more message may be handed out."""
        return self.count < self.room.message_count and self.size_bytes < self.room.size_bytes


class MessageChooser:
    """Chooses messages for receives. One per broker."""

    def __init__(self, store: Reads, limits: Limits) -> None:
        self._store: Final = store
        self._limits: Final = limits

    def choose(
        self,
        state: State,
        key: WindowKey,
        wish: ReceiveWish,
        room: Room,
        is_ending: Callable[[WindowKey, int], bool],
    ) -> Choice:
        """Return messages of one queue: at least one, however large, if there is one to be found
        with this effort. `is_ending` returns whether something is under way for a message."""
        table = state.table(PopTable)
        choice = Choice(key, table.next_offset(state, key), wish, room)
        window = table.windows.get(key)
        is_through = True
        if window is not None and (wish.is_fifo or window.earliest_unix_ms <= wish.now_unix_ms):
            is_through = self._choose_again(choice, window, is_ending)
        waiting = 0
        if wish.is_fifo and window is not None:
            waiting = sum(not item.delivery_count for item in window.items.values())
        if (is_through and choice.has_room) or choice.expected_offset == NO_OFFSET:
            held = 0 if window is None else len(window.items)
            room_count = min(room.in_flight_count, self._limits.pop_window_count_max - held)
            self._choose_new(choice, room_count, WAITING_MAX - waiting)
        return choice

    # --- Again ---

    def _choose_again(
        self, choice: Choice, window: Window, is_ending: Callable[[WindowKey, int], bool]
    ) -> bool:
        """Choose messages that are due; return whether the whole window was looked at and fit."""
        wish, blocked, count = choice.wish, choice.blocked, choice.room.message_count
        due: list[tuple[int, InFlightMessage]] = []
        for offset, item in window.items.items():
            is_blocked = wish.is_ordered(item.message_group) and item.message_group in blocked
            is_due = not item.delivery_count or item.visible_unix_ms <= wish.now_unix_ms
            if is_blocked or not is_due or is_ending(choice.key, offset):
                blocked.add(item.message_group)
            elif item.delivery_count >= wish.delivery_count_max:
                choice.dead.append((offset, item))
                blocked.add(item.message_group)
            else:
                due.append((offset, item))
                if wish.is_one_of_each:
                    blocked.add(item.message_group)
                if len(due) == count:
                    break
        if not due:
            window.earliest_unix_ms = earliest(window)
        for offset, item, record in self._records(choice, due):
            choice.size_bytes += len(record)
            if choice.again and choice.size_bytes > choice.room.size_bytes:
                return False
            choice.again.append(
                ChosenMessage(
                    offset, item.generation, item.delivery_count + 1, item.message_group, record
                )
            )
        return len(due) < count and len(choice.again) + len(choice.gone) == len(due)

    def _records(
        self, choice: Choice, due: list[tuple[int, InFlightMessage]]
    ) -> Iterator[tuple[int, InFlightMessage, bytes]]:
        """Read messages in flight, neighbours at once; note those that have expired.

        Those delivered before are verified: a consumer that meets damage does not ack.
        """
        at = 0
        while at < len(due):
            first = due[at][0]
            hi = at + 1
            while hi < len(due) and due[hi][0] == first + hi - at:
                hi += 1
            is_again = any(item.delivery_count for _, item in due[at:hi])
            result = self.read(choice.key, first, hi - at, verify=is_again)
            if result.status is PullStatus.FOUND:
                for record in split_records(result.data):
                    yield *due[at], record
                    at += 1
            elif result.min_offset > first:
                choice.gone.append(due[at])
                at += 1
            else:  # The queue ends before it, after a reset: it stays in flight.
                return

    def read(self, key: WindowKey, offset: int, count: int, *, verify: bool = False) -> PullResult:
        """Read neighbours of one queue."""
        size_bytes_max = self._limits.pull_size_bytes_max
        return self._store.pull(
            *key[1:], offset, max_count=count, max_size_bytes=size_bytes_max, verify=verify
        )

    # --- New ---

    def _choose_new(self, choice: Choice, room_count: int, waiting_count: int) -> None:
        wish, room, (_, topic, queue_id) = choice.wish, choice.room, choice.key
        lo, hi = self._store.queue_range(topic, queue_id)
        if choice.expected_offset == NO_OFFSET:
            choice.next_offset = hi if wish.starts_at_end else lo
            if not hi and not wish.starts_at_end:  # Not worth a record in the log.
                choice.next_offset = NO_OFFSET
                return
        elif choice.next_offset < lo:
            choice.next_offset = lo
        least = cost = 1
        if isinstance(wish.filter, SqlFilter):
            cost = 1 + wish.filter.test_count // _TESTS_OF_EFFORT
            least = max(1, _FILTERED_COUNT // cost)
        while choice.next_offset < hi and choice.has_room:
            left = room_count - len(choice.new) - len(choice.waiting)
            left = min(room.message_count - choice.count, left)
            choice.is_full = left <= 0 or len(choice.waiting) >= waiting_count
            if choice.is_full or choice.effort >= room.effort:
                return
            first = choice.next_offset
            pull = partial(self._pull, choice, first, max(left, least), cost)
            filters = [] if wish.filter is None else [wish.filter]
            result, data, _ = pull_kept(pull, *filters)
            if result.next_offset <= first:
                return
            choice.next_offset = result.next_offset
            if result.status is PullStatus.FOUND:
                self._add_new(choice, data, left)

    def _pull(
        self, choice: Choice, offset: int, count: int, cost: int, *, verify: bool = False
    ) -> PullResult:
        """Read new messages, and add to the effort of a choice; a record has this cost."""
        wish, room = choice.wish, choice.room
        result = self._store.pull(
            *choice.key[1:],
            offset,
            max_count=count,
            max_size_bytes=room.size_bytes - choice.size_bytes,
            tags=wish.filter.codes if isinstance(wish.filter, TagFilter) else None,
            verify=verify,
        )
        passed_over_count = result.next_offset - offset - result.record_count
        choice.effort += _PULL_EFFORT + result.record_count * cost
        choice.effort += max(passed_over_count, 0) // _UNITS_OF_EFFORT
        return result

    @staticmethod
    def _add_new(choice: Choice, data: bytes, left: int) -> None:
        """Add at most `left` of these records; they end at the offset to go on from."""
        wish, blocked = choice.wish, choice.blocked
        for record in split_records(data):
            offset = fmt.TIMESTAMP.unpack_from(record, fmt.QUEUE_OFFSET_AT)[0]
            if not left:
                choice.next_offset = offset
                return
            left -= 1
            group = message_group_of(record) if wish.is_fifo else NO_MESSAGE_GROUP
            if wish.is_ordered(group) and group in blocked:
                choice.waiting.append((offset, group))
            else:
                if wish.is_one_of_each:
                    blocked.add(group)
                choice.new.append(ChosenMessage(offset, 0, 1, group, record))
                choice.size_bytes += len(record)


def message_group_of(record: bytes) -> int:
    """Return the hash of a message's group, NO_MESSAGE_GROUP if it names none.

    Two groups with the same hash wait for each other, and nothing worse.
    """
    layout = record_layout(memoryview(record), 0)
    texts = values(properties_of(record, layout), (_MESSAGE_GROUP,))
    return zlib.crc32(texts[_MESSAGE_GROUP]) or 1 if texts else NO_MESSAGE_GROUP
