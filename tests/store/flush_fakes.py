"""Fakes for the flush thread: a log whose syncs wait for the test, so nothing depends on time."""

import threading
from collections.abc import Callable

from store.config import StoreConfig
from store.errors import StoreError
from tests.patience import PATIENCE_S

FOREVER_MS = 1000 * PATIENCE_S
RULES = StoreConfig(
    file_size_bytes=1 << 20,
    flush_interval_ms=1_000_000,
    flush_thorough_interval_ms=1_000_000,
    durable_mark_interval_ms=1_000_000,
    commit_interval_ms=1_000_000,
    commit_thorough_interval_ms=1_000_000,
)


class FakeLog:
    """Appends are instant; a sync blocks until the test lets it go on, unless `is_free`."""

    def __init__(self, *, is_free: bool = False) -> None:
        self.max_position = 0
        self.flushed_position = 0
        self.is_free = is_free
        self.sync_count = 0
        self.events: list[str] = []
        self.errors: dict[int, BaseException] = {}  # By number of the sync, from 1.
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def append(self, size_bytes: int = 10) -> int:
        self.max_position += size_bytes
        return self.max_position

    def sync(self) -> int:
        self.sync_count += 1
        end = self.max_position
        self.events.append(f"sync to {end} began")
        self.began.release()
        if not self.is_free:
            assert self.may_end.acquire(timeout=PATIENCE_S), "the test forgot this sync"
        if self.sync_count in self.errors:
            self.events.append("sync failed")
            raise self.errors[self.sync_count]
        self.events.append(f"sync to {end} ended")
        self.flushed_position = end
        return end

    def await_sync(self) -> None:
        assert self.began.acquire(timeout=PATIENCE_S), "no sync began"


class Answers:
    """Collects what callbacks are told, and by which thread."""

    def __init__(self, log: FakeLog | None = None) -> None:
        self.log = log
        self.got: list[tuple[int, StoreError | None]] = []
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def callback(self, position: int) -> Callable[[StoreError | None], None]:
        def tell(error: StoreError | None) -> None:
            with self._changed:
                self.got.append((position, error))
                self.threads.add(threading.current_thread().name)
                if self.log is not None:
                    self.log.events.append(f"told {position}")
                self._changed.notify_all()

        return tell

    def await_count(self, count: int) -> list[tuple[int, StoreError | None]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, PATIENCE_S), self.got
            return list(self.got)


class Fatal:
    def __init__(self) -> None:
        self.causes: list[BaseException] = []
        self.called = threading.Event()

    def __call__(self, cause: BaseException) -> None:
        self.causes.append(cause)
        self.called.set()


class Clock:
    def __init__(self) -> None:
        self.now_ms = 5_000_000

    def __call__(self) -> int:
        return self.now_ms * 1_000_000


def never(cause: BaseException) -> None:
    raise AssertionError(f"fatal: {cause!r}")


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run `work` on a thread; its result, or what it raised, is appended to the list."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except StoreError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


class Sink:
    """Records the order of things; may check what is true when it is told."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.error: BaseException | None = None

    def on_synced(self, flushed_position: int) -> None:
        self.events.append(f"mark {flushed_position}")
        if self.error is not None:
            raise self.error

    def on_settled(self, now_ms: int) -> None:
        self.events.append("settled")
