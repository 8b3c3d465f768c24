"""Imports of many modules at once, with the garbage collector paused.

Owns the pause. Modules make many objects that live as long as the process and hardly any garbage,
and the collector looks through all of them again and again: a third of the time of such an import.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the collector. It stays off if it was off before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
