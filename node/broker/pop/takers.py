"""Whose messages are in flight: which address was given each, and how many it may have.

Owns the shares of one queue of a group and of the table; must not know how messages are chosen. A
message is its taker's until it is out of flight or given to another: that its time is over makes no
room in the table. So a caller that pops for hours fills neither the table nor a queue of another
one's group. Soft state: a new leader does not know who has what, and counts what it hands out.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from node.runtime.accounts import Account, Address, Kind
from node.state.tables.pop import PopTable, Window, WindowKey

_LOOK_MS: Final = 1_000
"""Time between two looks for messages that went out of flight without an acknowledgement."""


class _Takers:
    __slots__ = ("by_offset", "counts", "window")

    def __init__(self, window: Window) -> None:
        self.window: Final = window
        """The table forgets a window that is reset, and makes another one."""
        self.by_offset: dict[int, Address] = {}
        self.counts: Counter[str] = Counter()
        """By address."""


class Takers:
    """The takers of all windows, of one term. Belongs to the loop's thread."""

    def __init__(self, window_count_max: int) -> None:
        """`window_count_max` is how many messages may be in flight of one queue of a group: an
        address may have half of them."""
        self._part: Final = max(1, window_count_max // 2)
        self._windows: dict[WindowKey, _Takers] = {}
        self._looked_ms = -_LOOK_MS

    def room(self, account: Account, table: PopTable, now_ms: int) -> int:
        """Return how many more messages a caller may be given."""
        room = account.address.room(Kind.DELIVERIES)
        if room <= 0 and not 0 <= now_ms - self._looked_ms < _LOOK_MS:
            self._looked_ms = now_ms
            for key, takers in list(self._windows.items()):
                self.settled(table, key, list(takers.by_offset))
            room = account.address.room(Kind.DELIVERIES)
        return room

    def room_of(self, account: Account, table: PopTable, key: WindowKey) -> int:
        """Return how many more messages a caller may be given of one queue."""
        takers = self._windows.get(key)
        if takers is None or takers.window is not table.windows.get(key):
            return self._part
        return self._part - takers.counts[account.address.what]

    def taken(
        self, account: Account | None, table: PopTable, key: WindowKey, offsets: Iterable[int]
    ) -> None:
        """Note messages of one window that a caller was given, or that wait for it. The node's own
        work takes them from their last taker."""
        window = table.windows.get(key)
        if window is None:
            self._forget(key)
            return
        takers = self._windows.get(key)
        if takers is None or takers.window is not window:
            self._forget(key)
            takers = self._windows[key] = _Takers(window)
        self._leave(key, takers, offsets)
        if account is not None:
            address = account.address
            taken = dict.fromkeys((one for one in offsets if one in window.items), address)
            self._windows[key] = takers
            takers.by_offset.update(taken)
            takers.counts[address.what] += len(taken)
            address.hold(Kind.DELIVERIES, len(taken))

    def settled(self, table: PopTable, key: WindowKey, offsets: Iterable[int]) -> None:
        """Note which of these messages of one window are out of flight."""
        takers, window = self._windows.get(key), table.windows.get(key)
        if takers is not None and takers.window is not window:
            self._forget(key)
        elif takers is not None and window is not None:
            self._leave(key, takers, [one for one in offsets if one not in window.items])

    def forget_all(self) -> None:
        """Forget all: this node leads no longer."""
        for key in list(self._windows):
            self._forget(key)

    def _leave(self, key: WindowKey, takers: _Takers, offsets: Iterable[int]) -> None:
        gone: Counter[Address] = Counter()
        for offset in offsets:
            address = takers.by_offset.pop(offset, None)
            if address is not None:
                gone[address] += 1
        for address, count in gone.items():
            takers.counts[address.what] -= count
            address.hold(Kind.DELIVERIES, -count)
        if not takers.by_offset:
            self._windows.pop(key, None)

    def _forget(self, key: WindowKey) -> None:
        takers = self._windows.get(key)
        if takers is not None:
            self._leave(key, takers, list(takers.by_offset))
