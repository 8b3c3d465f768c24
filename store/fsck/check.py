"""Checks every byte of a store directory without a server, and without changing one.

Start reading here. Owns the order of a check: layout, marks, log, derived files, the rest. Callers
are `qlog store verify` and tests. `store.fsck.inspect` tells what is there, `store.fsck.plan` and
`store.fsck.repair` what to do about findings. Memory does not grow with the log.

No check can find the following, because the format leaves it open: the bytes of a plain log's blank
behind its eight (1.4); in a plain log without property CRC, header fields and properties that no
derived file repeats (flag, times, hosts, reconsume times; 1.7); deleted oldest files of a plain
log, which look like retention; tags codes and seconds of expired units and entries; older times in
a checkpoint. A ledger leaves nothing open. Sources: fault-matrix D3 to D9, S05, S13; I18.
"""

import os
from collections.abc import Iterator

from store import format as fmt
from store.config import StoreConfig
from store.files.descriptor_cache import DescriptorCache
from store.fsck.checks.container import (
    READ_SIZE_BYTES,
    LedgerCheck,
    PlainCheck,
    RecordRun,
    check_other_units,
)
from store.fsck.checks.log import NOWHERE, Bad, LogPass
from store.fsck.checks.meta import (
    DerivedScope,
    Trust,
    check_boot_id,
    check_checkpoint,
    check_mark,
    read_starts,
    read_trust,
    stray_files,
)
from store.fsck.checks.records import DerivedCheck
from store.fsck.files import OPEN_FILES_MAX, Place, ReadOnlyFileSystem, Segments, refuse_if_locked
from store.fsck.layout import GivenSettings, Layout, detect
from store.fsck.types import (
    NO_OWNER_FILES,
    Finding,
    Notice,
    OwnerFiles,
    Part,
    Progress,
    Severity,
    no_progress,
)
from store.ledger.entry import check_run
from store.ledger.mending.damage import DamagedRange, DamageWalk, Goal
from store.ledger.start import LOG_FROM_ZERO, LogStart
from store.ledger.walk import EntryBoundary

__all__ = ["Check", "Finding", "GivenSettings", "Severity", "verify"]


def verify(
    root: str,
    progress: Progress = no_progress,
    *,
    given: GivenSettings | None = None,
    owner: OwnerFiles = NO_OWNER_FILES,
) -> Iterator[Finding]:
    """Check a directory and yield the findings, none when all is well.

    `owner` checks the files that are not the store's. Raises LockedError when a process has the
    directory (also when one took it on the way), LayoutError when there is no store or it cannot be
    told how to read it, FileSystemError.
    """
    return Check(root, given, owner).run(progress)


class Check:
    """One check of one directory. `run` does it; the attributes are complete after it."""

    def __init__(
        self, root: str, given: GivenSettings | None = None, owner: OwnerFiles = NO_OWNER_FILES
    ) -> None:
        """Find out the layout. Raises LockedError, LayoutError or FileSystemError."""
        self.root, self._owner = root, owner
        self.fs = ReadOnlyFileSystem()
        refuse_if_locked(root)
        self.layout: Layout = detect(self.fs, root, given)
        self.config: StoreConfig = self.layout.config
        self.place = Place(self.fs, DescriptorCache(self.fs, OPEN_FILES_MAX), root)
        self.start: LogStart = LOG_FROM_ZERO
        """Start of a ledger, as far as it can be proven."""
        self.is_start_proven = True
        self.is_resetting = False
        """Whether a reset of the log was not finished: an opening drops the old files then."""
        self.walk: LogPass | None = None
        self.last_index = -1
        """Index of the last good entry of a ledger."""
        self.notices: list[Notice] = []
        """Facts for operators that are no findings."""
        names = self.fs.list_directory(os.path.join(root, self.layout.log_directory))
        is_empty = not any(name.isdecimal() for name in names)
        self.trust: Trust
        self.trust, self._early = read_trust(self.fs, root, log_is_empty=is_empty)
        self.index: Segments | None = None
        self.container: PlainCheck | LedgerCheck
        self._open_log()

    # --- Opening ---

    def _open_log(self) -> None:
        if self.config.container == "commit_log":
            self.data = self._segments()
            self.container = PlainCheck(require_property_crc=self.config.property_crc)
            return
        directory = self.layout.ledger_directory
        starts, findings, self.is_resetting = read_starts(self.fs, self.root, directory)
        self._early += findings
        self.start, self.is_start_proven = self._choose_start(starts, is_sure=not findings)
        self.data = self._segments(self.start.file_position)
        size_bytes = self.config.ledger_index_units_per_file * fmt.INDEX_UNIT_SIZE_BYTES
        self.index = Segments(self.place, f"{directory}/index", size_bytes, Part.LEDGER_INDEX)
        self.container = LedgerCheck(self.data, self.index, self.start.link)

    def _segments(self, first_position: int | None = None) -> Segments:
        size_bytes, directory = self.config.file_size_bytes, self.layout.log_directory
        return Segments(self.place, directory, size_bytes, Part.LOG, first_position)

    def _choose_start(self, starts: list[LogStart], *, is_sure: bool) -> tuple[LogStart, bool]:
        """Return the start that the first entry chains to, and whether one does."""
        if is_sure:
            return starts[0], True
        data = self._segments()
        file_end = data.position + self.config.file_size_bytes
        for start in starts:
            lo = start.min_position
            if data.files and data.position == start.file_position <= lo < file_end:
                first = data.read(lo, min(file_end - lo, READ_SIZE_BYTES))
                if check_run(first, lo, start.link, file_end_position=file_end).end:
                    return start, True
        return starts[0], False

    def damaged_ranges(self) -> list[DamagedRange]:
        """Return the ranges of entries below the known good position that a replica has to fetch
        again, oldest first, as a node of a raft group finds them when it starts.

        Reads the whole log once more. Empty for a plain log, and where it is not known how far the
        log was good or how it began.
        """
        mark, known_good = self.trust.mark, self.trust.known_good_position
        is_known = not self.is_resetting and self.is_start_proven and known_good != NOWHERE
        if self.index is None or mark is None or not is_known:
            return []
        data, goal = self.data, Goal(known_good, mark.durable_index)

        def read(position: int, size_bytes: int) -> bytes:
            if not data.position <= position < data.end_position:  # A missing file.
                return bytes(size_bytes)
            return data.read(position, size_bytes)

        try:
            walk = DamageWalk(read, self.config.file_size_bytes, goal)
            return list(walk.ranges(EntryBoundary(self.start.min_position, self.start.link)))
        finally:
            self.place.descriptors.close()

    # --- Running ---

    def run(self, progress: Progress) -> Iterator[Finding]:
        """Do the check. Call it once."""
        try:
            yield from self._early
            if not self.is_resetting:
                yield from self._check_log(progress)
            yield from check_boot_id(self.fs, self.root)
            yield from self._owner.check(self.fs, self.root)
            yield from stray_files(self.fs, self.root, self.layout, self._owner.names)
        finally:
            self.place.descriptors.close()
        refuse_if_locked(self.root)

    def _check_log(self, progress: Progress) -> Iterator[Finding]:
        trust, data = self.trust, self.data
        begin = self.start.min_position if self.index is not None else data.position
        walk = self.walk = LogPass(
            data,
            self.container,
            begin_position=begin,
            known_good_position=trust.known_good_position,
            progress=progress,
        )
        scope = DerivedScope(self.place, self.config, begin, trust, [])
        derived = DerivedCheck(scope, self._log_finding)
        has_damage = False
        if data.files and data.position < begin:
            dirty = data.first_dirty(data.position, begin)
            if dirty is not None:
                yield data.finding(dirty, "unused byte", "0", "not 0")
        for event in walk.events():
            if isinstance(event, RecordRun):
                yield from derived.put(event)
            elif isinstance(event, Bad):
                has_damage = True
                yield from derived.damage(event)
            else:
                yield event
        progress("derived", 0, 1)
        yield from derived.finish()
        self.notices = derived.notices()
        yield from self._check_end(walk.end_position, derived.newest_unix_ms, has_damage=has_damage)
        progress("derived", 1, 1)

    def _log_finding(
        self, position: int, at: int, field: str, expected: str, actual: str
    ) -> Finding:
        """Return the finding for byte `at` of the record at a position."""
        is_known = position < self.trust.known_good_position
        severity = Severity.DAMAGE if is_known else Severity.TORN_TAIL
        return self.data.finding(position + at, field, expected, actual, severity, position)

    def _check_end(self, end: int, newest_unix_ms: int, *, has_damage: bool) -> Iterator[Finding]:
        """Compare the end of the log with the mark, and what follows from it."""
        trust = self.trust
        if self.index is not None:
            assert isinstance(self.container, LedgerCheck)
            self.last_index = self.container.link.entry_index
            yield from self.index.findings
            first_index = self.start.link.entry_index + 1
            yield from check_other_units(self.index, first_index, self.last_index + 1)
        known_good = trust.known_good_position
        if trust.mark is not None and end < known_good != NOWHERE and not has_damage:
            path, at = self.data.place(max(end - 1, 0))
            expected, actual = f"position {known_good}, once known to be good", f"position {end}"
            damage, log = Severity.DAMAGE, Part.LOG
            yield Finding(path, at + 1, "log end", expected, actual, damage, log, end)
        index_at = {end: self.last_index} if not has_damage else None
        yield from check_mark(
            trust, end_position=end, index_at=index_at, last_index=self.last_index
        )
        yield from check_checkpoint(self.fs, self.root, newest_unix_ms)
