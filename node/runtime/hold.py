"""Holding a node on purpose, like a long computation or a library that hangs would (row P6).

Owns the two ways: the calling thread pauses for a while, or all threads do, since the call keeps
the interpreter's lock. Both are for tests only; must not know their callers.
"""

import ctypes
import time
from typing import Final

HELD_MS_MAX: Final = 60_000


def hold_thread(duration_ms: int) -> None:
    """Pause the calling thread, usually that of the event loop; all other threads go on."""
    assert 0 <= duration_ms <= HELD_MS_MAX, f"held for {duration_ms} ms"
    time.sleep(duration_ms / 1000)


def hold_interpreter(duration_ms: int) -> None:
    """Keep the interpreter's lock, by a C call that does not release it, as in a bad library."""
    assert 0 <= duration_ms <= HELD_MS_MAX, f"held for {duration_ms} ms"
    # `PyDLL`, since `CDLL` would release the lock. poll() without descriptors waits its time-out.
    ctypes.PyDLL(None).poll(None, 0, duration_ms)
