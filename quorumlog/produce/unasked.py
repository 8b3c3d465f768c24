"""What a program did not ask about its messages: failures, and messages that wait when it ends.

Owns the failed batches that no flush has named, and the warning at the end of a program. Failures
that a caller was told of take no room; of too many others the first and the newest are kept, so
that a flush always has one to raise.

A flush covers the messages that were handed over before it began. It raises the first failure of
these that no caller received, also when another flush that ran meanwhile has raised it; a flush
that begins later does not.
"""

import copy
import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from quorumlog.cluster.program_end import at_end
from quorumlog.errors import QuorumlogError
from quorumlog.produce.delivery import Batch

KEPT_COUNT_MAX: Final = 1_000
"""Failed batches that are kept; those that were asked for meanwhile make room."""
_log = logging.getLogger("quorumlog.producer")


class _LeftOut(NamedTuple):
    """Failed messages whose batches are not kept."""

    message_count: int
    newest: QuorumlogError


class _Flush:
    """A flush under way: it covers all batches that were made before, and of the batches that were
    open the messages that they had."""

    def __init__(self, number: int, counts: Mapping[Batch, int]) -> None:
        self.number, self._counts = number, counts
        self.error: QuorumlogError | None = None
        """Error of a covered message that another flush has raised."""

    def count_of(self, batch: Batch, number: int) -> int:
        """Return how many messages it covers of a batch; `number` is that of the first flush which
        covers the batch."""
        return self._counts.get(batch, batch.record_count) if number <= self.number else 0


class Failures:
    """The failed batches of a producer with messages whose error no caller received."""

    def __init__(self) -> None:
        self.next_flush = 0
        """Number of the flush that begins next."""
        self._flushes: list[_Flush] = []
        self._batches: list[tuple[Batch, int]] = []
        """Each with the number of the first flush that covers it."""
        self._left_out: dict[int, _LeftOut] = {}
        """By the number of the first flush, of those under way and the next, that covers them."""
        self._unlooked_count = KEPT_COUNT_MAX
        """Batches left out since the kept ones were looked through."""

    def note(self, batch: Batch, number: int) -> None:
        """Note a batch that has failed, after those that waited for it have received the error.

        `number` is that of the first flush that covers it.
        """
        if not any(batch.untold_errors()):
            return
        is_full = len(self._batches) == KEPT_COUNT_MAX
        if is_full and self._unlooked_count >= KEPT_COUNT_MAX:
            self._batches = [one for one in self._batches if any(one[0].untold_errors())]
            self._unlooked_count = 0
        if len(self._batches) < KEPT_COUNT_MAX:
            self._batches.append((batch, number))
            return
        self._unlooked_count += 1
        covers = [(flush.number, flush.count_of(batch, number)) for flush in self._flushes]
        named = 0  # Each covers as many of the messages as the one before it, or more.
        for first, count in [*covers, (self.next_flush, batch.record_count)]:
            errors = list(batch.untold_errors(count))
            if len(errors) > named:
                self._leave_out(first, _LeftOut(len(errors) - named, errors[-1]))
            named = len(errors)

    def _leave_out(self, number: int, more: _LeftOut) -> None:
        left_out = self._left_out.get(number)
        count = more.message_count + (left_out.message_count if left_out else 0)
        self._left_out[number] = more._replace(message_count=count)

    @contextmanager
    def flush(self, unfinished: Iterable[Batch]) -> Iterator[None]:
        """Wait within until the unfinished batches are done. Raises the first failure that it
        covers and that no caller received. A flush that is given up takes none from the others."""
        counts = {batch: batch.record_count for batch in unfinished if batch.is_open}
        flush, self.next_flush = _Flush(self.next_flush, counts), self.next_flush + 1
        self._flushes.append(flush)
        try:
            yield
        except BaseException:
            if left_out := self._left_out.pop(flush.number, None):
                later = (one.number for one in self._flushes if one.number > flush.number)
                self._leave_out(min(later, default=self.next_flush), left_out)
            raise
        finally:
            self._flushes.remove(flush)
        count, first = self.untold(flush)
        first = flush.error or first
        if first is None:
            return
        for other in self._flushes:
            other.error = other.error or self.untold(other)[1]
        self._forget(flush)
        error = copy.copy(first)  # Each flush gets a traceback of its own.
        if count > 1:
            error.add_note(f"{count} messages failed and no caller received the error")
        raise error from first.__cause__

    def untold(self, flush: _Flush | None = None) -> tuple[int, QuorumlogError | None]:
        """Return the count of failed messages whose error no caller received, of all or of those of
        a flush, and the first error."""
        count, first = 0, None
        for batch, number in list(self._batches):
            covered = None if flush is None else flush.count_of(batch, number)
            for error in batch.untold_errors(covered):
                count, first = count + 1, first or error
        for number, left_out in list(self._left_out.items()):
            if flush is None or number <= flush.number:
                count, first = count + left_out.message_count, first or left_out.newest
        return count, first

    def _forget(self, flush: _Flush) -> None:
        batches, self._batches = self._batches, []
        for batch, number in batches:
            count = flush.count_of(batch, number)
            if count < batch.record_count:
                batch.notices.update(range(count))
                self._batches.append((batch, number))
        later = {n: one for n, one in self._left_out.items() if n > flush.number}
        self._left_out, self._unlooked_count = later, KEPT_COUNT_MAX


_watched: dict[weakref.WeakMethod[Callable[[], int]], tuple[Failures, Collection[Batch]]] = {}


def watch(
    waiting_count: Callable[[], int], failures: Failures, unfinished: Collection[Batch]
) -> None:
    """Warn when the program ends while messages wait, or have failed and no caller was told. The
    method counts those that wait of a producer, while there is one; any thread may call it. An
    unfinished batch keeps its producer, also where the program and its loop have let go of it."""
    method = weakref.WeakMethod(waiting_count, lambda gone: _watched.pop(gone, None))
    _watched[method] = failures, unfinished


@at_end
def _warn_all() -> None:
    for count in list(_watched):
        if (count_left := count()) is not None:
            warn(count_left)


def warn(waiting_count: Callable[[], int]) -> None:
    """Warn, once, of what no caller asked about a producer that can send no more."""
    watched = _watched.pop(weakref.WeakMethod(waiting_count), None)
    if watched is None:
        return
    parts, waiting, (failed, first) = [], waiting_count(), watched[0].untold()
    if waiting:
        parts.append(f"{waiting} messages had no receipt when the program ended, and may be lost")
    if failed:
        parts.append(f"{failed} messages failed and no caller received the error, first: {first}")
    if parts:
        _log.warning(
            "%s; await flush() or close() before, and read back what was stored", "; ".join(parts)
        )
