"""The one limit of all waits for what has to happen, the two loops that wait so, and the end of
tasks.

A machine that stands still fails no test: the limit only ends a test that waits for what never
comes. A shorter limit stands where a time-out is the subject, on a client that does nothing else.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

PATIENCE_S: Final = 120
"""A start of three nodes takes 20 s on a machine with a load of ten."""
_PAUSE_S: Final = 0.01
_LOOP_PAUSE_S: Final = 0.001
_T = TypeVar("_T")


def wait_for(what: str, found: Callable[[], _T]) -> _T:
    """Return the first true answer; says what was waited for when there is none."""
    deadline_s, never = time.monotonic() + PATIENCE_S, threading.Event()
    while not (answer := found()):
        assert time.monotonic() < deadline_s, f"waited {PATIENCE_S} s for {what}"
        never.wait(_PAUSE_S)
    return answer


async def eventually(is_true: Callable[[], object], what: str = "") -> None:
    """Let the loop run until a condition holds. It may be a coroutine function."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        answer = is_true()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        assert time.monotonic() < deadline_s, f"waited {PATIENCE_S} s for {what or 'a condition'}"
        await asyncio.sleep(_LOOP_PAUSE_S)


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait until they have ended, however they do."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
