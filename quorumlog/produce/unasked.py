"""What a program did not ask about its messages: failures, and messages that wait when it ends.

Owns the failed batches since the last flush, and the warning at the end of a program. Failures that
a caller was told of take no room; of too many others the first and the newest are kept, so that a
flush always has one to raise.
"""

import atexit
import logging
import multiprocessing
import os
import weakref
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import Final

from quorumlog.cluster.forks import forks
from quorumlog.errors import QuorumlogError
from quorumlog.produce.delivery import Batch

KEPT_COUNT_MAX: Final = 1_000
"""Failed batches that are kept; those that were asked for meanwhile make room."""
_log = logging.getLogger("quorumlog.producer")


class Failures:
    """The failed batches of a producer with messages whose error no caller received."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._left_out_count = 0
        self._newest: QuorumlogError | None = None
        """The newest error of those left out."""

    def note(self, batch: Batch) -> None:
        """Note a batch that has failed, after those that waited for it have received the error."""
        if batch.untold_error is None:
            return
        if len(self._batches) == KEPT_COUNT_MAX and self._left_out_count % KEPT_COUNT_MAX == 0:
            self._batches = [one for one in self._batches if one.untold_error is not None]
        if len(self._batches) < KEPT_COUNT_MAX:
            self._batches.append(batch)
        else:
            self._left_out_count += 1
            self._newest = batch.error

    def take(self) -> QuorumlogError | None:
        """Forget all failures; return the first that no caller received, or the newest of those
        left out."""
        batches, self._batches = self._batches, []
        newest, self._newest, self._left_out_count = self._newest, None, 0
        return next(filter(None, (batch.untold_error for batch in batches)), newest)


_pids: set[int] = set()
"""Processes whose end was looked at: a fork has that of its parent."""
_counts: set[weakref.WeakMethod[Callable[[], int]]] = set()


def watch(waiting_count: Callable[[], int]) -> None:
    """Warn when the program ends while messages wait. The method counts those of a producer, while
    there is one; any thread may call it."""
    _counts.add(weakref.WeakMethod(waiting_count, _counts.discard))
    if os.getpid() not in _pids:
        _pids.add(os.getpid())
        if multiprocessing.parent_process() is not None:  # Its end does not run `atexit`.
            Finalize(None, _warn_all, exitpriority=0)


@atexit.register
def _warn_all() -> None:
    for count in [] if forks.parent else list(_counts):  # A fork has copies of its parent's.
        if (found := count()) is not None:
            warn(found())


def warn(count: int) -> None:
    """Warn of messages that had no receipt when their producer could send no more."""
    if count:
        _log.warning(
            "%d messages had no receipt when the program ended, and may be lost; await flush() or "
            "close() before, and read back what was stored",
            count,
        )
