"""Descriptors kept aside for what must not fail when the process has none left (row R1).

Owns a few descriptors that stand for nothing, and their loan. To sync a directory one has to open
it: without a descriptor for that a name could not be made durable, which is no failure of the disk,
and no reason to end. Must not know what a loan is for.
"""

import errno
import os
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

SPARE_COUNT: Final = 4
"""A connection that comes at that moment may take one of them first."""
NONE_LEFT: Final = (errno.EMFILE, errno.ENFILE)
"""The process, or the machine, has no descriptor more."""


class SpareDescriptors:
    """One per process. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[int] = []

    def open(self, path: str, flags: int) -> int:
        """As `os.open`; without a descriptor left, with one of those that are kept.

        Call `fill` once the descriptor is closed again. Raises OSError.
        """
        return self.lend(lambda: os.open(path, flags))

    def lend(self, call: Callable[[], T]) -> T:
        """Return what a call returns that needs one descriptor; otherwise as `open`."""
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in NONE_LEFT or not self._give_up_one():
                    raise

    def fill(self) -> None:
        """Keep as many as there should be, as far as there are any."""
        if len(self._kept) >= SPARE_COUNT:
            return
        with self._lock:
            while len(self._kept) < SPARE_COUNT:
                try:
                    self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError as error:
                    if error.errno not in NONE_LEFT:
                        raise
                    return

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._kept:
                return False
            os.close(self._kept.pop())
            return True


SPARE: Final = SpareDescriptors()
"""Of this process."""
