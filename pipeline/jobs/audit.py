"""`audit`: every byte of every replica's log against its checksums, its queues, and the others.

Owns the verdict. The work of one task is in `segments_check`; this module hands ranges to Spark and
merges the results: each range must begin where the one before ended, no queue may have a gap
between ranges, and the replicas must hold the same bytes. The results of tasks are small, so
terabytes fit into an audit.

Replicas must be equal up to the highest position that any of them knows as committed. An election
may take back what a single replica has behind it, so it is checked and not compared.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from pipeline.errors import OptionError
from pipeline.progress import Show, show_nothing, tasks_shown
from pipeline.schema import ddl
from pipeline.segments_bounds import find_boundary
from pipeline.segments_check import SegmentFinding, check_range
from pipeline.segments_log import LogReader, SealedLog, open_sealed
from store import format as fmt
from store.config import MIB
from store.errors import FileSystemError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIECE_SIZE_BYTES: Final = 64 * MIB
"""Bytes that one task checks, in about 0.2 s: bars move and no core waits for another."""
TASKS_PER_CORE: Final = 64
"""Limit: with more pieces, a task checks several."""
FINDINGS_MAX: Final = 1000
_LONG, _TEXT = pa.int64(), pa.string()
_RANGE: Final = pa.struct(
    [(name, _LONG) for name in (
        "lo", "hi", "begin_position", "end_position", "first_index", "last_index",
        "entry_count", "record_count", "finding_count",
    )] + [("bad", pa.list_(pa.struct([("lo", _LONG), ("hi", _LONG)])))]
)  # fmt: skip
_FINDING: Final = pa.struct([
    ("kind", _TEXT), ("path", _TEXT), ("at", _LONG), ("field", _TEXT), ("expected", _TEXT),
    ("actual", _TEXT), ("position", _LONG), ("entry_index", _LONG),
])  # fmt: skip
_RUN: Final = pa.struct([
    ("topic", _TEXT), ("queue_id", pa.int32()), ("lo", _LONG), ("hi", _LONG),
    ("position", _LONG), ("last_position", _LONG),
])  # fmt: skip
_BLOCK: Final = pa.struct([("lo", _LONG), ("hi", _LONG), ("crc", _LONG)])
_SCHEMA: Final = pa.schema([
    ("replica", pa.int32()), ("range", _RANGE), ("finding", _FINDING), ("run", _RUN),
    ("block", _BLOCK),
])  # fmt: skip
"""Columns of all kinds of results; a row fills those of one of the four kinds."""
_TAIL_SCHEMA: Final = pa.schema([("replica", pa.int32()), ("finding", _FINDING)])
_DAMAGE: Final = frozenset(("log", "file", "gap", "differs"))


class Task(NamedTuple):
    """A byte range of one replica."""

    replica: int
    lo: int
    hi: int


@dataclass(slots=True)
class AuditedReplica:
    """The verdict on one replica; the fields are the columns of the verdict table."""

    replica: int
    directory: str
    verdict: str = "clean"
    container: str = ""
    first_index: int | None = None
    last_index: int | None = None
    first_log_position: int = 0
    end_log_position: int = 0
    committed_log_position: int = 0
    """The highest committed log position that this replica knows."""
    entry_count: int = 0
    record_count: int = 0
    unchecked_bytes: int = 0
    finding_count: int = 0
    first_bad_index: int | None = None
    first_bad_log_position: int | None = None
    first_bad_file: str | None = None
    first_bad_byte: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaFinding:
    """A finding, and the replica that it is about."""

    replica: int
    finding: SegmentFinding

    def row(self) -> dict[str, object]:
        """Return the finding as a row with stable keys."""
        own = self.finding
        return {
            "replica": self.replica,
            "kind": own.kind,
            "file": own.path,
            "at": own.at,
            "field": own.field,
            "expected": own.expected,
            "found": own.actual,
            "log_position": own.position if own.position >= 0 else None,
            "index": own.entry_index if own.entry_index >= 0 else None,
        }


@dataclass(slots=True)
class Audit:
    """The result."""

    replicas: list[AuditedReplica]
    findings: list[ReplicaFinding]
    size_bytes: int
    """Bytes of log, of all replicas together."""
    is_clean: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_clean = all(replica.verdict == "clean" for replica in self.replicas)


def audit(
    spark: "SparkSession",
    directories: Sequence[str],
    *,
    piece_size_bytes: int = PIECE_SIZE_BYTES,
    show: Show = show_nothing,
) -> Audit:
    """Check the replicas of one log. Every worker must reach the directories under their paths.

    Raises LockedError when a process has one of them, LayoutError when one holds no log,
    OptionError when the logs cannot be of one group, FileSystemError.
    """
    logs = [open_sealed(os.path.abspath(directory)) for directory in directories]
    _refuse_strangers(logs)
    tasks = [
        Task(number, lo, hi)
        for number, log in enumerate(logs)
        for lo, hi in log.pieces(piece_size_bytes, log.end_position)
    ]
    result = _Verdict(logs, tasks)
    if tasks:
        result.collect(spark, show)
    return result.audit()


def _refuse_strangers(logs: Sequence[SealedLog]) -> None:
    shapes = {(log.is_ledger, log.file_size_bytes) for log in logs}
    if len(shapes) > 1:
        kinds = ", ".join(
            f"{'ledger' if is_ledger else 'plain log'} with files of {size_bytes} bytes"
            for is_ledger, size_bytes in sorted(shapes)
        )
        raise OptionError(f"these are not replicas of one log: {kinds}", "name those of one group")


def run_tasks(
    logs: Sequence[SealedLog], tasks: Sequence[Task], cuts: Sequence[int], batches: Iterator[Any]
) -> Iterator[pa.RecordBatch]:
    """Run the tasks whose numbers are in the batches, on a worker."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            replica, lo, hi = tasks[number]
            report = check_range(logs[replica], lo, hi, cuts)
            bad = [{"lo": bad_lo, "hi": bad_hi} for bad_lo, bad_hi in report.bad]
            own = {name: getattr(report, name) for name in _RANGE.names if name != "bad"}
            rows: list[dict[str, object]] = [{"range": {**own, "bad": bad}}]
            rows += [{"finding": finding._asdict()} for finding in report.findings]
            rows += [{"run": run._asdict()} for run in report.runs]
            rows += [{"block": block._asdict()} for block in report.blocks]
            yield pa.RecordBatch.from_pylist([{"replica": replica, **row} for row in rows], _SCHEMA)


def check_tails(logs: Sequence[SealedLog], batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """Search for units behind the last one that the log wants, on a worker."""
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            log = logs[row["replica"]]
            finding = _tail_finding(log, row["topic"], row["queue_id"], row["hi"])
            if finding is not None:
                rows.append({"replica": row["replica"], "finding": finding._asdict()})
        yield pa.RecordBatch.from_pylist(rows, _TAIL_SCHEMA)


def _tail_finding(log: SealedLog, topic: str, queue_id: int, hi: int) -> SegmentFinding | None:
    """Return the first unit behind the last one of the log; only a clean log must have none."""
    unit = fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES
    lo = hi * unit
    file_lo = lo - lo % log.queue_file_size_bytes
    with LogReader(log) as reader:
        try:
            rest = reader.queue(topic, queue_id, lo, file_lo + log.queue_file_size_bytes - lo)
        except FileSystemError:  # The last unit fills its file, or the missing file is a finding.
            return None
    kept = rest.lstrip(b"\0")
    if not kept:
        return None
    at = (len(rest) - len(kept)) // unit * unit
    path = f"consumequeue/{topic}/{queue_id}/{fmt.file_name(file_lo)}"
    name = f"unit of offset {(lo + at) // unit}"
    actual = rest[at : at + unit].hex()
    return SegmentFinding(
        "queue", path, lo + at - file_lo, name, "zeros, no record", actual, -1, -1
    )


class _Verdict:
    """Merges the results of the tasks."""

    def __init__(self, logs: Sequence[SealedLog], tasks: Sequence[Task]) -> None:
        self._logs, self._tasks = logs, tasks
        self._committed = max(log.visible_position for log in logs)
        self._findings: list[ReplicaFinding] = []
        self._counts: Counter[int] = Counter()
        self._bad: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._replicas = [
            AuditedReplica(
                number,
                log.root,
                container="ledger" if log.is_ledger else "commit_log",
                first_log_position=log.begin_position,
                end_log_position=log.end_position,
                committed_log_position=log.visible_position,
            )
            for number, log in enumerate(logs)
        ]
        for number, log in enumerate(logs):
            for wrong in log.wrong:
                kind = "file" if wrong.path.startswith(log.data_directory) else "index"
                position = int(os.path.basename(wrong.path)) + wrong.at if kind == "file" else -1
                what = (wrong.field, wrong.expected, wrong.actual)
                self._add(number, SegmentFinding(kind, wrong.path, wrong.at, *what, position, -1))

    def _add(self, replica: int, finding: SegmentFinding) -> None:
        self._counts[replica] += 1
        self._findings.append(ReplicaFinding(replica, finding))

    # --- Results of Spark ---

    def collect(self, spark: "SparkSession", show: Show) -> None:
        """Run the tasks, and read their results."""
        cuts = {min(p, self._committed) for log in self._logs
                for p in (log.begin_position, log.end_position)}  # fmt: skip
        work = partial(run_tasks, self._logs, self._tasks, sorted(cuts))
        count = min(len(self._tasks), spark.sparkContext.defaultParallelism * TASKS_PER_CORE)
        rows = spark.range(0, len(self._tasks), 1, count).mapInArrow(work, ddl(_SCHEMA)).persist()
        try:
            with tasks_shown(spark, "check", count, show):
                rows.count()
            self._take_rows(rows)
            self._compare_blocks(rows)
            self._find_gaps(rows)
            self._look_behind_queues(rows)
        finally:
            rows.unpersist()

    def _take_rows(self, rows: "DataFrame") -> None:
        """Read the ranges and findings of all tasks."""
        ranges = []
        taken = rows.where("range is not null or finding is not null")
        for row in taken.select("replica", "range", "finding").toLocalIterator():
            if row.finding is not None:
                self._findings.append(ReplicaFinding(row.replica, SegmentFinding(*row.finding)))
            else:
                ranges.append((row.replica, row.range))
        self._take_ranges(sorted(ranges, key=lambda row: (row[0], row[1].lo)))

    def _take_ranges(self, ranges: Sequence[tuple[int, Any]]) -> None:
        """Sum up, and check that each range begins where the one before ended."""
        ends: dict[int, int] = {n: log.begin_position for n, log in enumerate(self._logs)}
        for number, row in ranges:
            replica, end = self._replicas[number], ends[number]
            replica.entry_count += row.entry_count
            replica.record_count += row.record_count
            if row.first_index >= 0:
                if replica.first_index is None:
                    replica.first_index = row.first_index
                replica.last_index = row.last_index
            bad = [(bad_lo, bad_hi) for bad_lo, bad_hi in row.bad]
            self._bad[number] += bad
            replica.unchecked_bytes += sum(hi - lo for lo, hi in bad)
            # Including findings that a range counted and did not return.
            self._counts[number] += row.finding_count
            if end >= 0 and row.begin_position >= 0 and row.begin_position != end:
                path, at = self._logs[number].place(end)
                what = ("what begins here", f"at {end}", f"at {row.begin_position}")
                self._add(number, SegmentFinding("log", path, at, *what, end, -1))
            ends[number] = row.end_position

    def _compare_blocks(self, rows: "DataFrame") -> None:
        """Report the first byte in which a replica differs from most of the others."""
        blocks = rows.where("block is not null").selectExpr("replica", "block.*")
        blocks.createOrReplaceTempView("quorumlog_audit_blocks")
        query = """
            select lo, hi, collect_list(struct(replica, crc)) as held
            from quorumlog_audit_blocks group by lo, hi having min(crc) != max(crc) order by lo
        """
        seen: set[int] = set()
        for row in blocks.sparkSession.sql(query).limit(FINDINGS_MAX).collect():
            crcs = Counter(crc for _, crc in row.held)
            usual = max(crcs, key=lambda crc: (crcs[crc], -self._first_of(row.held, crc)))
            reference = self._first_of(row.held, usual)
            for number, crc in sorted(row.held):
                if crc != usual and number not in seen:
                    seen.add(number)
                    self._name_difference(number, reference, row.lo, row.hi)

    @staticmethod
    def _first_of(held: Sequence[tuple[int, int]], crc: int) -> int:
        return min(number for number, own in held if own == crc)

    def _name_difference(self, number: int, reference: int, lo: int, hi: int) -> None:
        log = self._logs[number]
        with LogReader(log) as reader, LogReader(self._logs[reference]) as other:
            mine, theirs = reader.data(lo, hi - lo), other.data(lo, hi - lo)
            at = next((n for n, byte in enumerate(mine) if byte != theirs[n]), 0)
            boundary = find_boundary(other, lo + at + 1)
        path, byte = log.place(lo + at)
        index = boundary.link.entry_index if boundary is not None and boundary.link else -1
        expected = f"{theirs[at : at + 8].hex()} (hex) as in replica {reference}"
        finding = SegmentFinding(
            "differs", path, byte, "bytes", expected, mine[at : at + 8].hex(), lo + at, index
        )
        self._add(number, finding)

    def _find_gaps(self, rows: "DataFrame") -> None:
        """Report queues whose offsets have a gap, or begin late, if no damage explains it."""
        rows.where("run is not null").selectExpr("replica", "run.*").createOrReplaceTempView(
            "quorumlog_audit_runs"
        )
        query = """
            select * from (
                select *, lag(hi) over w as before, lag(last_position) over w as last_before
                from quorumlog_audit_runs
                window w as (partition by replica, topic, queue_id order by position)
            ) where lo != coalesce(before, 0) order by replica, position
        """
        for row in rows.sparkSession.sql(query).limit(FINDINGS_MAX).collect():
            log = self._logs[row.replica]
            before = row.last_before if row.last_before is not None else log.begin_position
            is_excused = any(lo < row.position and before < hi for lo, hi in self._bad[row.replica])
            if row.before is None and log.begin_position > 0:
                continue  # Older records of the queue have expired.
            if not is_excused or row.lo < (row.before or 0):
                path, at = log.place(row.position + fmt.QUEUE_OFFSET_AT)
                name = f"queue offset in {row.topic}/{row.queue_id}"
                what = (name, str(row.before or 0), str(row.lo))
                self._add(row.replica, SegmentFinding("gap", path, at, *what, row.position, -1))

    def _look_behind_queues(self, rows: "DataFrame") -> None:
        clean = [n for n, log in enumerate(self._logs) if log.is_clean and not self._bad[n]]
        ends = (
            rows.where("run is not null")
            .selectExpr("replica", "run.topic", "run.queue_id", "run.hi")
            .groupBy("replica", "topic", "queue_id")
            .max("hi")
            .withColumnRenamed("max(hi)", "hi")
        )
        tails = ends.where(ends.replica.isin(clean)).mapInArrow(
            partial(check_tails, self._logs), ddl(_TAIL_SCHEMA)
        )
        for row in tails.select("replica", "finding.*").limit(FINDINGS_MAX).collect():
            self._add(row[0], SegmentFinding(*row[1:]))

    # --- The verdict ---

    def audit(self) -> Audit:
        """Return the verdict on each replica and on all."""
        for number, replica in enumerate(self._replicas):
            own = [row.finding for row in self._findings if row.replica == number]
            log = self._logs[number]
            if log.end_position < self._committed:
                path, at = log.place(log.end_position)
                what = ("end of the log", f"{self._committed} or more", f"{log.end_position}")
                index = -1 if replica.last_index is None else replica.last_index + 1
                behind = SegmentFinding("behind", path, at, *what, log.end_position, index)
                own.append(behind)
                self._add(number, behind)
            replica.finding_count = self._counts[number]
            self._judge(replica, own)
        order = sorted(self._findings, key=lambda row: (row.replica, row.finding.position))
        size_bytes = sum(log.end_position - log.begin_position for log in self._logs)
        return Audit(self._replicas, order, size_bytes)

    @staticmethod
    def _judge(replica: AuditedReplica, findings: Sequence[SegmentFinding]) -> None:
        kinds = {finding.kind for finding in findings}
        if kinds & _DAMAGE:
            replica.verdict = "damaged"
        elif kinds:
            replica.verdict = "behind" if "behind" in kinds else "derived"
        if not findings:
            return
        worst = [finding for finding in findings if finding.kind in _DAMAGE] or findings
        first = min(worst, key=lambda finding: finding.position)
        replica.first_bad_file, replica.first_bad_byte = first.path, first.at
        replica.first_bad_log_position = first.position if first.position >= 0 else None
        index = next((f.entry_index for f in worst if f.entry_index >= 0), None)
        replica.first_bad_index = first.entry_index if first.entry_index >= 0 else index
