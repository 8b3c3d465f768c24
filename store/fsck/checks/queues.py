"""Compares the consume queues with the log, in both directions.

Owns what each queue must hold: a unit for each visible record of the log, in order, and nothing but
expired units and fillers before them and zeros behind. The units are computed as the dispatcher
does and compared as bytes, so a unit that agrees names the record that names it back. Must not know
the log's container. Memory: a few numbers for each queue. Sources: storage-formats 2.1 to 2.6.
"""

import os
from collections.abc import Container, Generator, Iterator
from typing import Final

from store import format as fmt
from store.derived.queues.consume_queue import UNIT_SIZE_BYTES
from store.derived.queues.consume_queues import DIRECTORY, REBUILD_MARK
from store.fsck.checks.meta import DerivedScope
from store.fsck.files import SCAN_SIZE_BYTES, Segments, odd_file
from store.fsck.types import Finding, LogFinding, Part, Severity

FINDINGS_MAX: Final = 20  # For each queue: all have the same remedy, a rebuild.
_UNIT: Final = fmt.CONSUME_QUEUE_UNIT
_FILLER_SIZE: Final = fmt.CONSUME_QUEUE_FILLER_SIZE
_ZEROS: Final = bytes(UNIT_SIZE_BYTES)
_SCAN_SIZE_BYTES: Final = SCAN_SIZE_BYTES // UNIT_SIZE_BYTES * UNIT_SIZE_BYTES


class _Queue:
    """State of one queue, as the records of the log gave it so far."""

    __slots__ = ("damage_count", "first_offset", "next_offset", "reported_count")

    def __init__(self, first_offset: int, damage_count: int) -> None:
        self.first_offset = self.next_offset = first_offset
        self.damage_count = damage_count  # Damaged parts of the log when a record was last met.
        self.reported_count = 0


class QueueCheck:
    """One pass: `put` for each run of records in log order, `finish` at the end."""

    def __init__(self, scope: DerivedScope, log_finding: LogFinding) -> None:
        """Take the bounds. Records before `required_position` must be in. Without `is_clean` later
        ones may be, and the bytes behind them are whatever a crash left. `log_finding` makes
        findings in records.
        """
        self._scope, self._bad, self._log_finding = scope, scope.bad, log_finding
        self._min_position = scope.min_position
        self._required_position = scope.trust.required_position
        self._is_clean = scope.trust.is_clean
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._segments: dict[tuple[str, int], Segments] = {}

    # --- Records ---

    def put(self, topic: str, queue_id: int, units: list[tuple[int, bytes]]) -> Iterator[Finding]:
        """Compare the next units of one queue: (queue offset, unit), in log order."""
        queue = self._queues.get((topic, queue_id))
        lo = 0
        for hi in range(1, len(units) + 1):
            if hi < len(units) and units[hi][0] == units[hi - 1][0] + 1:
                continue
            offset, run = units[lo][0], b"".join(unit for _, unit in units[lo:hi])
            if queue is None:
                queue = self._queues[topic, queue_id] = _Queue(offset, len(self._bad))
                may_begin_late = self._min_position > 0 or bool(self._bad)
                if offset < 0 or (offset > 0 and not may_begin_late):
                    yield self._wrong_offset(run, 0, offset)
            elif offset != queue.next_offset:
                yield from self._gap(topic, queue_id, queue, offset, run)
            if offset >= 0:
                yield from self._compare(topic, queue_id, queue, offset, run)
            queue.damage_count = len(self._bad)
            count = hi - lo
            # One record with another offset is damaged itself; a longer run counts as right.
            is_one = count == 1 and offset != queue.next_offset and hi < len(units)
            queue.next_offset = queue.next_offset + 1 if is_one else offset + count
            lo = hi

    def _gap(
        self, topic: str, queue_id: int, queue: _Queue, offset: int, run: bytes
    ) -> Iterator[Finding]:
        """Check that the offsets that the log skips are of records in its damaged bytes."""
        lo = queue.next_offset
        if offset < lo or queue.damage_count == len(self._bad):
            yield self._wrong_offset(run, lo, offset)
            return
        segments = self._files(topic, queue_id)
        for number in range(lo, offset):
            unit = self._read(segments, number, 1)
            position = _UNIT.unpack(unit)[0] if unit else -1
            if not self._scope.is_bad(position):
                expected = "a position in the damaged part of the log"
                yield from self._report(queue, segments, number, 0, expected, f"{position}")

    def _wrong_offset(self, run: bytes, expected: int, actual: int) -> Finding:
        """Return the finding for a record that has not the next offset of its queue."""
        position = _UNIT.unpack_from(run)[0]
        at, field = fmt.QUEUE_OFFSET_AT, "queue offset"
        return self._log_finding(position, at, field, str(expected), str(actual))

    def _compare(
        self, topic: str, queue_id: int, queue: _Queue, offset: int, run: bytes
    ) -> Iterator[Finding]:
        segments = self._files(topic, queue_id)
        stored = self._read(segments, offset, len(run) // UNIT_SIZE_BYTES)
        if stored == run:
            return
        for at in range(0, len(run), UNIT_SIZE_BYTES):
            unit, number = run[at : at + UNIT_SIZE_BYTES], offset + at // UNIT_SIZE_BYTES
            other = stored[at : at + UNIT_SIZE_BYTES]
            if unit == other:
                continue
            is_required = _UNIT.unpack(unit)[0] < self._required_position
            if not is_required and other in (b"", _ZEROS):
                continue  # Opening builds it.
            byte = next((n for n, b in enumerate(other) if b != unit[n]), 0)
            actual = other.hex() if other else "no file"
            yield from self._report(
                queue, segments, number, byte, unit.hex(), actual, is_torn=not is_required
            )

    def _report(
        self,
        queue: _Queue,
        segments: Segments,
        number: int,
        byte: int,
        expected: str,
        actual: str,
        *,
        is_torn: bool = False,
    ) -> Iterator[Finding]:
        queue.reported_count += 1
        if queue.reported_count > FINDINGS_MAX:
            return
        at, field = number * UNIT_SIZE_BYTES + byte, f"unit of offset {number}"
        severity = Severity.TORN_TAIL if is_torn else Severity.DERIVED
        yield segments.finding(at, field, expected, actual, severity)

    # --- Files ---

    def _files(self, topic: str, queue_id: int) -> Segments:
        key = (topic, queue_id)
        segments = self._segments.get(key)
        if segments is None:
            size_bytes = self._scope.config.consume_queue_units_per_file * UNIT_SIZE_BYTES
            directory = f"{DIRECTORY}/{topic}/{queue_id}"
            segments = Segments(self._scope.place, directory, size_bytes, Part.QUEUE)
            self._segments[key] = segments
        return segments

    def _read(self, segments: Segments, offset: int, count: int) -> bytes:
        """Read units; those in files that do not exist are left out: only last ones can be."""
        at = offset * UNIT_SIZE_BYTES
        hi = min((offset + count) * UNIT_SIZE_BYTES, segments.end_position)
        return segments.read(at, hi - at) if segments.position <= at else b""

    # --- The end ---

    def finish(self, passed_over: Container[bytes]) -> Iterator[Finding]:
        """Check units on disk that are not of a record of the log; skip the topics
        `passed_over`."""
        fs, directory = self._scope.place.fs, os.path.join(self._scope.place.root, DIRECTORY)
        for topic in fs.list_directory(directory):
            path = f"{DIRECTORY}/{topic}"
            if topic == REBUILD_MARK:
                yield Finding(
                    path, 0, "rebuild", "completed", "unfinished", Severity.DERIVED, Part.QUEUE
                )
            elif topic.encode() in passed_over:
                continue
            elif not os.path.isdir(os.path.join(directory, topic)):
                yield odd_file(path, Part.QUEUE)
            else:
                for name in fs.list_directory(os.path.join(directory, topic)):
                    is_id = name.isdecimal() and str(int(name)) == name
                    if is_id and os.path.isdir(os.path.join(directory, topic, name)):
                        yield from self._finish_queue(topic, int(name))
                    else:
                        yield odd_file(f"{path}/{name}", Part.QUEUE)

    def _finish_queue(self, topic: str, queue_id: int) -> Iterator[Finding]:
        segments = self._files(topic, queue_id)
        queue = self._queues.get((topic, queue_id))
        yield from segments.findings
        if not segments.files:
            return
        if queue is None:
            lo = yield from self._check_expired(segments, segments.end_position)
        else:
            first_at = queue.first_offset * UNIT_SIZE_BYTES
            hi = min(first_at, segments.end_position)
            lo = yield from self._check_expired(segments, hi)
            if lo < hi:
                yield self._rest_finding(segments, lo, "a unit", Severity.DERIVED)
            lo = queue.next_offset * UNIT_SIZE_BYTES
        yield from self._check_rest(segments, max(lo, segments.position))

    def _check_expired(self, segments: Segments, hi: int) -> Generator[Finding, None, int]:
        """Check units that come before those of the log; return where they end, at most `hi`."""
        before, may_be_filler, reported_count, lo = 0, True, 0, segments.position
        while lo < hi and reported_count < FINDINGS_MAX:
            rest_of_file = segments.file_size_bytes - lo % segments.file_size_bytes
            data = segments.read(lo, min(hi - lo, rest_of_file, _SCAN_SIZE_BYTES))
            for position, size_bytes, tags_code in _UNIT.iter_unpack(data):
                is_filler = (position, size_bytes, tags_code) == (0, _FILLER_SIZE, 0)
                may_be_filler &= is_filler
                if not (position or size_bytes or tags_code):
                    return lo
                is_later = position >= self._required_position and not self._is_clean
                if is_later and size_bytes >= fmt.RECORD_SIZE_BYTES_MIN:
                    return lo  # Units of records that were cut off the log.
                is_old = position + size_bytes <= self._min_position
                is_old = is_old or self._scope.is_bad(position)
                is_record = size_bytes >= fmt.RECORD_SIZE_BYTES_MIN and position >= before
                if is_old and is_record and not is_filler:
                    before = position + size_bytes
                elif not may_be_filler:
                    reported_count += 1
                    field = f"unit of offset {lo // UNIT_SIZE_BYTES}"
                    expected = f"a record in [{before}, {self._min_position}), expired"
                    actual = f"position {position}, {size_bytes} bytes"
                    yield segments.finding(lo, field, expected, actual)
                lo += UNIT_SIZE_BYTES
        return lo if reported_count < FINDINGS_MAX else hi

    def _check_rest(self, segments: Segments, lo: int) -> Iterator[Finding]:
        """Check that only zeros follow the last unit."""
        hi = segments.end_position
        while lo < hi and self._bad:  # Units of records in damaged bytes at the end of the log.
            position, size_bytes, _ = _UNIT.unpack(segments.read(lo, UNIT_SIZE_BYTES))
            if not (self._scope.is_bad(position) and size_bytes > 0):
                break
            lo += UNIT_SIZE_BYTES
        dirty = segments.first_dirty(lo, hi)
        if dirty is not None:
            at = dirty // UNIT_SIZE_BYTES * UNIT_SIZE_BYTES
            position, size_bytes, _ = _UNIT.unpack(segments.read(at, UNIT_SIZE_BYTES))
            is_later = position >= self._required_position and size_bytes > 0
            is_torn = is_later and not self._is_clean
            severity = Severity.TORN_TAIL if is_torn else Severity.DERIVED
            yield self._rest_finding(segments, dirty, "zeros, no record is left", severity)

    def _rest_finding(
        self, segments: Segments, position: int, expected: str, severity: Severity
    ) -> Finding:
        number = position // UNIT_SIZE_BYTES
        actual = segments.read(number * UNIT_SIZE_BYTES, UNIT_SIZE_BYTES).hex()
        return segments.finding(position, f"unit of offset {number}", expected, actual, severity)
