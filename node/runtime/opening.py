"""The opening of one thing on a thread, for the loop, and its end: it is closed exactly once.

Owns the question who closes it. The loop may give up waiting while the thread still opens, as a
signal during a long recovery makes it do; then the thread itself closes what it opened. Must not
know what is opened.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Final, TypeVar

from node.errors.common import ShuttingDownError

_Opened = TypeVar("_Opened", bound=AbstractContextManager[object])


class Opening:
    """One opening."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._opened: Final = ExitStack()
        self._is_over = False

    def run(self, open_it: Callable[[], _Opened]) -> _Opened:
        """Open it and return it; may be called again after an error of `open_it`.

        Raises ShuttingDownError after `end`, with nothing left open, and the errors of `open_it`.
        """
        opened = open_it()
        with self._lock:
            is_late = self._is_over
            if not is_late:
                self._opened.enter_context(opened)
        if is_late:
            with opened:
                raise ShuttingDownError
        return opened

    def end(self) -> None:
        """Close it if it is open. A `run` under way closes it itself; nothing waits for that."""
        with self._lock:
            opened = self._opened.pop_all()
            self._is_over = True
        opened.close()
