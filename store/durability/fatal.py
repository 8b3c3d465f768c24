"""How the process ends when it must not go on.

Owns the exit codes and the last message. After a failed sync or a failed assertion no append
may be acknowledged any more, on any thread, so the process ends at once and without any clean-up
that could write. Sources: design 4.6, fault-matrix S02, I17.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

from store.errors import FileSystemError, SyncFailedError

EXIT_SYNC_FAILED: Final = 74  # EX_IOERR of sysexits.h.
EXIT_INTERNAL_ERROR: Final = 70  # EX_SOFTWARE.


def end_process(cause: BaseException) -> None:
    """Say why on stderr and end the process. The default of `Store.open(on_fatal=...)`."""
    is_disk = isinstance(cause, SyncFailedError | FileSystemError)
    what = "its disk failed" if is_disk else "an invariant of the store is broken"
    if isinstance(cause, SyncFailedError):
        what = "a sync failed"
    text = "".join(traceback.format_exception(cause))
    sys.stderr.write(
        f"{text}quorumlog: the process ends because {what}: {cause}\n"
        f"Nothing after the last good sync was acknowledged. Start it again to recover.\n"
    )
    sys.stderr.flush()
    os._exit(EXIT_SYNC_FAILED if is_disk else EXIT_INTERNAL_ERROR)


class FirstCause:
    """An `on_fatal` that passes the first cause on and remembers it; later ones follow from it."""

    def __init__(self, on_fatal: Callable[[BaseException], None]) -> None:
        self._on_fatal = on_fatal
        self._lock = threading.Lock()
        self.cause: BaseException | None = None

    def __call__(self, cause: BaseException) -> None:
        with self._lock:
            if self.cause is not None:
                return
            self.cause = cause
        self._on_fatal(cause)
