"""Held messages by due time, in memory of the leader.

Owns the order; must not know records, clocks or what was taken. A message that is far off costs 8
to 20 bytes (measured), in the slot of 16 s that it is due in; one that is nearly due is in a heap
and costs 60. The caller bounds every step, so that a million messages of one moment never hold up
the loop: bringing 2,000 of them into order takes 1 ms.
"""

from array import array
from heapq import heappop, heappush
from typing import Final, NamedTuple

_SLOT_BITS: Final = 14
"""Low bits of a time in ms that one slot spans: 16 s, so three days are 16,000 slots."""
_QUEUE_BITS: Final = 5
_OFFSET_BITS: Final = 45
_DUE_SHIFT: Final = _QUEUE_BITS + _OFFSET_BITS
_SLOT_SHIFT: Final = _SLOT_BITS + _DUE_SHIFT
_LOW: Final = (1 << _SLOT_SHIFT) - 1
_QUEUE_MASK: Final = (1 << _QUEUE_BITS) - 1
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
assert _SLOT_SHIFT == 64, "what is kept in a slot is one integer of an array"

AHEAD_MS: Final = 2_000
"""A slot goes into the heap this long before it begins, in portions."""


class Due(NamedTuple):
    """A held message."""

    due_unix_ms: int
    queue: int
    offset: int

    def __str__(self) -> str:
        return f"offset {self.offset} of queue {self.queue} of held messages"


class DueIndex:
    """A heap of near due times, and slots of later ones. One per leadership."""

    def __init__(self) -> None:
        self.count = 0
        self._slots: dict[int, array[int]] = {}
        """Messages of the slots that are not near: each key without its slot bits."""
        self._slot_order: list[int] = []
        """Heap of slot numbers."""
        self._near_hi = 0
        """Messages of slots below this number go into the heap."""
        self._near: list[int] = []
        """Heap of keys: due time, queue, offset."""

    def add(self, due: Due) -> None:
        """Add a message."""
        due_unix_ms, queue, offset = due
        key = due_unix_ms << _DUE_SHIFT | queue << _OFFSET_BITS | offset
        slot = key >> _SLOT_SHIFT
        self.count += 1
        if slot < self._near_hi:
            heappush(self._near, key)
            return
        values = self._slots.get(slot)
        if values is None:
            values = self._slots[slot] = array("Q")
            heappush(self._slot_order, slot)
        values.append(key & _LOW)

    def advance(self, now_unix_ms: int, at_most: int) -> bool:
        """Bring up to `at_most` messages that are due soon into order; return whether there is
        more to do."""
        self._near_hi = max(self._near_hi, (now_unix_ms + AHEAD_MS >> _SLOT_BITS) + 1)
        order, near = self._slot_order, self._near
        while order and order[0] < self._near_hi:
            if at_most <= 0:
                return True
            values = self._slots[order[0]]
            base, some = order[0] << _SLOT_SHIFT, values[-at_most:]
            del values[-at_most:]
            for value in some:
                heappush(near, base | value)
            at_most -= len(some)
            if not values:
                del self._slots[heappop(order)]
        return False

    def take(self, now_unix_ms: int, at_most: int) -> list[Due]:
        """Remove and return messages that are due and in order already, the oldest first."""
        near, taken = self._near, list[Due]()
        hi = now_unix_ms + 1 << _DUE_SHIFT
        while near and near[0] < hi and len(taken) < at_most:
            key = heappop(near)
            queue = key >> _OFFSET_BITS & _QUEUE_MASK
            taken.append(Due(key >> _DUE_SHIFT, queue, key & _OFFSET_MASK))
        self.count -= len(taken)
        return taken

    def next_look_unix_ms(self) -> int | None:
        """Return when there is something to do; None if the index is empty."""
        times = []
        if self._near:
            times.append(self._near[0] >> _DUE_SHIFT)
        if self._slot_order:
            times.append((self._slot_order[0] << _SLOT_BITS) - AHEAD_MS)
        return min(times, default=None)

    def next_due_unix_ms(self) -> int | None:
        """Return when the next message is due, some seconds early where it is far off."""
        if self._near:
            return self._near[0] >> _DUE_SHIFT
        return self._slot_order[0] << _SLOT_BITS if self._slot_order else None
