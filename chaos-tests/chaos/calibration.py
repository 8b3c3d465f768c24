"""Slowness of this machine, measured while no node of a run is on it.

Owns three fixed measures and their values on the machine of the published figures, with two idle
cores: a piece of the interpreter's work, done on every core at once; the delay of a loop's wake-up;
a sync in the directory of the nodes' files. No part of the product runs meanwhile, so a node
that wastes time cannot make the machine look slow. Must not know gates.
"""

import asyncio
import os
import random
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WORK_MS: Final = 5.6
"""Duration of a piece of the interpreter's work on the machine of the published figures."""
SQUEEZE_MS: Final = 2.1
"""Duration of a piece of compiled work there, on each core at once."""
WAKE_MS: Final = 0.25
SYNC_MS: Final = 0.15
HOP_COUNT: Final = 20
"""Wake-ups and syncs that follow one another in a fail-over of about a second."""
_ROUND_COUNT: Final = 40
_WORK_STEPS: Final = 60_000
_CORE_COUNT_MAX: Final = 4
"""Cores that a cluster of a run can use."""
_SQUEEZED: Final = random.Random(1).randbytes(48 << 10) * 2
_WAKE_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """The measures, in milliseconds; each the mean of its rounds."""

    work_ms: float
    squeeze_ms: float
    wake_ms: float
    sync_ms: float

    @property
    def slowness(self) -> float:
        """Duration of a fail-over here, in multiples of that on the idle machine; 1 at least."""
        work = max(self.work_ms / WORK_MS, self.squeeze_ms / SQUEEZE_MS)
        late_ms = max(0.0, self.wake_ms - WAKE_MS) + max(0.0, self.sync_ms - SYNC_MS)
        return max(1.0, work + HOP_COUNT * late_ms / 1000)

    def __str__(self) -> str:
        return (
            f"{self.slowness:.2f} times slower than a quiet one (work {self.work_ms:.1f} ms for "
            f"{WORK_MS}, on all cores {self.squeeze_ms:.1f} for {SQUEEZE_MS}, wake-up "
            f"{self.wake_ms:.2f} for {WAKE_MS}, sync {self.sync_ms:.2f} for {SYNC_MS})"
        )


QUIET: Final = MachineSpeed(WORK_MS, SQUEEZE_MS, WAKE_MS, SYNC_MS)


def calibrate(place: Path) -> MachineSpeed:
    """Measure this machine for about half a second; `place` is the parent of the nodes' files.

    Call it while no node runs."""
    return MachineSpeed(
        _mean(_work_ms), _mean(_squeeze_ms), asyncio.run(_wake_ms()), _sync_ms(place)
    )


def _mean(measure: Callable[[], float]) -> float:
    return statistics.fmean(measure() for _ in range(_ROUND_COUNT))


def _work_ms() -> float:
    began, value, seen = time.perf_counter(), 0, dict[int, int]()
    for step in range(_WORK_STEPS):
        seen[step & 1023] = value
        value = (value * 31 + step) & 0xFFFFFFFF
    return (time.perf_counter() - began) * 1000


def _squeeze_ms() -> float:
    """Measure compression on all cores: it releases the interpreter lock, so threads run at
    once."""
    spans_ms: list[float] = []

    def squeeze() -> None:
        began = time.perf_counter()
        zlib.compress(_SQUEEZED, 6)
        spans_ms.append((time.perf_counter() - began) * 1000)

    count = min(_CORE_COUNT_MAX, os.cpu_count() or 1)
    threads = [threading.Thread(target=squeeze) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(spans_ms)


async def _wake_ms() -> float:
    spans_ms = []
    for _ in range(_ROUND_COUNT):
        began = time.perf_counter()
        await asyncio.sleep(_WAKE_S)
        spans_ms.append((time.perf_counter() - began - _WAKE_S) * 1000)
    return statistics.fmean(spans_ms)


def _sync_ms(place: Path) -> float:
    with tempfile.TemporaryFile(dir=place) as file:

        def sync_ms() -> float:
            os.pwrite(file.fileno(), os.urandom(4096), 0)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            return (time.perf_counter() - began) * 1000

        return _mean(sync_ms)
