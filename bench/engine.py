"""Measures the storage engine in one process: append, read, sync, recovery, first writes.

Owns the measured work and its targets. Each figure stands beside the limit of the machine for the
same bytes, measured in the same run, and the ratio of the two is what may be quoted.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from bench import limits
from store.config import GIB, MIB, StoreConfig
from store.record.message import encode_message
from store.store import Store

Container = Literal["commit_log", "ledger"]
CONTAINERS: tuple[Container, ...] = ("commit_log", "ledger")
BODY_SIZE_BYTES = 1024
BATCH_COUNT = 100
WRITER_COUNT = 64
_FILES_DEADLINE_S = 120
_FIRST_WRITE_FILE_SIZE_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class EngineScale:
    """Amount of work of a run."""

    rounds: int = 3
    append_batches: int = 2_000
    single_appends: int = 50_000
    sync_puts_per_writer: int = 200
    recovery_size_bytes: int = GIB
    first_write_files: int = 8


QUICK = EngineScale(1, 300, 5_000, 30, 64 * MIB, 3)


@dataclass(slots=True)
class EngineFigure:
    """One line of the result. `ratio` is value / limit, both in `unit`."""

    what: str
    where: str
    container: str
    unit: str
    value: float
    spread: float
    """Largest minus smallest value of the rounds, as a share of the median."""
    target: float | None = None
    limit: float | None = None
    limit_is: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return one row with stable keys."""
        return {
            "what": self.what,
            "where": self.where,
            "container": self.container,
            "value": round(self.value, 1),
            "unit": self.unit,
            "spread": round(self.spread, 3),
            "target": self.target,
            "met": None if self.target is None else self._is_met(),
            "limit": None if self.limit is None else round(self.limit, 1),
            "limit_is": self.limit_is,
            "ratio": round(self.value / self.limit, 4) if self.limit else None,
            "detail": self.detail,
        }

    def _is_met(self) -> bool:
        assert self.target is not None
        less_is_better = self.unit in ("s", "us")
        return self.value <= self.target if less_is_better else self.value >= self.target


def bench_config(container: Container, **changes: Any) -> StoreConfig:
    """Return settings for a measurement: default sizes, no sync unless the sync is measured."""
    settings: dict[str, Any] = {
        "container": container,
        "flush": "async",
        "flush_interval_ms": 60_000,
        "flush_thorough_interval_ms": 600_000,
        "retention_interval_ms": 3_600_000,
        "index_slot_count": 500_000,
        "index_entry_count": 2_000_000,
        "disk_full_ratio": 0.99,
    }
    return StoreConfig(**{**settings, **changes})


def one_batch(count: int, queue_count: int = 1) -> bytes:
    """Return `count` encoded records of 1 KiB, spread over some queues of one topic."""
    body = os.urandom(BODY_SIZE_BYTES)
    properties = {"TAGS": "TagA"}
    return b"".join(
        encode_message("bench", n % queue_count, body, properties) for n in range(count)
    )


@contextmanager
def opened(directory: str, config: StoreConfig) -> Iterator[Store]:
    """Yield a store without maintenance in a new directory below `directory`."""
    root = tempfile.mkdtemp(prefix="engine-", dir=directory)
    try:
        with Store.open(root, config, maintain=False) as store:
            # Until the next files are made: only the appends into them are measured.
            deadline = time.monotonic() + _FILES_DEADLINE_S
            while store.stats().gauges.prepared_file_count < config.preallocate_file_count:
                assert time.monotonic() < deadline, f"no files after {_FILES_DEADLINE_S} s"
                time.sleep(0.01)
            yield store
    finally:
        shutil.rmtree(root)


def _figure(values: list[float], **fields: Any) -> EngineFigure:
    median = statistics.median(values)
    return EngineFigure(value=median, spread=(max(values) - min(values)) / median, **fields)


def append_rate(
    directory: str, where: str, scale: EngineScale, count: int
) -> Iterator[EngineFigure]:
    """Yield records/s of appends of `count` records each, checked, patched, copied; no sync."""
    batch = one_batch(count)
    rounds = scale.append_batches if count > 1 else scale.single_appends
    limit = limits.copy_bytes_per_second(directory, len(batch), 256 * MIB) / (len(batch) / count)
    for container in CONTAINERS:
        values = []
        for _ in range(scale.rounds):
            with opened(directory, bench_config(container)) as store:
                store.append(batch)
                began = time.perf_counter()
                for _ in range(rounds):
                    store.append(batch)
                values.append(rounds * count / (time.perf_counter() - began))
        yield _figure(
            values,
            what=f"append, batches of {count}" if count > 1 else "append, single records",
            where=where,
            container=container,
            unit="records/s",
            target=400_000 if count > 1 else 150_000,
            limit=limit,
            limit_is="the same bytes copied into a warm map",
        )


def read_rate(
    directory: str, where: str, scale: EngineScale, queue_count: int
) -> Iterator[EngineFigure]:
    """Yield records/s of pulls of up to 1,000 records by the consume queue, not decoded."""
    batch = one_batch(BATCH_COUNT, queue_count)
    for container in CONTAINERS:
        with opened(directory, bench_config(container)) as store:
            for _ in range(scale.append_batches):
                store.append(batch)
            store.queues()  # Dispatches; a pull would otherwise pay for it.
            path = store.log.files.files[0].path
            limit = limits.read_bytes_per_second(path) / (len(batch) / BATCH_COUNT)
            values = []
            for _ in range(scale.rounds):
                began, count = time.perf_counter(), 0
                for queue_id in range(queue_count):
                    offset = 0
                    while True:
                        result = store.pull(
                            "bench", queue_id, offset, max_count=1000, max_size_bytes=4 * MIB
                        )
                        if not result.record_count:
                            break
                        count += result.record_count
                        offset = result.next_offset
                assert count == scale.append_batches * BATCH_COUNT, f"read {count} records"
                values.append(count / (time.perf_counter() - began))
        yield _figure(
            values,
            what=f"read through {queue_count} consume queue(s)",
            where=where,
            container=container,
            unit="records/s",
            target=500_000,
            limit=limit,
            limit_is="the same file read in 1 MiB pieces",
        )


def sync_group(directory: str, where: str, scale: EngineScale) -> Iterator[EngineFigure]:
    """Yield appends that a sync makes durable, with 64 threads that each wait for their own."""
    record = one_batch(1)
    limit = limits.syncs_per_second(directory, 500)
    for container in CONTAINERS:
        per_sync, rates = [], []
        for _ in range(scale.rounds):
            with opened(directory, bench_config(container, flush="sync")) as store:
                store.put(record)
                before = store.stats().sync_count
                seconds = _run_writers(store, record, scale.sync_puts_per_writer)
                puts = WRITER_COUNT * scale.sync_puts_per_writer
                per_sync.append(puts / (store.stats().sync_count - before))
                rates.append(puts / seconds)
        yield _figure(
            per_sync,
            what=f"sync flush, {WRITER_COUNT} writers",
            where=where,
            container=container,
            unit="appends/sync",
            target=10,
            detail={
                "appends_per_s": round(statistics.median(rates)),
                "machine_syncs_per_s": round(limit),
                "appends_per_machine_sync": round(statistics.median(rates) / limit, 2),
            },
        )


def _run_writers(store: Store, record: bytes, count: int) -> float:
    ready = threading.Barrier(WRITER_COUNT + 1)
    failures: list[BaseException] = []

    def write() -> None:
        ready.wait()
        try:
            for _ in range(count):
                store.put(record)
        except BaseException as error:  # noqa: BLE001  Raised below, on the main thread.
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(WRITER_COUNT)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - began


def recovery_time(directory: str, where: str, scale: EngineScale) -> Iterator[EngineFigure]:
    """Yield seconds to open after SIGKILL: check the log, build all queues and the index again."""
    for container in CONTAINERS:
        root = tempfile.mkdtemp(prefix="recovery-", dir=directory)
        try:
            arguments = [root, container, str(scale.recovery_size_bytes)]
            command = [sys.executable, "-P", "-m", "bench.engine", "write-and-die", *arguments]
            subprocess.run(command, check=False)
            began = time.perf_counter()
            with Store.open(root, bench_config(container), maintain=False) as store:
                seconds = time.perf_counter() - began
                recovery = store.recovery
                records = sum(queue.max_offset for queue in store.queues())
                path = store.log.files.files[0].path
                limit = scale.recovery_size_bytes / limits.read_bytes_per_second(path)
            assert not recovery.was_clean, "the writer was meant to be killed"
            assert records > 0, "nothing was written"
        finally:
            shutil.rmtree(root)
        yield EngineFigure(
            what="recovery after SIGKILL",
            where=where,
            container=container,
            unit="s",
            value=seconds,
            spread=0.0,
            target=4.0,
            limit=limit,
            limit_is="the same file read in 1 MiB pieces",
            detail={
                "log_mib": round(recovery.end_position / MIB),
                "records": records,
                "dispatched_mib": round(recovery.dispatched_size_bytes / MIB),
            },
        )


def write_and_die(root: str, container: Container, size_bytes: int) -> None:
    """Fill a store without dispatching any record, then die by SIGKILL. Runs in a child process."""
    batch = one_batch(BATCH_COUNT, 4)
    store = Store.open(root, bench_config(container), maintain=False)
    while store.log.max_position + 2 * len(batch) < size_bytes:
        store.append(batch)
    os.kill(os.getpid(), 9)


def first_writes(directory: str, where: str, scale: EngineScale) -> Iterator[EngineFigure]:
    """Yield microseconds (p99) of synced 4 KiB appends into new files, with and without warm-up."""
    latencies: dict[bool, list[list[float]]] = {False: [], True: []}
    for _ in range(scale.rounds):
        for is_warm, found in latencies.items():  # In turn: both meet the same neighbours.
            found.append(_first_write_latencies(directory, scale, is_warm))
    limit = 1e6 / limits.syncs_per_second(directory, 500)
    for is_warm, rounds in latencies.items():
        yield _figure(
            [one[len(one) * 99 // 100] for one in rounds],
            what=f"first write, {'with' if is_warm else 'without'} warm-up, p99",
            where=where,
            container="commit_log",
            unit="us",
            limit=limit,
            limit_is="a page written and synced in written space",
            detail={
                "p50_us": round(statistics.median(one[len(one) // 2] for one in rounds)),
                "max_us": round(max(one[-1] for one in rounds)),
            },
        )


def _first_write_latencies(directory: str, scale: EngineScale, is_warm: bool) -> list[float]:
    """Return sorted microseconds of puts of one page each, over several new files."""
    record = encode_message("bench", 0, os.urandom(4000))
    config = bench_config(
        "commit_log",
        flush="sync",
        file_size_bytes=_FIRST_WRITE_FILE_SIZE_BYTES,
        warm_up=is_warm,
        preallocate_file_count=2 if is_warm else 0,
    )
    latencies = []
    with opened(directory, config) as store:
        for _ in range(scale.first_write_files * _FIRST_WRITE_FILE_SIZE_BYTES // 4096):
            began = time.perf_counter()
            store.put(record)
            latencies.append((time.perf_counter() - began) * 1e6)
    return sorted(latencies)


Measure = Callable[[str, str, EngineScale], Iterator[EngineFigure]]
MEASURES: dict[str, Measure] = {
    "append-batch": lambda d, w, s: append_rate(d, w, s, BATCH_COUNT),
    "append-single": lambda d, w, s: append_rate(d, w, s, 1),
    "read": lambda d, w, s: read_rate(d, w, s, 1),
    "read-interleaved": lambda d, w, s: read_rate(d, w, s, 4),
    "sync": sync_group,
    "recovery": recovery_time,
    "first-write": first_writes,
}


def measure(
    directories: dict[str, str],
    scale: EngineScale,
    names: list[str],
    on_step: Callable[[str], None],
) -> Iterator[EngineFigure]:
    """Run the named measurements in each directory (name of the place -> path)."""
    for name in names:
        for where, directory in directories.items():
            on_step(f"{name} on {where}")
            yield from MEASURES[name](directory, where, scale)


if __name__ == "__main__" and sys.argv[1:2] == ["write-and-die"]:
    write_and_die(sys.argv[2], sys.argv[3], int(sys.argv[4]))  # type: ignore[arg-type]
