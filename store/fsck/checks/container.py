"""The check of a good record, entry or blank, for the walk of a check, in either container.

Owns the way from bytes to records, and the signs by which the next good bytes are found after
damage; the checks themselves are those of append, recovery and followers (`store.record.check`,
`store.ledger.entry`), so what one of them detects all of them detect. Must not know files, but for
the blank, which may be larger than a read. Sources: storage-formats 1.4, 1.13, 7.1, 7.2.
"""

import re
from typing import Final, NamedTuple

from store import format as fmt
from store.config import MIB
from store.files.checksum import crc32c
from store.fsck.files import SCAN_SIZE_BYTES, Segments
from store.fsck.types import Finding, Severity
from store.ledger.entry import (
    KIND_DATA,
    ChainLink,
    EntryProblem,
    chain_of,
    check_run,
    is_header_at,
    unpack_header,
)
from store.ledger.walk import LedgerWalk
from store.record.check import check_records

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_UNIT: Final = fmt.INDEX_UNIT_SIZE_BYTES
_KIND_AT: Final = 32
_RECORD_MAGIC: Final = re.compile(
    b"|".join(
        re.escape(m.to_bytes(4, "big")) for m in (fmt.MAGIC_V1, fmt.MAGIC_V2, fmt.MAGIC_BLANK)
    )
)
_ENTRY_MAGIC: Final = re.compile(rb"\x00\x00\x00\x01|\xff\xff\xff\xff")


READ_SIZE_BYTES: Final = 5 * MIB  # More than any record or entry has, so each fits into one read.
assert READ_SIZE_BYTES > fmt.ENTRY_SIZE_BYTES_MAX + fmt.RECORD_OVERHEAD_BYTES_MAX


class RecordRun(NamedTuple):
    """Whole good records that lie back to back; the first byte is at `position`."""

    position: int
    data: bytes


class WalkStep(NamedTuple):
    """How far some bytes of the log are good. `problem.at` counts from the first of them."""

    end: int
    records: list[RecordRun]
    findings: list[Finding]
    is_blank: bool
    problem: EntryProblem | None


class PlainCheck:
    """Records back to back. The bytes of a blank behind its eight are unspecified (1.4)."""

    def __init__(self, *, require_property_crc: bool) -> None:
        self.ends_with_blank = True
        """Whether a log may end right behind a blank."""
        self.record_count = 0
        self._require_property_crc = require_property_crc

    def check(self, data: bytes, position: int, file_end: int) -> WalkStep:
        """Check records; a blank counts by its magic alone."""
        checked = check_records(data, position, require_property_crc=self._require_property_crc)
        if checked.end:
            self.record_count += checked.record_count
            whole = data if checked.end == len(data) else data[: checked.end]
            return WalkStep(checked.end, [RecordRun(position, whole)], [], False, None)
        if len(data) < fmt.BLANK_SIZE_BYTES_MIN:
            problem = EntryProblem(0, "blank", "8 bytes or more", f"{len(data)}")
            return WalkStep(0, [], [], False, problem)
        size_bytes, magic = fmt.BLANK.unpack_from(data)
        if magic == fmt.MAGIC_BLANK:
            return WalkStep(0, [], [], True, None)
        if checked.problem is not None:
            wrong = checked.problem
            problem = EntryProblem(wrong.at, wrong.field, wrong.expected, wrong.actual)
        else:
            limits = f"{fmt.RECORD_SIZE_BYTES_MIN} to {len(data)}"
            problem = EntryProblem(0, "total size", limits, str(size_bytes))
        return WalkStep(0, [], [], False, problem)

    def check_blank(self, segments: Segments, position: int, file_end: int) -> EntryProblem | None:
        """Check that the blank has the size of the rest of the file."""
        room = file_end - position
        size_bytes = fmt.BLANK.unpack(segments.read(position, fmt.BLANK.size))[0]
        wrong = EntryProblem(0, "blank size", f"{room}", f"{size_bytes}")
        return None if size_bytes == room else wrong

    def is_blank_proven(self, segments: Segments, position: int, file_end: int) -> bool:
        """Whether there is a blank by its magic, and the next file begins with a record."""
        if fmt.BLANK.unpack(segments.read(position, fmt.BLANK.size))[1] != fmt.MAGIC_BLANK:
            return False
        size_bytes = min(segments.file_size_bytes, READ_SIZE_BYTES)
        following = segments.read(file_end, size_bytes)
        return self.is_good(following, file_end, file_end + segments.file_size_bytes)

    def find(self, data: bytes, lo: int, position: int, file_end: int) -> int:
        """Return the byte of the next record with its position, or of a right blank; else -1."""
        for match in _RECORD_MAGIC.finditer(data, lo + 4):
            at = match.start() - 4
            if match[0] == fmt.MAGIC_BLANK.to_bytes(4, "big"):
                is_right = fmt.INT32.unpack_from(data, at)[0] == file_end - position - at
            else:
                offset_at = at + fmt.PHYSICAL_OFFSET_AT
                own = data[offset_at : offset_at + 8]
                is_right = len(own) < 8 or int.from_bytes(own, "big") == position + at
            if is_right:
                return at
        return -1

    def is_good(self, data: bytes, position: int, file_end: int) -> bool:
        """Whether a whole record begins here, or a blank of the right size."""
        checked = check_records(data, position, require_property_crc=self._require_property_crc)
        return checked.end > 0 or 0 < checked.blank_size_bytes == file_end - position

    def lose(self) -> None:
        """Do nothing: records do not depend on the ones before."""


class LedgerCheck:
    """Entries with their chain, the records in them, and the index units beside them."""

    def __init__(self, data: Segments, index: Segments, link: ChainLink) -> None:
        """Take the files, for findings only. `link` is the entry before the first one."""
        self.ends_with_blank = False
        self.record_count = 0
        self.entry_count = 0
        self.link = link
        """The last good entry; proven by its chain only if no entry is lost."""
        self._data, self.index = data, index
        self._is_lost = False
        self._lost_chains: tuple[int, ...] = ()

    def check(self, data: bytes, position: int, file_end: int) -> WalkStep:
        """Check entries, the records of each, and the index units of all of them."""
        if self._is_lost:
            return self._check_lost(data, position, file_end)
        first_index = self.link.entry_index + 1
        run = check_run(data, position, self.link, file_end_position=file_end)
        problem = run.problem
        if run.end:
            problem = None  # The next step begins there.
        elif problem is None and not run.is_blank:
            problem = EntryProblem(4, "size", f"at most {len(data)}", f"{data[4:8].hex()} (hex)")
        if problem is not None and len(data) >= _HEADER:
            # The possible chains of a bad entry: as stored, and as computed.
            computed = chain_of(self.link.chain_crc, data[:_HEADER])
            self._lost_chains = (unpack_header(data).chain_crc, computed)
        self.link = run.link
        self.entry_count += run.entry_count
        records, findings = self._records(data, position, run.units)
        findings += compare_units(self.index, first_index, run.units)
        return WalkStep(run.end, records, findings, run.is_blank and not run.end, problem)

    def _check_lost(self, data: bytes, position: int, file_end: int) -> WalkStep:
        """Check the first entry behind damage without the entry before it; then go on."""
        if data[:4] == b"\xff\xff\xff\xff":
            return WalkStep(0, [], [], True, None)
        size_bytes = self._entry_size(data, position, file_end)
        if not size_bytes:
            problem = EntryProblem(0, "header", "of an entry", data[:8].hex())
            return WalkStep(0, [], [], False, problem)
        header = unpack_header(data)
        findings = []
        if not any(chain_of(c, data[:_HEADER]) == header.chain_crc for c in self._lost_chains):
            at, actual = fmt.ENTRY_CHAIN_CRC_AT, "not provable: the entry before is lost"
            wanted = "that of the entry before"
            findings = [self._damage(position, at, "chain CRC", wanted, actual)]
        self._is_lost = False
        self.link = ChainLink(header.entry_index, header.term, header.chain_crc)
        self.entry_count += 1
        unit = fmt.INDEX_UNIT.pack(
            fmt.ENTRY_MAGIC, position, size_bytes, header.entry_index, header.term
        )
        records, more = self._records(data, position, unit)
        findings += [*more, *compare_units(self.index, header.entry_index, unit)]
        return WalkStep(size_bytes, records, findings, False, None)

    def _records(
        self, data: bytes, position: int, units: bytes
    ) -> tuple[list[RecordRun], list[Finding]]:
        """Return the records of whole entries, and the findings in bodies that are not records."""
        records: list[RecordRun] = []
        findings: list[Finding] = []
        for _, own, size_bytes, index, _ in fmt.INDEX_UNIT.iter_unpack(units):
            at = own - position
            if fmt.INT32.unpack_from(data, at + _KIND_AT)[0] != KIND_DATA:
                continue
            body, first = data[at + _HEADER : at + size_bytes], own + _HEADER
            checked = check_records(body, first)
            if checked.end:
                self.record_count += checked.record_count
                whole = body if checked.end == len(body) else body[: checked.end]
                records.append(RecordRun(first, whole))
            if checked.end != len(body) or not body:
                more = f"{len(body) - checked.end} bytes more"
                wrong = checked.problem or EntryProblem(checked.end, "size", "whole records", more)
                at, field = _HEADER + wrong.at, f"record of entry {index}: {wrong.field}"
                findings.append(self._damage(own, at, field, wrong.expected, wrong.actual))
        return records, findings

    def _damage(self, position: int, at: int, field: str, expected: str, actual: str) -> Finding:
        """Return the finding for byte `at` of the entry at a position."""
        damage = Severity.DAMAGE
        return self._data.finding(position + at, field, expected, actual, damage, position)

    def check_blank(self, segments: Segments, position: int, file_end: int) -> EntryProblem | None:
        """Check magic, size and that all the rest is zero."""
        return LedgerWalk(segments.read, segments.file_size_bytes).check_blank(position)

    def is_blank_proven(self, segments: Segments, position: int, file_end: int) -> bool:
        """Whether the next file's first entry chains to the last good one: none lay between."""
        if self._is_lost:
            return False
        size_bytes = min(segments.file_size_bytes, READ_SIZE_BYTES)
        data = segments.read(file_end, size_bytes)
        next_end = file_end + segments.file_size_bytes
        return check_run(data, file_end, self.link, file_end_position=next_end).end > 0

    def find(self, data: bytes, lo: int, position: int, file_end: int) -> int:
        """Return the byte of the next entry with its position, or of a right blank; else -1."""
        for match in _ENTRY_MAGIC.finditer(data, lo):
            at = match.start()
            if match[0] == b"\xff\xff\xff\xff":
                is_right = data[at + 4 : at + 8] == (file_end - position - at).to_bytes(4, "big")
            else:
                own = data[at + 24 : at + 32]
                is_right = len(own) < 8 or int.from_bytes(own, "big") == position + at
            if is_right:
                return at
        return -1

    def is_good(self, data: bytes, position: int, file_end: int) -> bool:
        """Whether a whole entry with the right body begins here, or a blank of zeros only."""
        if data[:4] == b"\xff\xff\xff\xff":
            return len(data) == file_end - position and data.count(0, 8) == len(data) - 8
        return self._entry_size(data, position, file_end) > 0

    def _entry_size(self, data: bytes, position: int, file_end: int) -> int:
        """Return the size of the entry that `data` begins with; 0 when it cannot be a good one."""
        if len(data) < _HEADER:
            return 0
        header = unpack_header(data)
        size_bytes = header.size_bytes
        is_entry = (
            is_header_at(header, position, file_end)
            and size_bytes <= len(data)
            and header.entry_index > self.link.entry_index
            and header.term >= self.link.term
            and crc32c(data[_HEADER:size_bytes]) == header.body_crc
        )
        return size_bytes if is_entry else 0

    def lose(self) -> None:
        """Break the chain: the next entry is accepted by its own fields and body."""
        self._is_lost = True


def compare_units(index: Segments, first_index: int, units: bytes) -> list[Finding]:
    """Compare the ledger's index with the units that the data prove; name each that differs."""
    findings: list[Finding] = []
    lo = first_index * _UNIT
    hi = max(lo, min(lo + len(units), index.end_position)) if index.position <= lo else lo
    stored = index.read(lo, hi - lo)
    if stored != units[: hi - lo]:
        for at in range(0, hi - lo, _UNIT):
            unit, other = units[at : at + _UNIT], stored[at : at + _UNIT]
            if unit != other:
                byte = lo + at + next(n for n in range(_UNIT) if unit[n] != other[n])
                findings.append(_unit_finding(index, byte, unit.hex(), other.hex()))
    if hi < lo + len(units):
        findings.append(_unit_finding(index, hi, "a unit", "no file"))
    return findings


def _unit_finding(index: Segments, at: int, expected: str, actual: str) -> Finding:
    return index.finding(at, f"index unit of entry {at // _UNIT}", expected, actual)


def check_other_units(index: Segments, lo_index: int, hi_index: int) -> list[Finding]:
    """Check the units without an entry: expired ones hold their own number, the others are 0."""
    findings: list[Finding] = []
    lo, old_hi = index.position, min(index.end_position, lo_index * _UNIT)
    while lo < old_hi:
        data = index.read(lo, min(old_hi - lo, SCAN_SIZE_BYTES))
        for at in range(0, len(data), _UNIT):
            unit, number = data[at : at + _UNIT], (lo + at) // _UNIT
            magic, _, _, own, _ = fmt.INDEX_UNIT.unpack(unit)
            if unit != bytes(_UNIT) and (magic, own) != (fmt.ENTRY_MAGIC, number):
                wanted, stored = f"magic 1, index {number}", f"magic {magic}, index {own}"
                findings.append(_unit_finding(index, lo + at, wanted, stored))
        lo += len(data)
    for file in index.files:
        hi = file.position + index.file_size_bytes
        dirty = index.first_dirty(max(file.position, hi_index * _UNIT), hi)
        if dirty is not None:
            findings.append(_unit_finding(index, dirty, "zeros", "not zeros"))
    return findings
