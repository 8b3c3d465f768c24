"""The condition of a direction between two hosts, and what becomes of a frame under it.

Owns the draws: loss, delay, order, doubles, and frames that are too long. Must not know sockets or
clocks: it gets the time and says when a frame arrives. One direction is one condition, so that a
partition may be one-way.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

DELAY_MS_MAX: Final = 10_000.0
IN_FLIGHT_COUNT_MAX: Final = 4_096
"""Limit of the frames on the way in one direction, as of a router's queue; more are lost."""


@dataclass(frozen=True, slots=True)
class LinkCondition:
    """The condition of one direction. The default is a perfect wire."""

    is_cut: bool = False
    """All frames are lost, in silence."""
    loss: float = 0.0
    """Chance that a frame is lost."""
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Largest deviation from `delay_ms`, either way. Frames stay in order all the same."""
    reorder: float = 0.0
    """Chance that a frame does not wait, and overtakes those before it."""
    duplicate: float = 0.0
    """Chance that a frame arrives twice."""
    frame_size_bytes_max: int = 0
    """Longer frames are lost in silence: no router says so, which makes a black hole. 0: none."""

    def __post_init__(self) -> None:
        for name in ("loss", "reorder", "duplicate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} {getattr(self, name)} is no chance; use 0 to 1")
        if not 0.0 <= self.jitter_ms <= self.delay_ms <= DELAY_MS_MAX:
            raise ValueError(
                f"a delay of {self.delay_ms} +- {self.jitter_ms} ms; use 0 to {DELAY_MS_MAX:.0f}, "
                "and a jitter that is no larger"
            )


PERFECT: Final = LinkCondition()


def condition_of(value: dict[str, Any]) -> LinkCondition:
    """Return the condition of plain values; of a perfect wire PERFECT itself.

    Raises TypeError, ValueError."""
    condition = LinkCondition(**value)
    return PERFECT if condition == PERFECT else condition


@dataclass(slots=True)
class FrameCounts:
    """Frames of one direction, by what became of them."""

    sent: int = 0
    """All that were handed over; each of them is in one of the others as well."""
    passed: int = 0
    cut: int = 0
    lost: int = 0
    too_long: int = 0
    overflowed: int = 0
    delayed: int = 0
    """Of those that passed: arrived later than they were sent."""
    overtook: int = 0
    """Of those that passed: before frames that were sent earlier."""
    doubled: int = 0
    """Of those that passed: arrived twice."""


@dataclass(slots=True)
class Direction:
    """One direction between two hosts: its condition, and the frames on the way."""

    random: Random
    condition: LinkCondition = PERFECT
    counts: FrameCounts = field(default_factory=FrameCounts)
    in_flight_count: int = 0
    """Frames that `arrivals` has accepted with a delay; the owner subtracts those it delivered."""
    _last_s: float = 0.0

    def arrivals(self, size_bytes: int, now_s: float) -> tuple[float, ...]:
        """Return the times at which a frame of this length arrives: none, one or two.

        A time of `now_s` means at once; each later one is counted in `in_flight_count`.
        """
        condition, counts, random = self.condition, self.counts, self.random
        counts.sent += 1
        if condition is PERFECT and not self.in_flight_count:
            counts.passed += 1
            return (now_s,)
        if condition.is_cut:
            counts.cut += 1
            return ()
        if condition.frame_size_bytes_max and size_bytes > condition.frame_size_bytes_max:
            counts.too_long += 1
            return ()
        if condition.loss and random.random() < condition.loss:
            counts.lost += 1
            return ()
        if self.in_flight_count >= IN_FLIGHT_COUNT_MAX:
            counts.overflowed += 1
            return ()
        counts.passed += 1
        if condition.reorder and random.random() < condition.reorder:
            counts.overtook += self._last_s > now_s
            return (now_s,)
        at_s = now_s + condition.delay_ms / 1000
        if condition.jitter_ms:
            at_s += random.uniform(-condition.jitter_ms, condition.jitter_ms) / 1000
        self._last_s = at_s = max(at_s, self._last_s, now_s)
        arrival_times: tuple[float, ...] = (at_s,)
        if condition.duplicate and random.random() < condition.duplicate:
            counts.doubled += 1
            arrival_times = (at_s, at_s)
        if at_s > now_s:
            counts.delayed += 1
            self.in_flight_count += len(arrival_times)
        return arrival_times
