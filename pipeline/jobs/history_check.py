"""`history-check`: the rules of the log checker over histories that are too large for one process.

Owns the way from files to partitions; the rules are those of the simulator and of the fault
suites (`simulation.raft`), unchanged. A partition is a queue. Checking each queue alone finds
exactly what checking the whole does, because:

1. No rule compares two queues. The log checker keeps its state in one object a queue: values,
   offsets, acks, drains, the sweep of rule 4. Registers are queues, too. Values are unique in the
   history, but the rules compare only the process that appended them *in this queue*.
2. A line without a queue of its own is given to each queue that it can matter to. An assignment
   resets the readers of the queues that it names, so each of these gets it. Notes of faults go to
   all.
3. Order counts only between operations of one process in one queue, and between attempts to append
   one value; both are within a partition, which keeps the order of the files. Rule 5, one call open
   at a time, is about the acks of one process *in one queue* in the whole check as well.

Producers would be no such partition: rules 1 to 4 compare what different processes saw. The price
is that one queue must fit into one worker: about 0.6 GB for a million operations.

A history is a directory with `history.jsonl`, and, as the fault suites write them, `drains.jsonl`
and `notes.jsonl`; or several, one for each client machine, if they share one clock.
"""

import gc
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from checkers import history
from checkers.checker import Violation, check_log
from checkers.history import AppendCall, Drain, FaultNote, HistoryReceipt, Kind, Operation
from checkers.linearizability import check_cas
from checkers.register import check_register_by_index, check_register_by_zones
from pipeline.errors import PipelineError
from pipeline.progress import Show, show_nothing, tasks_shown
from pipeline.schema import batch_of, ddl
from store.config import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORY: Final = "history.jsonl"
DRAINS: Final = "drains.jsonl"
NOTES: Final = "notes.jsonl"
PIECE_SIZE_BYTES: Final = 8 * MIB
VIOLATIONS_MAX: Final = 1000
_LINES: Final = pa.schema(
    [("queue", pa.string()), ("file", pa.int32()), ("at", pa.int64()), ("line", pa.string())]
)
_VERDICTS: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("operation_count", pa.int64()),
        ("rule", pa.string()),
        ("detail", pa.string()),
        ("witnesses", pa.list_(pa.string())),
    ]
)


class HistoryError(PipelineError):
    """A history cannot be read. The check did not begin, or was broken off."""

    code = "pipeline.bad_history"


def _bad(path: str, at: int, detail: str) -> HistoryError:
    return HistoryError(f"{path} byte {at}: {detail}", "give the files as the suites write them")


class HistoryPart(NamedTuple):
    """The lines of a file that begin in [lo, hi)."""

    file: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """One broken rule; the fields are the keys of its row. Witnesses are lines of the history."""

    rule: str
    queue: str
    detail: str
    witnesses: list[str]


@dataclass(frozen=True, slots=True)
class CheckedHistory:
    """The result. `operation_counts` by queue."""

    operation_counts: dict[str, int]
    violation_count: int
    violations: tuple[BrokenRule, ...]
    """In order of queue and rule; at most 1,000."""


def history_check(
    spark: "SparkSession",
    directories: Sequence[str],
    *,
    piece_size_bytes: int = PIECE_SIZE_BYTES,
    show: Show = show_nothing,
) -> CheckedHistory:
    """Check histories that belong together. Every worker must reach the directories.

    Raises HistoryError for a directory without a history, before it starts Spark. A line of another
    format ends the job with the same error.
    """
    files, notes = files_of(directories)
    parts = [
        HistoryPart(number, lo, min(lo + piece_size_bytes, size_bytes))
        for number, path in enumerate(files)
        for size_bytes in [os.stat(path).st_size]
        for lo in range(0, size_bytes, piece_size_bytes)
    ]
    if not parts:
        return CheckedHistory({}, 0, ())
    count = len(parts)
    lines = spark.range(0, count, 1, count).mapInArrow(
        partial(read_parts, files, parts), ddl(_LINES)
    )

    def check(table: pa.Table) -> pa.Table:
        return check_queue(notes, table)

    with tasks_shown(spark, "read and check", count, show):
        rows = lines.groupBy("queue").applyInArrow(check, ddl(_VERDICTS)).collect()
    counts = {row.queue: row.operation_count for row in rows if row.rule is None}
    broken_rules = [
        BrokenRule(row.rule, row.queue, row.detail, list(row.witnesses))
        for row in rows
        if row.rule is not None
    ]
    broken_rules.sort(key=lambda broken: (broken.queue, broken.rule, broken.detail))
    return CheckedHistory(
        dict(sorted(counts.items())), len(broken_rules), tuple(broken_rules[:VIOLATIONS_MAX])
    )


def files_of(directories: Sequence[str]) -> tuple[list[str], list[FaultNote]]:
    """Return the files that hold operations or drains, and all notes."""
    files, notes = [], []
    for directory in directories:
        root = Path(directory).absolute()
        if not (root / HISTORY).is_file():
            raise _bad(str(root / HISTORY), 0, "there is no such file")
        files.append(str(root / HISTORY))
        if (root / DRAINS).is_file():
            files.append(str(root / DRAINS))
        if (root / NOTES).is_file():
            text = (root / NOTES).read_text("utf-8")
            try:
                notes += [history.note_from_json(line) for line in text.splitlines()]
            except ValueError as error:
                raise _bad(str(root / NOTES), 0, str(error)) from error
    return files, sorted(notes, key=lambda note: note.at_ns)


# --- On the workers ---


def read_parts(
    files: Sequence[str], parts: Sequence[HistoryPart], batches: Iterator[Any]
) -> Iterator[pa.RecordBatch]:
    """Yield lines, each with the queue that it is about."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            part = parts[number]
            is_drains = os.path.basename(files[part.file]) == DRAINS
            rows = [
                (queue, part.file, at, line)
                for at, line in _lines_of(files[part.file], part)
                for queue in _queues_of(files[part.file], at, line, is_drains=is_drains)
            ]
            yield batch_of(rows, _LINES)


def _lines_of(path: str, part: HistoryPart) -> Iterator[tuple[int, str]]:
    """Yield (byte, line) of the lines that begin in a part of a file.

    A last line without a newline is left out: its writer was killed.
    """
    with open(path, "rb") as file:
        if part.lo:
            file.seek(part.lo - 1)
            file.readline()
        at = file.tell()
        for line in file:
            if at >= part.hi or not line.endswith(b"\n"):
                return
            yield at, line.decode("utf-8")
            at += len(line)


def _queues_of(path: str, at: int, line: str, *, is_drains: bool) -> Iterable[str]:
    """Return the queues whose check needs a line."""
    try:
        if is_drains:
            return (history.drain_from_json(line).queue,)
        operation = history.from_json(line)
    except ValueError as error:
        raise _bad(path, at, str(error)) from error
    if operation.kind is Kind.ASSIGN:
        named = operation.request if isinstance(operation.request, tuple) else ()
        return {str(name) for name in named}
    return (operation.queue,)


def check_queue(notes: Sequence[FaultNote], table: pa.Table) -> pa.Table:
    """Check all lines of one queue."""
    queue = table.column("queue")[0].as_py()
    table = table.sort_by([("file", "ascending"), ("at", "ascending")])
    operations, drains = [], []
    for line in table.column("line").to_pylist():
        if line.startswith('{"replica"'):
            drains.append(history.drain_from_json(line))
        else:
            operations.append(history.from_json(line))
    violations = judge(operations, whole_drains(drains), notes)
    rows: list[dict[str, object]] = [{"queue": queue, "operation_count": len(operations)}]
    for violation in violations:
        witnesses = [history.to_json(witness) for witness in violation.witnesses]
        own = {"rule": violation.rule, "detail": violation.detail, "witnesses": witnesses}
        rows.append({"queue": queue, **own})
    return pa.Table.from_pylist(rows, _VERDICTS)


def whole_drains(parts: Iterable[Drain]) -> list[Drain]:
    """Merge the lines of each drain; replicas with equal content are judged as one."""
    by_replica: dict[tuple[int, str], list[Drain]] = defaultdict(list)
    for part in parts:
        by_replica[part.replica, part.queue].append(part)
    drains: list[Drain] = []
    for of_one in by_replica.values():
        of_one.sort(key=lambda part: part.first_offset)
        whole = Drain(*of_one[0][:3], [])
        for part in of_one:
            # Offsets between two parts are missing.
            hole_count = part.first_offset - whole.first_offset - len(whole.values)
            values = [*whole.values, *[None] * hole_count, *part.values]
            whole = whole._replace(values=values)
        if not any(whole[1:] == other[1:] for other in drains):
            drains.append(whole)
    return drains


def judge(
    operations: Sequence[Operation], drains: Sequence[Drain], notes: Sequence[FaultNote]
) -> list[Violation]:
    """Apply all rules, as the fault suites do: a put is an append, too."""
    was_enabled = gc.isenabled()
    gc.disable()  # Millions of tuples without references to each other.
    try:
        of_log = [_as_append(one) if one.kind is Kind.PUT else one for one in operations]
        violations = check_log(of_log, drains, notes)
        violations += check_register_by_index(operations)
        violations += check_register_by_zones(operations)
        violations += check_cas(operations)
    finally:
        if was_enabled:
            gc.enable()
    return violations


def _as_append(put: Operation) -> Operation:
    assert isinstance(put.request, int | str), f"a put of {put.request!r}"
    result = HistoryReceipt(put.result) if isinstance(put.result, int) else None
    return put._replace(kind=Kind.APPEND, request=AppendCall(put.request), result=result)
