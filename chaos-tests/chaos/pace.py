"""How slow this machine is while a scenario runs, and what a deadline means on it (I15).

Owns the measure: a fixed piece of work on a thread, timed again and again, against what it takes on
a machine of two quiet cores. Twice the time is half the pace, and every deadline is twice as long;
a machine that is faster gets no shorter ones. Must not know what is waited for.
"""

import asyncio
import hashlib
import time
from types import TracebackType
from typing import Final, Self

QUIET_MS: Final = 12.0
_PIECE: Final = bytes(1 << 20)
_PIECE_COUNT: Final = 20
_PAUSE_S: Final = 1.0


class Pace:
    """The pace while its `async with` lasts."""

    def __init__(self) -> None:
        self._spans_ms: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._task is not None, "entered"
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._spans_ms.append(await asyncio.to_thread(_work_ms))
            await asyncio.sleep(_PAUSE_S)

    @property
    def slowness(self) -> float:
        """How much longer everything may take, 1 at least: what one in ten pieces exceeded."""
        return slowness_of(self._spans_ms)


def slowness_of(spans_ms: list[float]) -> float:
    """Judge the times of pieces of work."""
    if not spans_ms:
        return 1.0
    return max(1.0, sorted(spans_ms)[int(0.9 * len(spans_ms))] / QUIET_MS)


def _work_ms() -> float:
    """Time one piece; hashing lets the interpreter lock go, so our own loop is no hindrance."""
    began = time.perf_counter()
    hashed = hashlib.sha256(usedforsecurity=False)
    for _ in range(_PIECE_COUNT):
        hashed.update(_PIECE)
    return (time.perf_counter() - began) * 1000
