"""Blocking work of a start, a repair or a large message, beside the loop.

Owns the rule that nothing is closed while a thread still uses it. Must not know what the work is.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


async def on_thread(work: Callable[[], _Result]) -> _Result:
    """Do blocking work beside the loop. A cancelled caller waits for its end, so that nothing it
    closes afterwards is still in use."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
