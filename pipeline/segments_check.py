"""Checks one byte range of one replica's log, and the files derived from it.

Owns the work and the result of a task of `audit`; must not know Spark, other ranges or other
replicas. A range is checked without the bytes before it: its first entry is compared with the
header of the entry before, which the range before checks. So ranges together prove the whole chain.

The result can be compared: CRCs of aligned blocks of the bytes, for the replicas; runs of queue
offsets, for gaps between ranges; and where the range began and ended, since the next one must begin
there.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pipeline.segments_bounds import SegmentBoundary, find_boundary
from pipeline.segments_log import LogReader, SealedLog
from pipeline.segments_queues import QueueRun, RecordsOfQueues, Wanted
from pipeline.segments_walk import Walk
from store import format as fmt
from store.config import MIB
from store.errors import CorruptionError, FileSystemError
from store.files.checksum import crc32c
from store.ledger.entry import KIND_DATA, ChainLink, check_blank
from store.record.check import check_records

BLOCK_SIZE_BYTES: Final = MIB
FINDINGS_MAX: Final = 50
"""Findings of one range that are returned; the rest is counted only."""
_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_KIND_AT: Final = 32


class SegmentFinding(NamedTuple):
    """One fault: byte `at` of a file below the root of the replica.

    `kind`: log, gap, index, queue; `entry_index` and `position` are -1 where they mean nothing.
    """

    kind: str
    path: str
    at: int
    field: str
    expected: str
    actual: str
    position: int
    entry_index: int


class Block(NamedTuple):
    """The CRC-32C of the bytes [lo, hi) of the log."""

    lo: int
    hi: int
    crc: int


@dataclass(slots=True)
class SegmentReport:
    """The result of one range."""

    lo: int
    hi: int
    begin_position: int = -1
    """Position of the first entry or record that begins in the range; -1: unknown."""
    end_position: int = -1
    """Position at which the next entry or record must begin; -1: unknown."""
    first_index: int = -1
    last_index: int = -1
    entry_count: int = 0
    record_count: int = 0
    bad: list[tuple[int, int]] = field(default_factory=list)
    """Byte ranges that are damaged, or not decodable because of damage."""
    finding_count: int = 0
    findings: list[SegmentFinding] = field(default_factory=list)
    runs: list[QueueRun] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    def add(self, finding: SegmentFinding) -> None:
        """Count a finding, and keep it unless there are too many."""
        self.finding_count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


def check_range(log: SealedLog, lo: int, hi: int, cuts: Sequence[int]) -> SegmentReport:
    """Check the entries or records that begin in [lo, hi), bytes of one file.

    `cuts` are the positions, in order, at which some replica's log begins or ends: no block spans
    one. Bytes before the first and behind the last one are not compared.
    """
    with LogReader(log) as reader:
        return _Check(reader, SegmentReport(lo, hi)).run(cuts)


class _Check:
    def __init__(self, reader: LogReader, report: SegmentReport) -> None:
        self._reader, self._log, self._report = reader, reader.log, report
        self._queues = RecordsOfQueues(reader.log.without_queues)
        self._link: ChainLink | None = None

    def run(self, cuts: Sequence[int]) -> SegmentReport:
        report = self._report
        begin = find_boundary(self._reader, report.lo)
        if begin is None:
            begin = self._after_damage(report.lo, report.lo)
        if begin is not None and report.begin_position < 0 and not report.bad:
            report.begin_position = report.end_position = begin.position
        while begin is not None and begin.position < report.hi:
            begin = self._walk(begin)
        report.runs = self._queues.runs()
        report.blocks = list(self._blocks(cuts))
        return report

    def _walk(self, begin: SegmentBoundary) -> SegmentBoundary | None:
        """Check from a boundary to the end of the range, or to damage; return where to continue."""
        report, walk = self._report, Walk(self._reader, begin, self._report.hi)
        self._link, position = begin.link, begin.position
        try:
            for chunk in walk.chunks():
                self._check_chunk(chunk.position, chunk.data, chunk.end, chunk.units)
                self._link, position = chunk.link, chunk.position + chunk.end
            if walk.stop.blank_size_bytes:
                self._check_blank(walk.stop.position)
        except (CorruptionError, FileSystemError) as error:
            self._damaged(error, position)
            return self._after_damage(position, position + 1)
        finally:
            self._compare_queues()
        report.end_position = walk.stop.position + walk.stop.blank_size_bytes
        return None

    def _damaged(self, error: CorruptionError | FileSystemError, position: int) -> None:
        index = self._link.entry_index + 1 if self._link is not None else -1
        path, at = self._log.place(position)
        if isinstance(error, CorruptionError):
            path, at = os.path.relpath(error.path, self._log.root), error.at
            what = (error.field, error.expected, error.actual)
        else:
            what = ("bytes", "readable", os.strerror(error.errno_value))
        self._report.add(SegmentFinding("log", path, at, *what, position, index))

    def _after_damage(self, position: int, lo: int) -> SegmentBoundary | None:
        """Return the first boundary behind damage, and record the bytes between as bad."""
        report, step, found = self._report, 1, None
        while found is None and lo < report.hi:
            found = find_boundary(self._reader, lo)
            if found is not None and found.position <= position:
                found = None
            lo, step = lo + step, 2 * step
        hi = min(report.hi, found.position) if found is not None else report.hi
        report.bad.append((position, hi))
        report.end_position = -1
        return found

    # --- Checks within the range ---

    def _check_chunk(self, position: int, data: bytes, end: int, units: bytes) -> None:
        """Check records in entries, and the index beside them, which a walk does not."""
        report = self._report
        if not self._log.is_ledger:
            report.record_count += self._queues.add(data, 0, end)
        else:
            first = self._check_units(units)
            report.first_index = first if report.first_index < 0 else report.first_index
            report.last_index = first + len(units) // fmt.INDEX_UNIT_SIZE_BYTES - 1
            report.entry_count += len(units) // fmt.INDEX_UNIT_SIZE_BYTES
            for _, own, size_bytes, index, _ in fmt.INDEX_UNIT.iter_unpack(units):
                at = own - position
                if fmt.INT32.unpack_from(data, at + _KIND_AT)[0] == KIND_DATA:
                    self._check_body(data[at + _HEADER : at + size_bytes], own, index)
        if self._queues.size_bytes >= 8 * MIB:
            self._compare_queues()

    def _check_body(self, body: bytes, own: int, index: int) -> None:
        checked = check_records(body, own + _HEADER)
        self._report.record_count += self._queues.add(body, 0, checked.end)
        if checked.end == len(body):
            return
        path, at = self._log.place(own + _HEADER + checked.end)
        problem = checked.problem
        what = ("records of an entry", "whole records", f"{len(body) - checked.end} bytes more")
        if problem is not None:
            at += problem.at - checked.end
            what = (problem.field, problem.expected, problem.actual)
        self._report.add(SegmentFinding("log", path, at, *what, own, index))

    def _check_units(self, units: bytes) -> int:
        """Compare the index with the units derived from the data; return the first one's number."""
        log, unit = self._log, fmt.INDEX_UNIT_SIZE_BYTES
        first = int(fmt.INDEX_UNIT.unpack_from(units)[3])
        directory, size_bytes = log.index_directory, log.index_file_size_bytes
        for position, derived, stored in self._differences(
            directory, size_bytes, first * unit, units, unit
        ):
            path, at = _place(directory, size_bytes, position)
            own = int(fmt.INDEX_UNIT.unpack(derived)[1])
            what = ("index unit", derived.hex(), stored.hex())
            number = position // unit
            self._report.add(SegmentFinding("index", path, at, *what, own, number))
        return first

    def _differences(
        self, directory: str, file_size_bytes: int, position: int, derived: bytes, unit: int
    ) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the units that are stored otherwise: position, as derived, as stored."""
        at = 0
        while at < len(derived):
            room = file_size_bytes - (position + at) % file_size_bytes
            part = derived[at : at + room]
            try:
                stored = self._reader.rolling(directory, file_size_bytes, position + at, len(part))
            except FileSystemError:
                stored = bytes(len(part))
            if stored != part:
                for lo in range(0, len(part), unit):
                    if part[lo : lo + unit] != stored[lo : lo + unit]:
                        yield position + at + lo, part[lo : lo + unit], stored[lo : lo + unit]
            at += len(part)

    def _check_blank(self, position: int) -> None:
        """Check that a ledger's blank has no unexpected byte. Raises CorruptionError."""
        log = self._log
        if not log.is_ledger:
            return
        data = self._reader.data(position, log.file_end(position) - position)
        problem = check_blank(data)
        if problem is not None:
            raise log.damaged(
                position + problem.at, problem.field, problem.expected, problem.actual
            )

    # --- Comparison with other files and replicas ---

    def _compare_queues(self) -> None:
        for wanted in self._queues.take():
            for finding in self._compare_queue(wanted):
                self._report.add(finding)

    def _compare_queue(self, wanted: Wanted) -> Iterator[SegmentFinding]:
        """Compare the units derived from the log with those of a consume queue."""
        log, unit = self._log, fmt.CONSUME_QUEUE_UNIT
        directory = f"consumequeue/{wanted.topic}/{wanted.queue_id}"
        size_bytes = log.queue_file_size_bytes
        for position, derived, stored in self._differences(
            directory, size_bytes, wanted.offset * unit.size, wanted.units, unit.size
        ):
            own = int(unit.unpack(derived)[0])
            if own >= log.required_position and stored == bytes(unit.size):
                continue
            path, at = _place(directory, size_bytes, position)
            expected, actual = (
                "position {}, {} bytes, tags code {}".format(*unit.unpack(x))
                for x in (derived, stored)
            )
            name = f"unit of offset {position // unit.size}"
            yield SegmentFinding("queue", path, at, name, expected, actual, own, -1)

    def _blocks(self, cuts: Sequence[int]) -> Iterator[Block]:
        report, log = self._report, self._log
        lo = max(report.lo, cuts[0], log.begin_position)
        hi = min(report.hi, cuts[-1], log.end_position)
        while lo < hi:
            aligned = lo - lo % BLOCK_SIZE_BYTES + BLOCK_SIZE_BYTES
            until = min(hi, aligned, next(cut for cut in cuts if cut > lo))
            try:
                yield Block(lo, until, crc32c(self._reader.data(lo, until - lo)))
            except FileSystemError:  # The walk has reported it.
                pass
            lo = until


def _place(directory: str, file_size_bytes: int, position: int) -> tuple[str, int]:
    """Return (file below the root, byte in it)."""
    at = position % file_size_bytes
    return f"{directory}/{fmt.file_name(position - at)}", at
