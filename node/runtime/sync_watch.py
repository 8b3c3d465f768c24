"""Syncs that do not end: the node warns operators, and then ends the process.

Owns the table of running syncs, the thread that checks them, and the time that one may take. Must
not know what is synced or what waits for it. The thread is separate because a hanging disk blocks
each caller: the flush thread, the maintenance thread, or the event loop itself.

Time is counted in looks and needs no clock: a process that was stopped for an hour, or a machine
that slept, has missed its looks, so the time does not count as a hang of its disk.
"""

import threading
from collections.abc import Callable
from typing import Final

import structlog

from node.errors.common import NodeError
from store.errors import Outcome
from store.files.file_system import FileSystem

LOOK_MS: Final = 500
SLOW_SYNC_MS: Final = 5_000
"""Age of a sync above which the node warns operators. A busy disk answers within a second or two.
"""
_log: Final = structlog.get_logger(component="sync-watch")


class SyncHangsError(NodeError):
    """A sync does not end, so the node cannot tell what is durable. The process must stop: as long
    as it lives, clients and other nodes count on it.
    """

    code, outcome = "node.sync_hangs", Outcome.UNKNOWN
    path: str
    running_ms: int

    def __str__(self) -> str:
        return (
            f"{self.path}: a sync has been running for {self.running_ms / 1000:g} s; look at the "
            f"disk and the kernel log, then start the node again"
        )


class RunningSync:
    """One sync call that has not returned. Each call has its own: two are never equal."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


class WatchedFileSystem(FileSystem):
    """The real file system, with a table of its running syncs. For all threads."""

    def __init__(self) -> None:
        self._running: dict[RunningSync, None] = {}

    def running(self) -> list[RunningSync]:
        """Return the syncs that are running at the moment. Any thread."""
        return list(self._running.copy())

    def sync(self, fd: int, path: str) -> None:
        """Sync as FileSystem does; `running` contains the call meanwhile."""
        running = RunningSync(path)
        self._running[running] = None
        try:
            super().sync(fd, path)
        finally:
            del self._running[running]

    def sync_directory(self, path: str) -> None:
        """Sync a directory as FileSystem does; `running` contains the call meanwhile."""
        running = RunningSync(path)
        self._running[running] = None
        try:
            super().sync_directory(path)
        finally:
            del self._running[running]


class SyncWatch:
    """The watch over a node's syncs. `start` it once the store is open, `stop` it after closing."""

    def __init__(
        self, fs: WatchedFileSystem, limit_ms: int, on_hang: Callable[[BaseException], None]
    ) -> None:
        """Watch the syncs of `fs`. `on_hang` is called with a SyncHangsError and must end the
        process, without waiting for any thread."""
        self._fs, self._limit_ms, self._on_hang = fs, limit_ms, on_hang
        self._ages_ms: dict[RunningSync, int] = {}
        """Age of each running sync since the look that saw it first."""
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sync-watch", daemon=True)

    def start(self) -> None:
        """Start the thread that looks."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and join it. Harmless if it was never started."""
        self._is_stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings for an operator, as sentences. Any thread."""
        age_ms = max(self._ages_ms.values(), default=0)
        if age_ms < SLOW_SYNC_MS:
            return ()
        return (
            f"a sync has been running for {age_ms // 1000} s; look at the disk, at "
            f"{self._limit_ms / 1000:g} s the process ends",
        )

    def look(self) -> None:
        """Look at the running syncs, `LOOK_MS` after the last look; warn, or end the process."""
        before = self._ages_ms
        self._ages_ms = {one: before.get(one, -LOOK_MS) + LOOK_MS for one in self._fs.running()}
        for one, age_ms in self._ages_ms.items():
            if before.get(one, 0) < SLOW_SYNC_MS <= age_ms:
                limit_ms = self._limit_ms
                _log.warning("a sync hangs or is slow", path=one.path, limit_ms=limit_ms)
            if age_ms >= self._limit_ms:
                self._on_hang(SyncHangsError(one.path, age_ms))
        for one, age_ms in before.items():
            if age_ms >= SLOW_SYNC_MS and one not in self._ages_ms:
                _log.warning("a slow sync has ended", path=one.path, took_ms=age_ms)

    def _run(self) -> None:
        while not self._is_stopping.wait(LOOK_MS / 1000):
            self.look()
