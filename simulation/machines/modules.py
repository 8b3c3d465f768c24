"""The modules `time`, `random`, `secrets`, `uuid` and `os` as seen on a simulated machine.

Owns which functions of them are simulated: those that tell the time, draw lots, or name the
process. A few are the real ones, by name; all others raise NotImplementedError.
"""

from __future__ import annotations

import gc
import os
import random
import secrets
import time
import uuid
from random import Random
from typing import Any, ClassVar, NoReturn

from simulation.kernel.hub import NS_PER_S, NS_PER_US, Hub
from simulation.kernel.modules import SimulatedModule
from simulation.kernel.process import Process, current_process


class Time(SimulatedModule):
    """The module `time`. Outside of a process the clocks are those of the world."""

    real: ClassVar = time
    real_names = frozenset(("struct_time",))

    def monotonic_ns(self) -> int:
        process = self._hub.current
        if isinstance(process, Process):
            return process.machine.clock.monotonic_ns()
        return self._hub.now_ns

    def monotonic(self) -> float:
        return self.monotonic_ns() / NS_PER_S

    perf_counter_ns, perf_counter = monotonic_ns, monotonic
    # Code takes no time within a turn, and turns take time of a processor.
    thread_time_ns = process_time_ns = monotonic_ns
    thread_time = process_time = monotonic

    def time_ns(self) -> int:
        process = self._hub.current
        assert isinstance(process, Process), "only machines know a time of day"
        return process.machine.clock.unix_ns()

    def time(self) -> float:
        return self.time_ns() / NS_PER_S

    def gmtime(self, seconds: float | None = None) -> Any:
        return time.gmtime(self.time() if seconds is None else seconds)

    localtime = gmtime  # All machines are in UTC.

    def strftime(self, format: str, t: Any = None) -> str:  # noqa: A002 - the module's name.
        return time.strftime(format, self.gmtime() if t is None else t)

    def sleep(self, seconds: float) -> None:
        current_process(self._hub).spend(int(seconds * NS_PER_S))


class Secrets(SimulatedModule):
    """The module `secrets`."""

    real: ClassVar = secrets
    real_names = frozenset(("compare_digest",))

    def randbits(self, k: int) -> int:
        return current_process(self._hub).random.getrandbits(k)

    def token_bytes(self, nbytes: int = 32) -> bytes:
        return current_process(self._hub).random.randbytes(nbytes)

    def token_hex(self, nbytes: int = 32) -> str:
        return self.token_bytes(nbytes).hex()

    def randbelow(self, exclusive_upper_bound: int) -> int:
        return current_process(self._hub).random.randrange(exclusive_upper_bound)


class Uuid(SimulatedModule):
    """The module `uuid`."""

    real: ClassVar = uuid
    real_names = frozenset(("UUID",))

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(bytes=current_process(self._hub).random.randbytes(16), version=4)


class Lots(SimulatedModule):
    """The module `random`: what it draws without a seed comes from the process."""

    real: ClassVar = random

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.Random = self.SystemRandom = seeded_random(hub)

    def random(self) -> float:
        return current_process(self._hub).random.random()

    def uniform(self, a: float, b: float) -> float:
        return current_process(self._hub).random.uniform(a, b)

    def randrange(self, *arguments: int) -> int:
        return current_process(self._hub).random.randrange(*arguments)

    def randint(self, a: int, b: int) -> int:
        return current_process(self._hub).random.randint(a, b)

    def choice(self, seq: Any) -> Any:
        return current_process(self._hub).random.choice(seq)

    def shuffle(self, x: Any) -> None:
        current_process(self._hub).random.shuffle(x)

    def sample(self, population: Any, k: int) -> Any:
        return current_process(self._hub).random.sample(population, k)


def seeded_random(hub: Hub) -> Any:
    """Return a class such as Random and SystemRandom; without a seed the process gives one."""

    class SeededRandom(Random):
        def __new__(cls, x: Any = None) -> Any:
            return Random.__new__(cls)

        def __init__(self, x: Any = None) -> None:
            super().__init__(current_process(hub).random.getrandbits(64) if x is None else x)

    return SeededRandom


class Os(SimulatedModule):
    """The module `os`. Files are real ones, in a directory of the machine."""

    real: ClassVar = os
    real_names = frozenset(
        (
            # Of paths and errors.
            *("fsdecode", "path", "sep", "devnull", "PathLike", "strerror"),
            # Of the interpreter, which is one for all machines.
            *("environ", "geteuid"),
            # Reads of the real files below a machine's root: they take no time.
            *("access", "lstat", "stat", "walk"),
            "pipe",  # To count descriptors; nothing goes through one.
        )
    )

    def getpid(self) -> int:
        return 1

    def sched_yield(self) -> None:
        current_process(self._hub).spend(NS_PER_US)

    def urandom(self, size: int) -> bytes:
        return current_process(self._hub).random.randbytes(size)

    def _exit(self, status: int) -> NoReturn:
        current_process(self._hub).exit(status)
        raise AssertionError("code of an ended process went on")


class Gc(SimulatedModule):
    """The module `gc`: what a node tells the collector would be for the whole world."""

    real: ClassVar = gc

    def collect(self, *_: Any) -> int:
        return 0

    def freeze(self) -> None:
        """Nothing is frozen."""

    def set_threshold(self, *_: Any) -> None:
        """Thresholds stay as they are."""
