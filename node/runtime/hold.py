"""A node that is held on purpose, as by a long computation or a library that hangs (row P6).

Owns the two ways: the thread that calls does nothing more for a while, or no thread at all does,
since the interpreter's lock is kept. Both only when a test says so; must not know who asks.
"""

import ctypes
import time
from typing import Final

HELD_MS_MAX: Final = 60_000


def hold_thread(duration_ms: int) -> None:
    """Let the calling thread, of the event loop as a rule, do nothing; all others go on."""
    assert 0 <= duration_ms <= HELD_MS_MAX, f"held for {duration_ms} ms"
    time.sleep(duration_ms / 1000)


def hold_interpreter(duration_ms: int) -> None:
    """Keep the interpreter's lock: a call of C that does not give it up, as a bad library's."""
    assert 0 <= duration_ms <= HELD_MS_MAX, f"held for {duration_ms} ms"
    # `PyDLL` and not `CDLL`, which would let the lock go. poll() of nothing waits for its time-out.
    ctypes.PyDLL(None).poll(None, 0, duration_ms)
