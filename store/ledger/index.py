"""The ledger's index files: where entry number n lies, 32 bytes an entry, as DLedger keeps them.

Owns the units and their files; must not know the data files. Derived: rebuilt from the data, and no
unit counts before the entry's own header confirmed it. The index is therefore synced rarely.
Source: storage-formats 7.2.
"""

import threading
from typing import Final, NamedTuple

from store import format as fmt
from store.errors import ClosedError, LayoutError, PositionRangeError
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import InlineFiles, MappedFileQueue

_UNIT: Final = fmt.INDEX_UNIT_SIZE_BYTES
_SPARE_PART: Final = 4  # The next file is made ahead when this part of the last one is left.


class Unit(NamedTuple):
    """Place and term of one entry, as the index has them."""

    position: int
    size_bytes: int
    term: int


class LedgerIndex:
    """Units by entry index. One writer; reads from any thread."""

    def __init__(self, fs: FileSystem, directory: str, units_per_file: int) -> None:
        self._fs = fs
        self._inline = InlineFiles(fs, directory, units_per_file * _UNIT)
        self.files: Final = MappedFileQueue(fs, directory, units_per_file * _UNIT, self)
        self._ready: MappedFile | None = None  # The file that was found mapped.
        self.spares: dict[int, MappedFile] = {}  # Files taken ahead, by position; still empty.
        self._spare_lock = threading.RLock()  # Held while files are taken ahead, or come and go.
        self._taken_position = -1  # The file that was taken last.

    def load(self) -> None:
        """Open the files; files that cannot be index files are all removed, to be rebuilt."""
        try:
            self.files.load()
        except LayoutError:
            self.wipe()
            self.files.load()

    def covers(self, lo: int, hi: int) -> bool:
        """Whether there are files for the units [lo, hi)."""
        if lo >= hi:
            return True
        files = self.files.files
        return (
            bool(files) and files[0].position <= lo * _UNIT < hi * _UNIT <= files[-1].end_position
        )

    # --- Writing ---

    def take(self, position: int) -> MappedFile:
        """Return the next file, as the source of the queue: a spare one if there is one."""
        with self._spare_lock:
            spare = self.spares.pop(position, None)
            file = spare if spare is not None else self._inline.take(position)
            self._taken_position = position
            return file

    def grow(self, file: MappedFile, hi_position: int) -> None:
        """Have blocks in the first file, as the source of the queue."""
        self._inline.grow(file, hi_position)

    def make_spare(self) -> None:
        """Make the next file ahead, on a thread that may wait, once the last one is nearly full.

        Raises StoreFullError or FileSystemError: the writer will try again.
        """
        with self._spare_lock:
            files = self.files.files
            if not files or files[-1].free_bytes * _SPARE_PART > files[-1].size_bytes:
                return
            if self._taken_position <= files[-1].position:  # Else the writer is making it.
                self._make_spare(files[-1].end_position)

    def _make_spare(self, position: int) -> None:
        with self._spare_lock:
            if position not in self.spares:
                spare = self.spares[position] = self._inline.take(position)
                spare.append(b"")  # Maps it.

    def prepare(self, index: int, count: int = 1) -> None:
        """Make sure that `put` of units [index, index + count) cannot fail.

        Raises StoreFullError or FileSystemError; nothing has changed for readers then.
        """
        if self.has_room_at_hand(count):
            return
        files = self.files.files
        if not files:
            self.files.roll(index * _UNIT).set_positions(index * _UNIT)
        elif not files[-1].free_bytes:
            self.files.roll()
        self.files.seal_complete()  # `put` may have rolled, too.
        last = self.files.files[-1]
        last.append(b"")  # Maps the file.
        self.files.make_room(count * _UNIT)
        self._ready = last
        position = last.end_position
        while position < (index + count) * _UNIT:
            self._make_spare(position)
            position += self.files.file_size_bytes

    def has_room_at_hand(self, count: int) -> bool:
        """Whether the last file has room for `count` units, as it is."""
        ready, files = self._ready, self.files.files
        return (
            ready is not None
            and bool(files)
            and files[-1] is ready
            and ready.allocated_position - ready.wrote_position >= count * _UNIT
        )

    def put(self, index: int, units: bytes) -> None:
        """Append the units of the entries from `index` on, which `prepare` made room for."""
        ready = self._ready
        if ready is not None and ready.end_position - ready.wrote_position >= len(units):
            landed = ready.append(units)  # Nearly always.
            assert landed == index * _UNIT, f"unit of {index} landed at {landed}"
            return
        at = 0
        while at < len(units):
            file = self.files.files[-1]
            if not file.free_bytes:
                file = self.files.roll()
            size_bytes = min(file.free_bytes, len(units) - at)
            whole = at == 0 and size_bytes == len(units)
            landed = file.append(units if whole else units[at : at + size_bytes])
            assert landed == index * _UNIT + at, f"unit of {index} landed at {landed}"
            at += size_bytes

    def truncate(self, index: int) -> None:
        """Remove the units from `index` on: zeroed and synced. Errors as MappedFileQueue."""
        with self._spare_lock:
            self._drop_spares()
            position = index * _UNIT
            if self.files.files and position < self.files.min_position:
                self.reset(index)
            elif self.files.files:
                self.files.truncate(position)

    def reset(self, index: int) -> None:
        """Remove all units; the next one is that of `index`."""
        with self._spare_lock:
            self._drop_spares()
            position = index * _UNIT
            self.files.reset(position // self.files.file_size_bytes * self.files.file_size_bytes)
            self.files.files[-1].set_positions(position)

    def delete_below(self, index: int) -> None:
        """Delete the files that hold only units below `index`."""
        while len(self.files.files) > 1 and self.files.files[0].end_position <= index * _UNIT:
            self.files.delete_first()

    def detach_below(self, index: int) -> None:
        """As MappedFileQueue.detach_first, for the files that hold only units below `index`."""
        hi = len(self.files.files) - 1
        count = 0
        while count < hi and self.files.files[count].end_position <= index * _UNIT:
            count += 1
        if count:
            self.files.detach_first(count)

    def wipe(self) -> None:
        """Remove every file, opened or not."""
        self._drop_spares()
        self.files.close()
        self._fs.remove_files(self.files.directory)

    def _drop_spares(self) -> None:
        self._taken_position = -1
        while self.spares:
            position = max(self.spares)
            self.spares[position].delete()
            del self.spares[position]

    # --- Reading ---

    def get(self, index: int) -> Unit | None:
        """Return the place and term of an entry; None when its unit is missing or another's."""
        try:
            data = self.files.read(index * _UNIT, _UNIT)
        except (PositionRangeError, ClosedError):
            return None
        magic, position, size_bytes, own_index, term = fmt.INDEX_UNIT.unpack(data)
        if magic != fmt.ENTRY_MAGIC or own_index != index:
            return None
        return Unit(position, size_bytes, term)

    def first_difference(self, index: int, units: bytes) -> int | None:
        """Compare stored units from `index` on with what they should be.

        Returns the index of the first one that differs or is missing; None when all agree.
        """
        at = 0
        while at < len(units):
            position = index * _UNIT + at
            try:
                file = self.files.file_at(position)
            except PositionRangeError:
                return index + at // _UNIT
            size_bytes = min(len(units) - at, file.committed_position - position)
            data = file.read(position, size_bytes) if size_bytes > 0 else b""
            expected = units[at : at + max(size_bytes, _UNIT)]
            if data != expected:
                steps = range(0, len(expected), _UNIT)
                lo = next(n for n in steps if data[n : n + _UNIT] != expected[n : n + _UNIT])
                return index + (at + lo) // _UNIT
            at += size_bytes
        return None

    def close(self) -> None:
        """Release the files. Syncs nothing."""
        for spare in self.spares.values():
            spare.close()
        self.spares.clear()
        self.files.close()
