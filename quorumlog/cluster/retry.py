"""Deadlines of calls, and the pauses between their attempts.

Owns deadlines and pauses; must not know what is tried. One deadline covers all attempts of a call:
a call that makes further calls passes its Deadline on to them and never makes a new one.
"""

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Final

from quorumlog.errors import DeadlineError, InvalidRequestError, OutcomeUnknownError, QuorumlogError
from quorumlog.records.options import TIMEOUT_MS_MAX

PAUSE_FIRST_MS: Final = 10
PAUSE_MAX_MS: Final = 500
PAUSE_ADVISED_MAX_MS: Final = 5_000  # The limit of a pause that a node advises.


class Deadline:
    """A point in time, by the monotonic clock."""

    __slots__ = ("_at_s", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise InvalidRequestError(f"timeout {timeout_ms} ms; use 1 to {TIMEOUT_MS_MAX}")
        self.timeout_ms = timeout_ms
        self._at_s = time.monotonic() + timeout_ms / 1000

    @property
    def remaining_s(self) -> float:
        """Seconds that are left; 0 or less when it has passed."""
        return self._at_s - time.monotonic()

    @property
    def remaining_ms(self) -> int:
        """Milliseconds that are left, at least 1, as a limit to send along."""
        return max(1, int(self.remaining_s * 1000))

    @property
    def has_passed(self) -> bool:
        """Whether there is no time left."""
        return self.remaining_s <= 0

    def error(self, what: str, last: QuorumlogError | None, *, attempts: int) -> QuorumlogError:
        """Return the error of a call that ran out of time, with no effect that is known."""
        return DeadlineError(_late(what, self.timeout_ms, last, attempts), attempts=attempts)

    def error_unknown(
        self, what: str, last: QuorumlogError | None, *, attempts: int
    ) -> QuorumlogError:
        """Return the error of a call that ran out of time and may have been applied."""
        text = _late(what, self.timeout_ms, last, attempts, do="read back what was stored")
        return OutcomeUnknownError(text, attempts=attempts)


@dataclass(slots=True)
class Backoff:
    """Pauses between attempts: doubling, jittered, bounded, never past the deadline."""

    deadline: Deadline
    count: int = 0

    def next_s(self, advised_ms: float = 0) -> float:
        """Return the next pause in seconds; at least as long as a node advised, up to a limit.

        Jitter separates calls that failed at the same moment with the same advice.
        """
        doubled = PAUSE_FIRST_MS * (1 << min(self.count, 16))
        self.count += 1
        least_ms = min(advised_ms, PAUSE_ADVISED_MAX_MS)
        pause_ms = min(doubled, PAUSE_MAX_MS) * random.uniform(0.5, 1.0)
        apart_ms = random.uniform(0, min(least_ms / 4, PAUSE_MAX_MS))
        pause_ms = max(pause_ms, least_ms + apart_ms)
        return max(0.0, min(pause_ms / 1000, self.deadline.remaining_s))

    async def pause(self, advised_ms: float = 0) -> None:
        """Wait for the next pause."""
        await asyncio.sleep(self.next_s(advised_ms))


def _late(
    what: str,
    timeout_ms: float,
    last: QuorumlogError | None,
    attempts: int,
    do: str = "allow more time or look at the cluster (qlog cluster status)",
) -> str:
    tried = f" in {attempts} attempt{'' if attempts == 1 else 's'}" if attempts else ""
    head = ", the last with" if attempts else ":"
    because = ""
    if last is not None:
        if last.code == "node.rate_limited":
            do = "send less, allow more time, or ask an admin for a higher limit"
        event, _, remedy = last.message.rpartition("; ")
        text = event or remedy
        _, is_nested, inner = text.rpartition(", the last with ")
        if attempts and is_nested:  # A call within this one that ran out of time says why.
            because = f"{head} {inner}"
        elif isinstance(last, DeadlineError):  # It has a shorter time in it.
            because = f"{head} {last.code}"
        else:
            because = f"{head} {last.code}: {text}"
    return f"{what} was not done within {timeout_ms:.0f} ms{tried}{because}; {do}"
