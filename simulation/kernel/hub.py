"""The hub: virtual time, and the order in which everything in a world happens.

Owns the heap of events and the switches between it and the code of processes. Code of a process
runs in greenlets, one for its event loop and one for each of its threads; it runs until it waits,
and time stands still meanwhile. Nothing here knows what a process does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol
from zlib import crc32

from greenlet import getcurrent, greenlet

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1_000


class Owner(Protocol):
    """A process, as the hub sees it."""

    is_alive: bool
    is_paused: bool
    name: str
    held: list[tuple[greenlet, int]]
    """What would have gone on while it is paused, and from which wait."""

    def enter(self, of: greenlet) -> None:
        """Prepare the interpreter for code of this process."""
        ...

    def leave(self) -> None:
        """Undo `enter`."""
        ...


class Event:
    """One thing that happens at a time, unless it is cancelled before."""

    __slots__ = ("arguments", "call")

    def __init__(self, call: Callable[..., None], arguments: Any) -> None:
        self.call: Callable[..., None] | None = call
        self.arguments = arguments

    def cancel(self) -> None:
        """Have it not happen. Harmless afterwards."""
        self.call = None
        self.arguments = ()


class Hub:
    """The events of one world. Build it, and call `run`, on the greenlet that is no process."""

    def __init__(self, seed: int) -> None:
        self.now_ns = 0
        self.random: Final = Random(seed)
        self.event_count = 0
        self.trace_hash = 0
        self.trace: list[str] | None = None
        """Lines of what happened; None: only the hash is kept."""
        self.current: Owner | None = None
        """The process whose code runs."""
        self._heap: list[tuple[int, int, Event]] = []
        self._sequence = 0
        self._greenlet: Final = getcurrent()
        self._failure: BaseException | None = None

    # --- Time ---

    def at(self, at_ns: int, call: Callable[..., None], *arguments: Any) -> Event:
        """Have `call(*arguments)` happen at a time, on the hub; not before what is due now."""
        self._sequence += 1
        event = Event(call, arguments)
        now_ns = self.now_ns
        heapq.heappush(self._heap, (at_ns if at_ns > now_ns else now_ns, self._sequence, event))
        return event

    def after(self, delay_ns: int, call: Callable[..., None], *arguments: Any) -> Event:
        """Have `call(*arguments)` happen after a delay."""
        return self.at(self.now_ns + delay_ns, call, *arguments)

    def run(self, until_ns: int, *, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen up to a time, or until `is_over` after an event.

        Raises what code of the world raised without anybody to take it."""
        assert getcurrent() is self._greenlet, "a process cannot run the world"
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            at_ns, _, event = heapq.heappop(heap)
            call = event.call
            if call is None:
                continue
            self.now_ns = at_ns
            self.event_count += 1
            call(*event.arguments)
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if is_over():
                return
        self.now_ns = max(self.now_ns, until_ns)

    def fail(self, error: BaseException) -> None:
        """End `run` with an error after the present event."""
        if self._failure is None:
            self._failure = error

    # --- Switches ---

    def make(self, work: Callable[[], None]) -> greenlet:
        """Return a greenlet for code of a process, to be entered by `resume`: its wait 0."""
        made = greenlet(work, self._greenlet)
        made.wait_number = 0  # type: ignore[attr-defined]  # Greenlets have room for it.
        return made

    def resume(self, owner: Owner, of: Any, wait_number: int) -> None:
        """Have code of a process go on from a wait, until it waits again or ends. On the hub only.

        Harmless when it went on from that wait before: a time-out and what it waited for may both
        come."""
        assert getcurrent() is self._greenlet, "only the hub switches to a process"
        if not owner.is_alive or of.dead or of.wait_number != wait_number:
            return
        if owner.is_paused:
            owner.held.append((of, wait_number))
            return
        of.wait_number = wait_number + 1
        self.current = owner
        owner.enter(of)
        try:
            of.switch()
        finally:
            owner.leave()
            self.current = None

    @staticmethod
    def next_wait() -> int:
        """Return the number of the next wait of the code that calls this, for `resume`."""
        here: Any = getcurrent()
        number: int = here.wait_number
        return number

    def wait(self) -> None:
        """Leave code of a process until `resume` switches to its greenlet again."""
        assert getcurrent() is not self._greenlet, "the hub itself cannot wait"
        self._greenlet.switch()

    # --- Trace ---

    def note(self, what: str) -> None:
        """Add a line to the trace: two runs of one seed have the same lines."""
        line = f"{self.now_ns // NS_PER_US} {what}"
        self.trace_hash = hash_line(self.trace_hash, line)
        if self.trace is not None:
            self.trace.append(line)


def hash_line(before: int, line: str) -> int:
    """Return the hash of a trace and one more line. Python's own hash differs by process."""
    data = line.encode()
    low = crc32(data, before & 0xFFFFFFFF)
    return (((before >> 32) * 0x9E3779B97F4A7C15 + low) & 0xFFFFFFFF) << 32 | low
