"""The counters of the store, and the frozen value that it shows of them.

Owns the counters and their meaning; must not know their readers. Each counter is moved by one
thread only (puts by the writer, syncs by the flush thread), so no lock is needed: a reader may see
one put counted whose bytes are not. A latency costs one shift and one list element: the buckets are
powers of two of a microsecond.
Source: RocketMQ StoreStatsService; storage-formats 9.3.
"""

from bisect import bisect_left
from dataclasses import dataclass, field, fields
from typing import Final

LATENCY_BUCKET_COUNT: Final = 27  # Bucket k holds [2**(k-1), 2**k) us; the last from 33 s on.


class Latencies:
    """A histogram of durations; `note` is the hot path."""

    __slots__ = ("_counts", "max_us", "total_us")

    def __init__(self) -> None:
        self._counts = [0] * LATENCY_BUCKET_COUNT
        self.total_us = 0
        self.max_us = 0

    def note(self, duration_us: int, count: int = 1) -> None:
        """Count a duration, `count` times."""
        bucket = duration_us.bit_length()
        self._counts[bucket if bucket < LATENCY_BUCKET_COUNT else -1] += count
        self.total_us += duration_us * count
        if duration_us > self.max_us:  # noqa: PLR1730  Half the time of max().
            self.max_us = duration_us

    def note_all(self, durations_us: list[int]) -> None:
        """Count durations in a few calls, however many there are. Sorts the list."""
        durations_us.sort()
        begin, last = 0, LATENCY_BUCKET_COUNT - 1
        while begin < len(durations_us):
            bucket = min(durations_us[begin].bit_length(), last)
            end = bisect_left(durations_us, 1 << bucket, begin)
            if bucket == last:
                end = len(durations_us)
            self._counts[bucket] += end - begin
            begin = end
        if durations_us:
            self.total_us += sum(durations_us)
            self.max_us = max(self.max_us, durations_us[-1])

    @property
    def count(self) -> int:
        """Count of the durations."""
        return sum(self._counts)

    def snapshot(self) -> "LatencyStats":
        """Return the values of now."""
        return LatencyStats(tuple(self._counts), self.total_us, self.max_us)


@dataclass(frozen=True, slots=True)
class LatencyStats:
    """Durations counted so far. `counts[k]` is how many took [2**(k-1), 2**k) microseconds."""

    counts: tuple[int, ...]
    total_us: int
    max_us: int

    @property
    def count(self) -> int:
        """Count of the durations."""
        return sum(self.counts)


@dataclass(slots=True)
class StoreCounters:
    """The live counters of one store. Fields are public; beside each stands its thread."""

    # Writer. From the call to the bytes in page cache.
    put_latencies: Latencies = field(default_factory=Latencies)
    put_count: int = 0  # Writer. Batches appended.
    record_count: int = 0  # Writer.
    put_bytes: int = 0  # Writer.
    put_failed_count: int = 0  # Writer. Appends that raised, whatever the reason.
    store_full_count: int = 0  # Writer. Appends refused because the disk is full.
    busy_count: int = 0  # Writer. Appends refused because a lock, queue or file was not free.
    # Flush thread. One a sync of the log.
    sync_latencies: Latencies = field(default_factory=Latencies)
    sync_bytes: int = 0  # Flush thread. Bytes by which syncs moved the durable position.
    flush_request_count: int = 0  # Flush thread. Requests that a sync resolved.
    flush_timeout_count: int = 0  # Waiters, under the lock of the flush service.
    pool_empty_count: int = 0  # Writer. Files that got no write buffer.
    prepare_failed_count: int = 0  # Warm-up thread. Files that could not be made ahead.
    memory_lock_failed_count: int = 0  # Warning: memory that mlock refused.
    deleted_file_count: int = 0  # Retention.
    deleted_for_room_count: int = 0  # Retention. Of these: those that had not expired.
    # Any thread that meets damage: two at once may count as one.
    derived_damage_count: int = 0  # Blocks of queues and index files that were wrong.
    derived_mended_unit_count: int = 0  # Units of queues that were repaired.
    derived_mended_key_count: int = 0  # Entries and slots of index files that were.
    # Dispatcher. Records of topics with inner batches; a rebuild counts them again.
    inner_batch_count: int = 0
    dispatch_failed_count: int = 0  # Readers, maintenance. Rounds that the full disk stopped.

    def on_put(self, record_count: int, size_bytes: int, duration_us: int) -> None:
        """Count one batch that was appended."""
        self.put_count += 1
        self.record_count += record_count
        self.put_bytes += size_bytes
        self.put_latencies.note(duration_us)


@dataclass(frozen=True, slots=True)
class StoreGauges:
    """The state of the store at one moment, as the store collects it."""

    min_position: int = 0
    max_position: int = 0
    wrote_position: int = 0
    flushed_position: int = 0
    dispatched_position: int = 0
    file_count: int = 0
    prepared_file_count: int = 0
    pool_free_count: int = 0
    hold_count: int = 0
    """Views and running reads that pin files."""
    flush_pending_count: int = 0
    flush_pending_count_max: int = 0
    sync_running_ms: int = 0
    """Time for which the present sync has been running; 0 without one."""
    lock_held_ms: int = 0
    lock_held_ms_max: int = 0
    lock_contended_count: int = 0
    lock_timeout_count: int = 0
    inner_batch_topic_count: int = 0
    """Topics that cannot be read here, since RocketMQ wrote inner batches to them."""
    disk_state: str = "ok"
    disk_used_ratio: float = 0.0
    disk_refusal: str = ""
    """Why appends are refused; empty: they are not, or not for the disk."""


_CONSEQUENCES: Final = {
    "warn": "",
    "force": "the oldest files go although they have not expired: ",
}
"""Consequences of the disk states that are neither ok nor full."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A snapshot of counters and gauges. Times in the unit of the name, sizes in bytes."""

    gauges: StoreGauges
    put_latency: LatencyStats
    sync_latency: LatencyStats
    counters: dict[str, int]

    @property
    def bytes_to_flush(self) -> int:
        """Bytes that are written and not yet durable."""
        return self.gauges.wrote_position - self.gauges.flushed_position

    @property
    def sync_count(self) -> int:
        """Syncs of the log that succeeded."""
        return self.sync_latency.count

    def warnings(self) -> tuple[str, ...]:
        """Return what an operator should know, in sentences; empty when all is well."""
        texts = []
        if count := self.counters["memory_lock_failed_count"]:
            texts.append(
                f"{count} times memory could not be locked; raise the memlock limit (ulimit -l) "
                f"or set lock_memory to false"
            )
        if count := self.counters["prepare_failed_count"]:
            texts.append(f"{count} times a file could not be made ahead; check the disk's space")
        if count := self.counters["pool_empty_count"]:
            texts.append(f"{count} files got no write buffer; raise transient_pool_size")
        if count := self.counters["dispatch_failed_count"]:
            texts.append(f"{count} times the queues could not grow on the full disk; free space")
        if count := self.gauges.inner_batch_topic_count:
            texts.append(
                f"{count} topics have inner batches of RocketMQ (queue.type=BatchCQ), which are "
                f"kept and cannot be read here; read them with RocketMQ"
            )
        if self.gauges.disk_refusal:
            texts.append(f"appends are refused: {self.gauges.disk_refusal}")
        elif self.gauges.disk_state in _CONSEQUENCES:
            texts.append(
                f"the disk is {self.gauges.disk_used_ratio:.0%} used ({self.gauges.disk_state}); "
                f"{_CONSEQUENCES[self.gauges.disk_state]}free space or shorten retention"
            )
        return tuple(texts)


def snapshot(counters: StoreCounters, gauges: StoreGauges) -> StoreStats:
    """Freeze the counters together with the gauges."""
    names = sorted(counter.name for counter in fields(StoreCounters) if counter.type is int)
    numbers = {name: getattr(counters, name) for name in names}
    return StoreStats(
        gauges, counters.put_latencies.snapshot(), counters.sync_latencies.snapshot(), numbers
    )
