"""The bound on how far a number that only rises may rise within a time; used for terms.

Owns the bound and its argument; must not know messages, time or disks. A node adopts a term from
any message that shows a higher one, so a single message with the highest number there is would
leave a cluster that can never elect a leader again. A fixed bound does not help: a sender of one
message can send many. So the bound is one of speed.

Within one window the number rises by at most `jump_max` above its value when the window began. The
bound refuses a number above that before anything changes, and remembers the refusal. The next
window then begins from the old bound instead of from the number held, so a node that slept through
more than `jump_max`, or that others left behind while they were attacked, follows after as many
windows as the others needed. A sender of arbitrary numbers, at any rate, moves the number by
`jump_max` for each window that passes and for each start of the process, on average, and no faster.

The numbers, for terms. A node raises its term only after a pre-vote and a time-out of its own, at
best once per `election_ticks_min`. Three nodes with the default of 500 ms that do nothing but hold
elections use 6 terms a second: TERM_JUMP_MAX is 22 years of that, and no honest cluster meets it.
The largest cluster there can be (256 members) with the shortest time-out there can be (100 ms) uses
153,600 terms in a window of a minute, a 28,000th of it. An attacker needs 2**31 windows to the end:
4,085 years, or as many restarts of a node.
"""

from __future__ import annotations

from typing import Final

TERM_END: Final = (1 << 63) - (1 << 32)
"""The typed end: a term is below it. No node campaigns for it, no message brings it, and a node
that finds it on its disk does not start. Below the range of 64 bits, so arithmetic on terms is
safe."""
TERM_JUMP_MAX: Final = 1 << 32
"""Largest rise of a term within one window. See the argument above."""
TERM_NOTABLE: Final = 1 << 31
"""Term from which on the node warns: the cluster works, and its term was forged. Half of a
jump."""
TERM_WINDOW_TICKS: Final = 2400
"""Length of a window of terms: one minute of ticks."""


class Ceiling:
    """The bound of one number. In memory only: a start begins a new window."""

    __slots__ = ("_end", "_jump_max", "_was_refused", "_window", "limit", "renew_at")

    def __init__(self, value: int, *, jump_max: int, window: int, end: int, now: int) -> None:
        """`value` is held now; numbers stay below `end`. `window` and `now` are of any clock."""
        self._jump_max, self._window, self._end = jump_max, window, end
        self._was_refused = False
        self.limit = 0
        """Highest number that is accepted now. Invariant: below the end."""
        self.renew_at = now + window
        """Call `renew` from this time on."""
        self._set(value)

    def refuses(self, value: int) -> bool:
        """Whether `value` is too far ahead; a refusal is remembered, nothing else changes."""
        if value <= self.limit:
            return False
        self._was_refused = True
        return True

    def renew(self, value: int, *, now: int) -> None:
        """Begin a window: from `value`, which is held now, or from the old bound if it was met."""
        self._set(self.limit if self._was_refused else value)
        self._was_refused = False
        self.renew_at = now + self._window

    def _set(self, base: int) -> None:
        self.limit = min(base + self._jump_max, self._end - 1)


def ceiling_of_terms(term: int) -> Ceiling:
    """Return the bound of a node that starts with `term`. Its clock counts ticks from 0."""
    return Ceiling(term, jump_max=TERM_JUMP_MAX, window=TERM_WINDOW_TICKS, end=TERM_END, now=0)
