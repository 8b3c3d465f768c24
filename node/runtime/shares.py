"""Shares: durable things, such as topics and groups, by the address that made them.

Owns who made what, by name, until it is gone: that is noticed when the maker's share is full, so
nothing has to tell. Must not know what is made. What outlives connections belongs to an address and
to no account of a connection. Soft state of the leader.
"""

from collections.abc import Callable
from typing import Final

from node.runtime.accounts import Address, Kind, caller

DECIDED_MS: Final = 10_000
"""What was made is there by then, or will never be."""
LOOK_MS: Final = 1_000
"""Time between two looks at what one address made."""


class Shares:
    """Things of one kind, by the address that made them."""

    def __init__(
        self,
        kind: Kind,
        held: Callable[[str], int],
        clock_ms: Callable[[], int],
        count_max: int | None = None,
    ) -> None:
        """`held` returns how many things of a name are still there. None: each check names how many
        there are of a name then; else checks add up, to `count_max` of one name at most."""
        self._kind, self._held, self._clock_ms = kind, held, clock_ms
        self._count_max: Final = count_max
        self._made: dict[str, _Made] = {}
        """By address."""

    def check(self, name: str, count: int = 1) -> None:
        """Note that the running call makes things of a name. Raises BusyError; the node's own work
        is not limited."""
        account = caller()
        if account is None:
            return
        address, kind, limit = account.address, self._kind, self._count_max
        made, now_ms = self._made.get(address.what) or _Made(address), self._clock_ms()

        def more() -> int:
            return count if limit is not None else max(0, count - made.of(name))

        if not more():
            return
        is_over = limit is not None and made.of(name) + count > limit
        if is_over or address.room(kind) < more():
            made.look(kind, self._held, now_ms)
        if address.room(kind) < more():
            for one in self._made.values():
                one.look(kind, self._held, now_ms)
            self._made = {host: one for host, one in self._made.items() if one.rows}
        if limit is not None and made.of(name) + count > limit:
            raise account.accounts.refusal(
                kind, f"{address.what} under one name", made.of(name), limit
            )
        address.take(kind, taken := more())
        made.rows[name] = made.of(name) + taken, now_ms
        self._made[address.what] = made

    def clear(self) -> None:
        """Forget who made what."""
        for made in self._made.values():
            made.address.hold(self._kind, -sum(count for count, _ in made.rows.values()))
        self._made.clear()


class _Made:
    __slots__ = ("_looked_ms", "address", "rows")

    def __init__(self, address: Address) -> None:
        self.address: Final = address
        self.rows: dict[str, tuple[int, int]] = {}
        """By name: how many, and when the last one was made."""
        self._looked_ms = -LOOK_MS

    def of(self, name: str) -> int:
        return self.rows[name][0] if name in self.rows else 0

    def look(self, kind: Kind, held: Callable[[str], int], now_ms: int) -> None:
        """Forget what is gone, unless there was a look just now."""
        if now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        for name, (count, made_ms) in list(self.rows.items()):
            if now_ms - made_ms >= DECIDED_MS:
                left = min(count, held(name))
                self.address.hold(kind, left - count)
                if left:
                    self.rows[name] = left, made_ms
                else:
                    del self.rows[name]
