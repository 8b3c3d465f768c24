"""Rates: what users and topics may move in a second, on one node.

Owns token buckets with a burst of one second and debt: a call is taken while its buckets are above
zero, and may leave them below. So a large batch passes, and the next call waits for it. Must not
know calls. For one event loop, without I/O.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final

from node.errors.users import RateLimitedError
from node.runtime.accounts import Account, UserAccount
from node.users.users import Rates, User

_CONNECTIONS: Final = "connections"
_CONNECTIONS_MS: Final = 1_000
"""When a client may try again that has too many connections."""
_RETRY_MS_MAX: Final = 10_000
"""The rate may be raised, and a debt forgotten, before a long wait ends."""


class Unit(IntEnum):
    """What a bucket counts."""

    BYTES = 0
    MESSAGES = 1
    REQUESTS = 2


class Bucket:
    """One rate and what is left of it."""

    __slots__ = ("at_s", "left", "rate", "unit")

    def __init__(self, unit: Unit, rate: float, now_s: float) -> None:
        """`rate`: a second; above 0."""
        self.unit, self.rate, self.at_s = unit, rate, now_s
        self.left = rate
        """Below zero: debt."""

    def fill(self, now_s: float) -> bool:
        """Add what has come since the last call; return whether there is something."""
        left = self.left + (now_s - self.at_s) * self.rate
        self.left, self.at_s = min(left, self.rate), now_s
        return left > 0

    @property
    def wait_s(self) -> float:
        """Seconds until the debt is paid."""
        return max(0.0, -self.left / self.rate)


class Meter:
    """The buckets of one user or one topic."""

    __slots__ = ("_buckets", "_clock_s", "_refused", "_whose")

    def __init__(
        self,
        whose: str,
        rates: Iterable[int],
        refused: Counter[str],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`rates`: by unit; 0: none. `refused` counts refusals by unit."""
        self._whose, self._refused, self._clock_s = whose, refused, clock_s
        units = zip(Unit, rates, strict=False)
        self._buckets = [Bucket(unit, rate, clock_s()) for unit, rate in units if rate]

    def take(self, size_bytes: int, message_count: int, request_count: int = 0) -> None:
        """Take from the buckets. Raises RateLimitedError with nothing taken."""
        amounts = (size_bytes, message_count, request_count)
        now_s = self._clock_s()
        for bucket in self._buckets:  # As `fill` and `spend`, without their calls: appends do this.
            left = bucket.left + (now_s - bucket.at_s) * bucket.rate
            bucket.left, bucket.at_s = left if left < bucket.rate else bucket.rate, now_s
            if left <= 0 and amounts[bucket.unit]:
                raise self._refusal(bucket)
        for bucket in self._buckets:
            bucket.left -= amounts[bucket.unit]

    def spend(self, size_bytes: int, message_count: int, request_count: int = 0) -> None:
        """Take what was moved already, into debt if need be."""
        amounts = (size_bytes, message_count, request_count)
        for bucket in self._buckets:
            bucket.left -= amounts[bucket.unit]

    def check_debt(self) -> None:
        """Raise RateLimitedError while messages or their bytes are in debt."""
        now_s = self._clock_s()
        for bucket in self._buckets:
            if bucket.unit is not Unit.REQUESTS and not bucket.fill(now_s):
                raise self._refusal(bucket)

    def wait_s(self) -> float:
        """Return the seconds until `check_debt` passes."""
        now_s, wait_s = self._clock_s(), 0.0
        for bucket in self._buckets:
            if bucket.unit is not Unit.REQUESTS and not bucket.fill(now_s):
                wait_s = max(wait_s, bucket.wait_s)
        return wait_s

    def _refusal(self, bucket: Bucket) -> RateLimitedError:
        unit = bucket.unit.name.lower()
        self._refused[unit] += 1
        retry_after_ms = min(max(1, math.ceil(1000 * bucket.wait_s)), _RETRY_MS_MAX)
        return RateLimitedError(f"{unit} a second", self._whose, int(bucket.rate), retry_after_ms)


class UserRow(UserAccount):
    """What a node keeps for one user: its meter, and its connections in number."""

    __slots__ = ("_refused", "meter", "name", "rates")

    def __init__(self, name: str, refused: Counter[str]) -> None:
        super().__init__()
        self.name, self._refused = name, refused
        self.rates = Rates()
        self.meter: Meter | None = None
        """None: no rate counts what its calls move."""

    @property
    def is_limited(self) -> bool:
        """Whether the number of its connections has a limit."""
        return bool(self.rates.connections)

    def connect(self, account: Account) -> None:
        """Count a connection as one of this user. Raises RateLimitedError."""
        limit = self.rates.connections
        if limit and self.connection_count >= limit:
            self._refused[_CONNECTIONS] += 1
            whose = f"user {self.name!r}"
            raise RateLimitedError(_CONNECTIONS, whose, limit, _CONNECTIONS_MS)
        account.belong(self)


class UserRows:
    """The rows of all users that have called. One per node."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._rows: Final[dict[str, UserRow]] = {}
        self.refused: Final = Counter({unit.name.lower(): 0 for unit in Unit} | {_CONNECTIONS: 0})
        """Refusals, by what was over its rate."""

    def of(self, user: User) -> UserRow:
        """Return the row of a user, with its rates as they are now."""
        row = self._rows.get(user.name)
        if row is None:
            row = self._rows[user.name] = UserRow(user.name, self.refused)
        if row.rates != user.rates:
            row.rates = user.rates
            limits = user.rates[: len(Unit)]
            whose = f"user {user.name!r}"
            row.meter = Meter(whose, limits, self.refused, self._clock_s) if any(limits) else None
        return row

    def keep(self, names: Iterable[str]) -> None:
        """Forget all users but these, and those with connections, which a user that is made again
        has, too."""
        for name in self._rows.keys() - set(names):
            if not self._rows[name].connection_count:
                del self._rows[name]
