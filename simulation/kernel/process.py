"""A process of a simulated machine: its event loop, its threads, and its end at any moment.

Owns which greenlets belong to it. An end runs no code of the process any more: no handler, no
`finally`. What it leaves behind is what its disk and the network hold.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from greenlet import getcurrent, greenlet

from simulation.kernel.hub import NS_PER_US, Event, Hub
from simulation.kernel.loop import VirtualLoop
from simulation.kernel.machine import Machine

TURN_NS_MIN: Final = 5 * NS_PER_US
TURN_NS_MAX: Final = 60 * NS_PER_US
"""How long a turn of an event loop takes: time stands still while code runs."""


class Process:
    """One process. `start` it; `kill` it at any time, from anywhere."""

    def __init__(self, hub: Hub, machine: Machine, name: str) -> None:
        self.hub: Final = hub
        self.machine: Final = machine
        self.name = name
        self.random: Final = Random(hub.random.getrandbits(64))
        self.is_alive = False
        self.is_paused = False
        self.held: list[tuple[greenlet, int]] = []
        self.exit_code: int | None = None
        """What it ended with on its own; None: it runs, or was killed."""
        self.error: BaseException | None = None
        """What its main coroutine raised."""
        self.slowness = 1.0
        """How many times longer than usual its turns take."""
        # Methods that our code does not call raise NotImplementedError.
        self.loop: Final = VirtualLoop(self)  # type: ignore[abstract]
        self.main: Any = None
        """The greenlet of the loop."""
        self.current_thread: Any = None
        """The simulated thread whose code runs; None: the one of the loop."""
        self._kept: list[Any] = []
        self.on_end: list[Callable[[], None]] = []
        """Called on the hub, once, when it has ended in whatever way."""

    # --- Life ---

    def start(self, main: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """Run a coroutine as the process; what it returns is the exit code."""
        assert self.main is None, f"{self.name} was started before"
        self.is_alive = True

        def live() -> None:
            try:
                self.exit_code = self.loop.run_until_complete(main())
            except Exception as error:  # noqa: BLE001 - what the process failed with is judged.
                self.error = error
            self._end()

        self.main = self.hub.make(live)
        self.hub.at(self.hub.now_ns, self.hub.resume, self, self.main, 0)

    def kill(self) -> None:
        """End it now. Called by its own code, this does not return."""
        if not self.is_alive:
            return
        self._end()
        if self.hub.current is self:
            self.hub.wait()
            raise AssertionError("code of a dead process went on")

    def pause(self) -> None:
        """Stop it as SIGSTOP does: its clock continues, and its sockets take what comes."""
        self.is_paused = True

    def go_on(self) -> None:
        """Let a paused process continue."""
        self.is_paused = False
        held, self.held = self.held, []
        for of, wait_number in held:
            self.hub.at(self.hub.now_ns, self.hub.resume, self, of, wait_number)

    def exit(self, code: int) -> None:
        """End it as `os._exit` does; does not return when called by its own code."""
        self.exit_code = code
        self.kill()

    def _end(self) -> None:
        self.is_alive = False
        self.loop.drop()
        calls, self.on_end = self.on_end, []
        for call in calls:
            self.hub.at(self.hub.now_ns, call)

    # --- Owner ---

    def enter(self, of: greenlet) -> None:
        """Make this the process whose code runs."""
        self.current_thread = getattr(of, "simulated_thread", None)
        if of is self.main:
            asyncio._set_running_loop(self.loop)
            sys.set_asyncgen_hooks(None, self.loop.close_generator)

    def leave(self) -> None:
        """Undo `enter`."""
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(None, None)

    def keep(self, thing: object) -> None:
        """Hold something for as long as the process is held: greenlets that are dropped would run
        their `finally` blocks at any time."""
        self._kept.append(thing)

    # --- Waiting ---

    def spend(self, duration_ns: int) -> None:
        """Let time pass for the code that calls this, as work does. Others go on meanwhile."""
        here = getcurrent()
        self.hub.after(duration_ns, self.hub.resume, self, here, self.hub.next_wait())
        self.hub.wait()

    def turn_ns(self) -> int:
        """Return how long the next turn of the loop takes."""
        share = self.random.random()
        return int((TURN_NS_MIN + share * (TURN_NS_MAX - TURN_NS_MIN)) * self.slowness)


class Waiter:
    """Code of a process that waits for something, for a while at most."""

    __slots__ = ("_greenlet", "_process", "_timer", "_wait_number", "is_woken")

    def __init__(self, process: Process) -> None:
        self._process, self._greenlet = process, getcurrent()
        self._timer: Event | None = None
        self._wait_number = process.hub.next_wait()
        self.is_woken = False

    def wait(self, timeout_ns: int | None) -> bool:
        """Wait until `wake`; return False if the time was over first."""
        hub = self._process.hub
        assert self._wait_number == hub.next_wait(), "a waiter waits once, and at once"
        if timeout_ns is not None:
            self._timer = hub.after(timeout_ns, self._resume)
        hub.wait()
        return self.is_woken

    def wake(self) -> None:
        """Have the waiting code go on in a moment. Harmless when it does already."""
        if self.is_woken:
            return
        self.is_woken = True
        if self._timer is not None:
            self._timer.cancel()
        process = self._process
        process.hub.after(process.random.randrange(1, 10) * NS_PER_US, self._resume)

    def _resume(self) -> None:
        self._process.hub.resume(self._process, self._greenlet, self._wait_number)


def current_process(hub: Hub) -> Process:
    """Return the process whose code calls this."""
    process = hub.current
    assert isinstance(process, Process), "no process is running"
    return process
