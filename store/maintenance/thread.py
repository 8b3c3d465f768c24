"""The maintenance thread of a store that is used as a library.

Owns the interval and the handling of failures; must not know the work. An error that can pass (a
full disk, a failed call) is counted and the work is tried again; any other error ends the
process, because it would go unnoticed otherwise.
"""

import threading
from collections.abc import Callable

from store.errors import FileSystemError, StoreFullError


class StoreMaintenance:
    """Calls `work` every `interval_ms` from `start` to `stop`."""

    def __init__(
        self,
        work: Callable[[], None],
        interval_ms: int,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._work, self._interval_ms, self._on_fatal = work, interval_ms, on_fatal
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-maintain", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait until a running round is done. Harmless if never started."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_ms / 1000):
            try:
                self._work()
            except (FileSystemError, StoreFullError):
                pass  # The work is tried again.
            except BaseException as error:  # noqa: BLE001  The process must not go on.
                self._on_fatal(error)
                return
