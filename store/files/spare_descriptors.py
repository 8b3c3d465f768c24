"""Descriptors kept aside for calls that must not fail when the process has none left (row R1).

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
"""More than one: a connection that arrives at that moment may take one first."""
NONE_LEFT: Final = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or a machine, without a free descriptor."""


class SpareDescriptors:
    """The spare descriptors of a process. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[int] = []

    def open(self, path: str, flags: int) -> int:
        """Open as `os.open`; when no descriptor is left, with a spare one.

        Call `fill` once the descriptor is closed again. Raises OSError.
        """
        return self.lend(lambda: os.open(path, flags))

    def lend(self, call: Callable[[], T]) -> T:
        """Return the result of a call that needs one descriptor; otherwise as `open`."""
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in NONE_LEFT or not self._give_up_one():
                    raise

    def fill(self) -> None:
        """Keep `SPARE_COUNT` descriptors, or as many as can be had."""
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
"""The spare descriptors of this process."""
