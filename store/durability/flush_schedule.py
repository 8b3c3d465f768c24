"""When the timed flush and the commit are due: a pure function of a clock and some positions.

Owns the intervals; must not know threads or files. Apart from `store.durability.flush` so that
every rule is tested without a thread and without waiting. Source: RocketMQ FlushRealTimeService,
CommitRealTimeService, DefaultMappedFile#isAbleToFlush; storage-formats 5.1, 5.4.
"""

from store import format as fmt
from store.config import StoreConfig


class FlushSchedule:
    """Keeps when flush and commit were last asked about. All times are monotonic milliseconds."""

    def __init__(self, config: StoreConfig, now_ms: int) -> None:
        self._config = config
        # With flush=sync the timed flush only picks up bytes without a request: any byte counts.
        self._least_pages = config.flush_least_pages if config.flush == "async" else 0
        self._looked_ms = self._thorough_ms = now_ms
        self._commit_looked_ms = self._commit_thorough_ms = now_ms
        self._settled_ms = now_ms

    def wait_ms(self, now_ms: int, has_pool: bool) -> int:
        """Return the time until something is due, 0 or less when it is."""
        config = self._config
        due_ms = min(
            self._looked_ms + max(1, config.flush_interval_ms),
            self._settled_ms + max(1, config.durable_mark_interval_ms or config.flush_interval_ms),
        )
        if has_pool:
            due_ms = min(due_ms, self._commit_looked_ms + max(1, config.commit_interval_ms))
        return due_ms - now_ms

    def settled(self, now_ms: int) -> None:
        """Note that the sink was called."""
        self._settled_ms = now_ms

    def is_flush_due(self, now_ms: int, max_position: int, flushed_position: int) -> bool:
        """Restart the interval if it has passed; return whether the timer wants a sync now."""
        config = self._config
        if now_ms < self._looked_ms + config.flush_interval_ms:
            return False
        self._looked_ms = now_ms
        least_pages = self._least_pages
        if now_ms >= self._thorough_ms + config.flush_thorough_interval_ms:
            self._thorough_ms, least_pages = now_ms, 0
        return self._is_enough(max_position, flushed_position, least_pages)

    def is_commit_due(self, now_ms: int, wrote_position: int, committed_position: int) -> bool:
        """Restart the interval if it has passed; return whether the timer wants a commit now."""
        config = self._config
        if now_ms < self._commit_looked_ms + config.commit_interval_ms:
            return False
        self._commit_looked_ms = now_ms
        least_pages = config.commit_least_pages
        if now_ms >= self._commit_thorough_ms + config.commit_thorough_interval_ms:
            self._commit_thorough_ms, least_pages = now_ms, 0
        return self._is_enough(wrote_position, committed_position, least_pages)

    def _is_enough(self, hi: int, lo: int, least_pages: int) -> bool:
        if hi // self._config.file_size_bytes > lo // self._config.file_size_bytes:
            return True  # A file is full: its rest cannot grow any more.
        if least_pages:
            return hi // fmt.PAGE_SIZE_BYTES - lo // fmt.PAGE_SIZE_BYTES >= least_pages
        return hi > lo
