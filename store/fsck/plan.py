"""Turns the findings of a check into a repair plan, with the exact loss of a cut.

Owns the choice of actions and their order; must not change a byte. A plan is data: it can be shown,
and `store.fsck.repair.apply` carries it out. Bytes that were known to be good are cut only by an
action with a `Loss`, which has to be accepted. Sources: fault-matrix D5 to D10, S05, S15.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from store import format as fmt
from store.derived.log_walk import said_of
from store.derived.queues.consume_queues import DIRECTORY as QUEUE_DIRECTORY
from store.durability import checkpoint, durable_mark
from store.errors import FileSystemError
from store.files.checksum import crc32c
from store.fsck.check import Check
from store.fsck.checks.container import LedgerCheck, PlainCheck, RecordRun
from store.fsck.checks.log import NOWHERE, LogPass
from store.fsck.files import PAGE_SIZE_BYTES, Segments
from store.fsck.inspect import queue_ranges
from store.fsck.layout import GivenSettings
from store.fsck.types import (
    Action,
    ActionKind,
    Finding,
    Loss,
    LostQueue,
    Part,
    Severity,
    no_progress,
)
from store.ledger.entry import file_end, is_header_at, unpack_header
from store.record.tail import TailReader

FINGERPRINT_SIZE_BYTES: Final = 64 * 1024
_KEPT_PAGES_MAX: Final = 64
_LOST: Final = (Severity.DAMAGE, Severity.TORN_TAIL)
_DERIVED: Final = (Part.QUEUE, Part.KEY_INDEX)


def plan(
    root: str, findings: Iterable[Finding], *, given: GivenSettings | None = None
) -> list[Action]:
    """Return the actions for the findings of one check, in the order in which they are done.

    Empty when there is no action. Reads the bytes that a cut would lose. Raises as `verify`.
    """
    maker = _Planner(root, given)
    try:
        return [replace(action, config=maker.config) for action in maker.plan(list(findings))]
    finally:
        maker.check.place.descriptors.close()


class _Planner:
    """The planner of one directory."""

    def __init__(self, root: str, given: GivenSettings | None) -> None:
        self.root = root
        self.check = Check(root, given)
        self.config = self.check.config
        self.data = self.check.data

    def plan(self, findings: list[Finding]) -> list[Action]:
        parts = {f.part for f in findings if f.severity is not Severity.UNKNOWN}
        actions = [*self._removals(findings), *self._start(findings)]
        if not self.check.is_start_proven:
            return actions
        cut = self._cut(findings)
        end = cut.position if cut is not None else NOWHERE
        actions += [*self._rewrites(findings, end), *self._kept_pages(findings)]
        if cut is not None:
            actions.append(cut)
        log = self.check.layout.log_directory
        ledger_findings = [
            f for f in findings if f.part is Part.LEDGER_INDEX and f.severity is Severity.DERIVED
        ]
        if ledger_findings and self.check.index is not None:
            why = f"{len(ledger_findings)} units differ from the entries"
            directory = self.check.index.directory
            actions.append(Action(ActionKind.REBUILD_LEDGER_INDEX, directory, why))
        derived = [
            f for f in findings if f.part in _DERIVED and f.severity in (*_LOST, Severity.DERIVED)
        ]
        if derived or cut is not None:
            why = f"{len(derived)} findings" if derived else "the log gets shorter"
            actions.append(Action(ActionKind.REBUILD_DERIVED, QUEUE_DIRECTORY, why))
        if Part.CHECKPOINT in parts or cut is not None:
            why = "what it says of the log is not so"
            name = checkpoint.FILE_NAME
            actions.append(Action(ActionKind.RECREATE_CHECKPOINT, name, why))
        if Part.MARKS in parts or cut is not None or derived:
            why = f"they have to say how far {log} goes"
            name = durable_mark.FILE_NAME
            position = self._whole_position() if cut is None else cut.position
            actions.append(Action(ActionKind.RECREATE_MARKS, name, why, position=position))
        return actions

    def _whole_position(self) -> int:
        """Return the position up to which the log is whole, when no finding asks for a cut."""
        check = self.check
        if check.trust.mark is not None:
            return check.trust.mark.durable_position
        for _ in check.run(no_progress):
            pass
        return check.walk.end_position if check.walk is not None else 0

    # --- Actions without loss ---

    def _removals(self, findings: list[Finding]) -> list[Action]:
        """Return the removals: left-overs go, log files under a wrong name are moved aside."""
        return [
            Action(ActionKind.REMOVE, f.path, f.actual)
            for f in findings
            if f.severity is Severity.LEFT_OVER or (f.part is Part.LOG and f.field == "file name")
        ]

    def _start(self, findings: list[Finding]) -> list[Action]:
        bad = [f for f in findings if f.part is Part.START]
        if not bad:
            return []
        check = self.check
        if not check.is_start_proven:
            why = f"{bad[0].field}: no start of the log that is left fits its first entry"
            return [Action(ActionKind.REFETCH, bad[0].path, why)]
        why = f"the first entry proves that it follows entry {check.start.link.entry_index}"
        kind, path, start = ActionKind.RECREATE_START, check.layout.ledger_directory, check.start
        return [Action(kind, path, why, position=start.file_position, start=start)]

    def _rewrites(self, findings: list[Finding], end_position: int) -> list[Action]:
        """Return one action for each log file that stays, for sizes, blanks and unused bytes."""
        actions: dict[str, Action] = {}
        size_bytes = self.data.file_size_bytes
        by_path = {file.path: file for file in self.data.files}
        for finding in findings:
            file = by_path.get(finding.path)
            is_ours = finding.part is Part.LOG and finding.severity is Severity.REPAIRABLE
            if not is_ours or file is None or file.is_missing:
                continue
            if file.position + size_bytes > end_position:
                continue  # The cut gives it its size.
            zero_lo = zero_hi = 0
            if finding.position >= 0:
                zero_lo, zero_hi = finding.position - file.position, size_bytes
            elif finding.field == "unused byte":
                zero_hi = self.check.start.min_position - file.position
            before = actions.get(finding.path)
            if before is None or zero_hi:
                actions[finding.path] = Action(
                    ActionKind.REWRITE_FILE,
                    finding.path,
                    f"{finding.field} is {finding.actual}, must be {finding.expected}",
                    zero_lo=zero_lo,
                    zero_hi=zero_hi,
                    blank=finding.position >= 0,
                )
        return list(actions.values())

    def _kept_pages(self, findings: list[Finding]) -> list[Action]:
        """Return actions that keep damaged pages of derived files as evidence; a bounded number."""
        parts = (*_DERIVED, Part.LEDGER_INDEX, Part.CHECKPOINT)
        pages: dict[tuple[str, int], str] = {}
        for finding in findings:
            is_file = os.path.isfile(os.path.join(self.root, finding.path))
            if finding.part in parts and finding.severity is Severity.DERIVED and is_file:
                page = finding.at // PAGE_SIZE_BYTES * PAGE_SIZE_BYTES
                pages.setdefault((finding.path, page), finding.field)
        return [
            Action(
                ActionKind.KEEP,
                path,
                field,
                zero_lo=page,
                fingerprint=crc32c(self._page(path, page)),
            )
            for (path, page), field in list(pages.items())[:_KEPT_PAGES_MAX]
        ]

    def _page(self, name: str, at: int) -> bytes:
        """Read a page of any file, as much as there is; no bytes when it cannot be read."""
        fs, path = self.check.fs, os.path.join(self.root, name)
        fd = fs.open(path)
        try:
            size_bytes = max(0, min(PAGE_SIZE_BYTES, fs.size_bytes(fd) - at))
            return fs.read_at(fd, path, at, size_bytes)
        except FileSystemError:
            return b""
        finally:
            fs.close(fd)

    # --- The cut ---

    def _cut(self, findings: list[Finding]) -> Action | None:
        positions = [
            f.position
            for f in findings
            if f.part is Part.LOG and f.severity in _LOST and f.position >= 0
        ]
        if not positions:
            return None
        position = self._entry_start(min(positions))
        data, known_good = self.data, self.check.trust.known_good_position
        hi = max(data.dirty_hi(), position)
        loss = None
        if position < known_good:
            loss_hi = hi if known_good == NOWHERE else max(hi, known_good)
            loss = self._loss(position, loss_hi)
        path, at = data.place(position)
        if position == data.end_position and at == 0 and position > data.position:
            path, _ = data.place(position - 1)  # No bytes to zero: the next file is missing.
            at = data.file_size_bytes
        first = next(f for f in findings if f.part is Part.LOG and f.position == min(positions))
        return Action(
            ActionKind.CUT_LOG,
            path,
            f"{first.field} is {first.actual}, must be {first.expected}",
            position=position,
            zero_lo=at,
            zero_hi=data.file_size_bytes,
            fingerprint=fingerprint(data, position),
            loss=loss,
        )

    def _entry_start(self, position: int) -> int:
        """Return the start of the ledger entry whose record begins at a position."""
        if self.check.index is None or not self._is_inside(position):
            return position
        return self._walk_to(position)[0]

    def _is_inside(self, position: int) -> bool:
        """Whether the bytes at a position of a ledger look like a record and not like an entry."""
        data = self.data
        if not data.position <= position < data.end_position:
            return False
        file_end = data.file_at(position).position + data.file_size_bytes
        if file_end - position < fmt.ENTRY_HEADER_SIZE_BYTES:
            return False
        magic = data.read(position, 8)[4:]
        return magic in (fmt.MAGIC_V1.to_bytes(4, "big"), fmt.MAGIC_V2.to_bytes(4, "big"))

    def _walk_to(self, position: int) -> tuple[int, int]:
        """Return (start of the last entry that begins at or before a position, its index - 1).

        At the end of an entry: that end, and the index of the entry.
        """
        check, data = self.check, self.data
        assert check.index is not None, "a plain log has no entries"
        lo, link = check.start.min_position, check.start.link
        lo = max(lo, file_end(position - 1, data.file_size_bytes) - data.file_size_bytes)
        last_index = link.entry_index if lo == check.start.min_position else -1
        while data.position <= lo < min(position, data.end_position):
            end = file_end(lo, data.file_size_bytes)
            if end - lo < fmt.ENTRY_HEADER_SIZE_BYTES:
                break
            # The check found nothing wrong before the position, so sizes lead the way.
            header = unpack_header(data.read(lo, fmt.ENTRY_HEADER_SIZE_BYTES))
            if not is_header_at(header, lo, end):
                break
            if lo + header.size_bytes > position:
                return lo, last_index
            lo, last_index = lo + header.size_bytes, header.entry_index
        return min(lo, position), last_index

    def _loss(self, lo_position: int, hi_position: int) -> Loss:
        """Count the records behind a position, as far as they can be read."""
        check, data = self.check, self.data
        lo_index = hi_index = -1
        container: LedgerCheck | PlainCheck
        if check.index is not None:
            lo_index = self._walk_to(lo_position)[1] + 1
            container = LedgerCheck(data, check.index, check.start.link)
            container.lose()
        else:
            container = PlainCheck(require_property_crc=self.config.property_crc)
        queues = {
            (queue.topic, queue.queue_id): (queue.first_offset, queue.end_offset)
            for queue in queue_ranges(check.place, self.config, lo_position)
            if queue.first_offset < queue.end_offset
        }
        record_count = 0
        if data.position <= lo_position < data.end_position:
            walk = LogPass(
                data,
                container,
                begin_position=lo_position,
                known_good_position=NOWHERE,
                progress=no_progress,
            )
            tails = TailReader()
            for event in walk.events():
                if isinstance(event, RecordRun):
                    record_count += _count(event.data, tails, queues)
        if isinstance(container, LedgerCheck):
            mark = check.trust.mark
            durable_index = mark.durable_index if mark is not None else -1
            hi_index = max(container.link.entry_index, durable_index, lo_index - 1) + 1
        return Loss(
            lo_position,
            hi_position,
            lo_index,
            hi_index,
            record_count,
            tuple(LostQueue(t, i, lo, hi) for (t, i), (lo, hi) in sorted(queues.items())),
        )


def _count(data: bytes, tails: TailReader, queues: dict[tuple[str, int], tuple[int, int]]) -> int:
    """Add the offsets of records to the lost ones; return how many records there are."""
    at = count = 0
    while at < len(data):
        said = said_of(tails, data, at)
        if said is not None and said.has_unit:
            key, offset = (said.topic.decode("ascii"), said.queue_id), said.offset
            lo, hi = queues.get(key, (offset, offset))
            # Only neighbours: an offset that jumps is damaged itself.
            queues[key] = (lo - (offset == lo - 1), hi + (offset == hi))
        at += fmt.INT32.unpack_from(data, at)[0]
        count += 1
    return count


def fingerprint(data: Segments, position: int) -> int:
    """Return CRC-32C of the first bytes behind a position, for `Action.fingerprint`."""
    if not data.position <= position < data.end_position:
        return 0
    file_end = data.file_at(position).position + data.file_size_bytes
    return crc32c(data.read(position, min(file_end - position, FINGERPRINT_SIZE_BYTES)))


def loses(actions: Sequence[Action]) -> Loss | None:
    """Return the loss of a plan; None when it loses no byte that was known to be good."""
    return next((action.loss for action in actions if action.loss is not None), None)
