"""Measures reading and auditing the files of a stopped node on Spark, with what is possible beside.

Owns the measured work. Reading stands beside the constant source of `bench.pipeline`; auditing
beside a plain loop that reads the same bytes and computes one CRC-32C over them.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.engine import bench_config, one_batch
from bench.own_cluster import parent_of_data
from bench.pipeline import SHAPES, constant, line, read_rates, spark_with_sources, title
from pipeline.jobs.audit import audit
from pipeline.schema import parse_columns
from pipeline.segments import read_piece
from pipeline.segments_check import check_range
from pipeline.segments_log import SealedLog, open_sealed
from store.config import MIB
from store.files.checksum import crc32c
from store.store import Store

BATCH_COUNT: Final = 100
QUEUE_COUNT: Final = 4
ROWS_TARGET: Final = 300_000
AUDIT_TARGET_MB: Final = 300
_PIECE_SIZE_BYTES: Final = 64 * MIB


def fill(root: str, count: int) -> SealedLog:
    """Make a closed store of `count` records of 1 KiB."""
    batch = one_batch(BATCH_COUNT, QUEUE_COUNT)
    config = bench_config("ledger", file_size_bytes=256 * MIB)
    with Store.open(root, config, maintain=False) as store:
        for _ in range(count // BATCH_COUNT):
            store.append(batch)
    return open_sealed(root)


def on_one_core(log: SealedLog, count: int) -> None:
    """Measure the work of a task without Spark around it, in processor time."""
    pieces = log.pieces(_PIECE_SIZE_BYTES, log.end_position)
    for what, names in SHAPES.items():
        columns = parse_columns(names)

        def read(columns: tuple[str, ...] = columns) -> None:
            rows = sum(b.num_rows for lo, hi in pieces for b in read_piece(log, lo, hi, columns))
            assert rows == count, f"{rows} rows of {count}"

        line(f"segments, {what}, one core, rows/s", [count / _core_seconds(read)])
    size_bytes = log.end_position - log.begin_position

    def check() -> None:
        for lo, hi in pieces:
            report = check_range(log, lo, hi, (log.begin_position, log.end_position))
            assert not report.findings, report.findings

    ceiling = size_bytes / _core_seconds(lambda: _read_all(log)) / 1e6
    line("audit, one core, MB/s", [size_bytes / _core_seconds(check) / 1e6], [ceiling])


def _read_all(log: SealedLog) -> None:
    """Read the log and compute its CRC, a MiB at a time: the limit of the machine."""
    for path in sorted(Path(log.root, log.data_directory).iterdir()):
        left = log.end_position - int(path.name)
        with path.open("rb", buffering=0) as file:
            while left > 0 and (data := file.read(min(MIB, left))):
                crc32c(data)
                left -= len(data)


def _core_seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def on_spark(log: SealedLog, count: int, rounds: int) -> None:
    """Measure the same on two cores; print the best round, since other load only adds time."""
    with spark_with_sources() as spark:
        for what, columns in SHAPES.items():
            ours = spark.read.format("quorumlog-segments").option("columns", columns).load(log.root)
            best = max(read_rates(ours, count, rounds))
            ceiling = max(read_rates(constant(spark, columns, count), count, rounds))
            target = ROWS_TARGET if what == "all columns" else None
            line(f"segments, {what}, local[2], rows/s", [best], [ceiling], target)
        seconds = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            report = audit(spark, [log.root, log.root])
            seconds.append(time.perf_counter() - began)
            assert report.is_clean, report.findings
        rate = report.size_bytes / min(seconds) / 1e6
        line("audit, local[2], MB/s", [rate], target=AUDIT_TARGET_MB)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1_000_000, help="records (default 1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="of each figure (default 3)")
    parser.add_argument("--no-spark", action="store_true", help="only what one core does")
    parser.add_argument("--dir", help="where the store is (default: /dev/shm if there is one)")
    given = parser.parse_args()
    root = tempfile.mkdtemp(prefix="segments-", dir=parent_of_data(given.dir))
    try:
        count = given.count // BATCH_COUNT * BATCH_COUNT
        log = fill(root, count)
        title("")
        on_one_core(log, count)
        if not given.no_spark:
            on_spark(log, count, given.rounds)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
