"""Compares the key index with the log: one entry for each key of each record, and no other.

Owns the order of the entries, which is that of the log, the chains, slots and headers that follow
from it, and the zeros behind; must not know the log's container. Entries of records that retention
deleted are checked by their chains only. Memory: the slots of one file. Sources: storage-formats
3.1 to 3.3; `store.derived.keys.index_file` for what differs there.
"""

import os
import sys
from array import array
from collections.abc import Generator, Iterator
from typing import Final

from store import format as fmt
from store.derived.keys.index_file import seconds_since
from store.derived.keys.index_files import DIRECTORY
from store.derived.keys.key_sums import IndexShape
from store.errors import FileSystemError
from store.fsck.checks.meta import DerivedScope
from store.fsck.files import SCAN_SIZE_BYTES, odd_file
from store.fsck.layout import index_names
from store.fsck.types import Finding, Part, Severity

FINDINGS_MAX: Final = 20  # For each file: all have the same remedy, a rebuild.
_ENTRY: Final = fmt.INDEX_ENTRY
_STEP: Final = fmt.INDEX_ENTRY_SIZE_BYTES
_SLOTS_AT: Final = fmt.INDEX_HEADER_SIZE_BYTES
_SECONDS_MAX: Final = 0x7FFFFFFF
_ENTRIES_AT_ONCE: Final = SCAN_SIZE_BYTES // _STEP

Key = tuple[int, int, int]
"""Hash of a key, position of its record, store time of that in Unix ms."""


class _File:
    """One index file on the way through it. `entry` is the next one to compare."""

    def __init__(
        self, path: str, header: tuple[int, ...], slot_count: int, entry_count: int
    ) -> None:
        self.path = path
        self.begin_ms, self.end_ms, self.begin_position, self.end_position = header[:4]
        self.used_slot_count, self.count = header[4:]
        self.hi = min(max(self.count, 1), entry_count)
        self.entry = 1
        self.slots = array("i", bytes(slot_count * fmt.INDEX_SLOT_SIZE_BYTES))
        self.newest_ms = 0
        self.is_newest_expired = False
        """Whether the newest record is not in the log: its time is known to the second only."""
        self.first_position = self.last_position = -1
        self.reported_count = 0


class IndexCheck:
    """One pass: `put` for the keys of records in log order, `finish` at the end."""

    def __init__(self, scope: DerivedScope) -> None:
        """Take the sizes. Keys of records before `required_position` must be in; later ones may be,
        and with `is_clean` they must be, too. Else opening rebuilds slots and header of the last
        file.
        """
        config = scope.config
        shape = IndexShape(config.index_slot_count, config.index_entry_count)
        self._scope, self._place = scope, scope.place
        self._slot_count, self._entry_count = shape
        self._entries_at, self._size_bytes = shape.entries_at, shape.size_bytes
        self._required_position = scope.trust.required_position
        self._is_clean = scope.trust.is_clean
        self._file: _File | None = None
        self._missing_count = 0
        self._pending: list[Finding] = []
        self._paths = self._list()
        self._next_path = 0

    def _list(self) -> list[str]:
        directory = os.path.join(self._place.root, DIRECTORY)
        names = index_names(self._place.fs, directory)
        size_bytes = self._size_bytes
        for name in self._place.fs.list_directory(directory):
            path = f"{DIRECTORY}/{name}"
            if name not in names:
                self._pending.append(odd_file(path, Part.KEY_INDEX))
                continue
            file_size = os.stat(os.path.join(self._place.root, path)).st_size
            if file_size != size_bytes:
                at = min(file_size, size_bytes)
                self._pending.append(_finding(path, at, "file size", size_bytes, file_size))
        return [f"{DIRECTORY}/{name}" for name in names]

    def _is_unknown(self, position: int) -> bool:
        """Whether the log cannot know a record: expired, or in damaged bytes."""
        return position < self._scope.min_position or self._scope.is_bad(position)

    # --- Keys ---

    def put(self, keys: list[Key]) -> Iterator[Finding]:
        """Compare the next keys, in log order, with the next entries."""
        lo = 0
        while lo < len(keys):
            file = yield from self._current()
            if file is None:
                yield from self._missing(keys[lo:])
                return
            count = min(file.hi - file.entry, _ENTRIES_AT_ONCE, len(keys) - lo)
            data = self._read(file.path, self._entries_at + file.entry * _STEP, count * _STEP)
            slots, begin_ms = file.slots, file.begin_ms
            for found in _ENTRY.iter_unpack(data):
                value, position, unix_ms = keys[lo]
                slot = value % self._slot_count
                seconds = (unix_ms - begin_ms) // 1000
                if (
                    found == (value, position, seconds, slots[slot])
                    and unix_ms >= file.newest_ms >= begin_ms > 0  # So not the first entry.
                    and seconds <= _SECONDS_MAX
                ):  # As `_entry` for a right entry.
                    slots[slot] = file.entry
                    file.last_position = position
                    file.newest_ms, file.is_newest_expired = unix_ms, False
                    file.entry += 1
                    lo += 1
                    continue
                if found[1] != keys[lo][1] and self._is_unknown(found[1]):
                    yield from self._pass(file, found)
                    continue
                yield from self._entry(file, found, keys[lo])
                lo += 1

    def _entry(self, file: _File, entry: tuple[int, ...], key: Key) -> Iterator[Finding]:
        """Compare one entry with the right one, and go on as if it were that."""
        value, position, unix_ms = key
        if file.entry == 1:
            file.first_position = position
            if file.begin_ms != unix_ms:
                yield from self._report(file, 0, "begin time", unix_ms, file.begin_ms)
                file.begin_ms = unix_ms
        seconds = seconds_since(file.begin_ms, unix_ms)
        before = file.slots[value % self._slot_count]
        wanted = (value, position, seconds, before)
        if entry != wanted:
            is_torn = position >= self._required_position and not self._is_clean
            names = ("key hash", "position", "seconds", "previous entry")
            ats = (0, 4, 12, 16)
            for name, field_at, one, other in zip(names, ats, wanted, entry, strict=True):
                if one != other:
                    at = self._entries_at + file.entry * _STEP + field_at
                    field = f"{name} of entry {file.entry}"
                    yield from self._report(file, at, field, one, other, is_torn=is_torn)
        file.slots[value % self._slot_count] = file.entry
        file.last_position = position
        if unix_ms >= file.newest_ms:
            file.newest_ms, file.is_newest_expired = unix_ms, False
        file.entry += 1

    def _pass(self, file: _File, entry: tuple[int, ...]) -> Iterator[Finding]:
        """Check an entry whose record the log does not hold, as far as possible."""
        value, position, seconds, before = entry
        slot = value % self._slot_count
        at = self._entries_at + file.entry * _STEP
        if value < 0:
            yield from self._report(file, at, f"key hash of entry {file.entry}", "0 or more", value)
        elif before != file.slots[slot]:
            field = f"previous entry of entry {file.entry}"
            yield from self._report(file, at + 16, field, file.slots[slot], before)
        if position < file.last_position:
            field = f"position of entry {file.entry}"
            yield from self._report(file, at + 4, field, f"{file.last_position} or later", position)
        if file.entry == 1:
            file.first_position = position
        file.slots[slot] = file.entry
        file.last_position = position
        if file.begin_ms > 0 and file.begin_ms + seconds * 1000 >= file.newest_ms:
            file.newest_ms, file.is_newest_expired = file.begin_ms + seconds * 1000, True
        file.entry += 1

    def _missing(self, keys: list[Key]) -> Iterator[Finding]:
        """Name the keys that have no entry in any file."""
        for _, position, _ in keys:
            if position < self._required_position and self._missing_count < FINDINGS_MAX:
                self._missing_count += 1
                path = self._paths[-1] if self._paths else DIRECTORY
                at = self._entries_at + self._file.hi * _STEP if self._file else 0
                field = f"key of the record at position {position}"
                yield _finding(path, at, field, "an entry", "none")

    # --- Files ---

    def _current(self) -> Generator[Finding, None, _File | None]:
        """Return the file with the next entry; None when there is no entry any more."""
        while self._file is None or self._file.entry >= self._file.hi:
            if self._next_path >= len(self._paths):
                return None
            if self._file is not None:
                yield from self._close(self._file, is_last=False)
            path = self._paths[self._next_path]
            header = fmt.INDEX_HEADER.unpack(self._read(path, 0, _SLOTS_AT))
            self._file = _File(path, header, self._slot_count, self._entry_count)
            self._next_path += 1
        return self._file

    def _read(self, name: str, at: int, size_bytes: int) -> bytes:
        """Read bytes of a file; missing and unreadable ones are zeros."""
        there = os.stat(os.path.join(self._place.root, name)).st_size - at
        data = b""
        if there > 0:
            try:
                data = self._place.read(name, at, min(size_bytes, there))
            except FileSystemError as error:
                reason = os.strerror(error.errno_value)
                self._pending.append(_finding(name, at, "bytes", "readable", reason))
        return data.ljust(size_bytes, b"\0")

    def finish(self) -> Iterator[Finding]:
        """Check the rest of the last file, and files that no key of the log is in."""
        while True:
            file = yield from self._current()
            if file is None:
                break
            data = self._read(file.path, self._entries_at + file.entry * _STEP, _STEP)
            entry = _ENTRY.unpack(data)
            position = entry[1]
            is_later = position >= self._required_position and not self._is_clean
            if not self._is_unknown(position):
                at = self._entries_at + file.entry * _STEP + 4
                field = f"position of entry {file.entry}"
                expected = "that of a record with keys"
                yield from self._report(file, at, field, expected, position, is_torn=is_later)
            yield from self._pass(file, entry)
        if self._file is not None:
            yield from self._close(self._file, is_last=True)
        yield from self._pending

    def _close(self, file: _File, *, is_last: bool) -> Iterator[Finding]:
        """Check header, slots, and the zeros around the entries, which follow from the entries."""
        is_torn = is_last and not self._is_clean
        used_count = self._slot_count - file.slots.count(0)
        checks: list[tuple[int, str, object, object]] = [
            (36, "entry count", file.hi, file.count),
            (32, "used slots", used_count, file.used_slot_count),
        ]
        if not is_last:  # The next file is made when one is full, and not before.
            checks.append((36, "entries before the next file", self._entry_count, file.hi))
        if file.hi > 1:
            checks += [
                (16, "begin position", file.first_position, file.begin_position),
                (24, "end position", file.last_position, file.end_position),
            ]
            if not self._is_end_time(file):
                checks.append((8, "end time", file.newest_ms, file.end_ms))
        for at, field, expected, actual in checks:
            if expected != actual:
                yield from self._report(file, at, field, expected, actual, is_torn=is_torn)
        stored = array("i", self._read(file.path, _SLOTS_AT, self._entries_at - _SLOTS_AT))
        if sys.byteorder == "little":
            stored.byteswap()
        pairs = zip(file.slots, stored, strict=True) if stored != file.slots else ()
        for slot, (expected, found) in enumerate(pairs):
            if expected != found and file.reported_count < FINDINGS_MAX:
                at = _SLOTS_AT + slot * fmt.INDEX_SLOT_SIZE_BYTES
                yield from self._report(file, at, f"slot {slot}", expected, found, is_torn=is_torn)
        if self._read(file.path, self._entries_at, _STEP) != bytes(_STEP):
            yield from self._report(file, self._entries_at, "entry 0", "zeros", "not zeros")
        at = self._entries_at + file.hi * _STEP
        hi = self._size_bytes
        while at < hi:
            data = self._read(file.path, at, min(SCAN_SIZE_BYTES, hi - at))
            rest = data.lstrip(b"\0")
            if rest:
                at += len(data) - len(rest)
                field, actual = "entry behind the last", f"{rest[0]:02x}"
                yield from self._report(file, at, field, "zeros", actual, is_torn=is_torn)
                return
            at += len(data)

    def _is_end_time(self, file: _File) -> bool:
        """Whether the end time is the latest store time, or after a cut of the file the end of
        that second (999 ms)."""
        end_ms, newest_ms = file.end_ms, file.newest_ms
        if end_ms == newest_ms:
            return True
        is_near = newest_ms < end_ms <= newest_ms + 999
        is_whole_second = (end_ms - file.begin_ms) % 1000 == 999
        return is_near and (is_whole_second or file.is_newest_expired)

    def _report(
        self,
        file: _File,
        at: int,
        field: str,
        expected: object,
        actual: object,
        *,
        is_torn: bool = False,
    ) -> Iterator[Finding]:
        file.reported_count += 1
        if file.reported_count <= FINDINGS_MAX:
            severity = Severity.TORN_TAIL if is_torn else Severity.DERIVED
            yield _finding(file.path, at, field, expected, actual, severity)


def _finding(
    path: str,
    at: int,
    field: str,
    expected: object,
    actual: object,
    severity: Severity = Severity.DERIVED,
) -> Finding:
    return Finding(path, at, field, str(expected), str(actual), severity, Part.KEY_INDEX)
