"""Puts entries back that a ledger lost below the mark, from bytes that other replicas serve.

Owns the repair of a closed store: the search for damage (`find_damage`), the writing in place, and
the cut of damaged entries that were never committed. Must not know peers or how bytes come here.
A node calls it when an opening raised CorruptionError or LayoutError, and refuses to vote until the
ledger is whole. `store.ledger.mending.mend` does the same to a store that is open.

1. `find_damage` on the closed directory: a list of `DamagedRange`, oldest first.
2. For each of them a `RepairSession`: `add` what `Ledger.read_range` of a peer returns for
   `next_index`, until `is_complete`, then `finish`.
3. Find the damage again if a session refuses its range: the one before has become wider.
4. Open the store again.

A log may have a branch: entries of a leader that lost its term before they were committed. Entries
of peers never follow such a branch. `contradicts` proves it, and `cut` takes the place of `finish`.

No byte is written into the ledger before every fetched entry is proven to lie between the last good
entry and the first good one behind. A crash at any point leaves damage that `find_damage` finds
again, never more of it. Sources: design 4.5; fault-matrix S05.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

from store import format as fmt
from store.config import MIB, StoreConfig
from store.durability.identity import DirectoryLock, RunMarker
from store.engine import Closing
from store.errors import (
    CorruptionError,
    DamageWiderError,
    FileSystemError,
    ForeignEntryError,
    LayoutError,
    SnapshotNeededError,
)
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.mapped_file import create_file
from store.files.staging import TEMPORARY_SUFFIX, sweep
from store.ledger.entry import ChainLink, unpack_header
from store.ledger.index import LedgerIndex
from store.ledger.mending.damage import DamagedRange, DamageWalk, DataImage, Goal
from store.ledger.mending.fetched import (
    KEPT_DIRECTORY,
    RepairReport,
    blank,
    check_fetched,
    covers,
    keep_aside,
    leads_to,
)
from store.ledger.raw import check_entries
from store.ledger.reader import data_directory, ledger_directory
from store.ledger.start import StartFile
from store.ledger.walk import EntryBoundary
from store.opening import known_good_position, open_marks

_FETCHED_NAME: Final = "fetched" + TEMPORARY_SUFFIX
_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_WRITE_SIZE_BYTES: Final = 4 * MIB


class _Fetched(NamedTuple):
    """Whole entries back to back in one data file, and where they are in the file of all that was
    fetched."""

    position: int
    at: int
    size_bytes: int


class _Closed:
    """A store directory that no process has open, and what is known of its ledger."""

    def __init__(self, fs: FileSystem, root: str, config: StoreConfig, undo: ExitStack) -> None:
        assert config.container == "ledger", f"container {config.container}"
        self.directory = ledger_directory(root, config)
        lock = DirectoryLock(fs, root)
        lock.acquire()
        undo.callback(lock.release)
        mark = open_marks(fs, root, config)
        undo.callback(mark.close)
        position = known_good_position(mark.mark, RunMarker(fs, root).last_run())
        goal = Goal(position, mark.mark.durable_index)
        try:
            start, is_resetting = StartFile(fs, self.directory).load()
        except (CorruptionError, LayoutError) as error:
            raise SnapshotNeededError(error.path, str(error)) from error
        self.mark = mark
        self.begin = EntryBoundary(start.min_position, start.link)
        if is_resetting:  # The opening drops what is there.
            goal = Goal(start.min_position, start.link.entry_index)
        self.last_index = goal.entry_index
        self.image = DataImage(fs, data_directory(root, config), config.file_size_bytes)
        undo.callback(self.image.close)
        self.walk = DamageWalk(self.image.read, config.file_size_bytes, goal)


def find_damage(
    root: str, config: StoreConfig, *, fs: FileSystem | None = None
) -> list[DamagedRange]:
    """Return every damaged range below the known good position of a closed store, oldest first.

    Reads the whole ledger, about 1 GB/s; changes nothing. Empty when the directory has no ledger.
    The link that the first entry must follow is kept beside the log, so the first entries can be
    fetched like others; peers may not have them any more. Raises LockedError (the store is open),
    SnapshotNeededError (its start is damaged), LayoutError (it is not of this configuration, or the
    durable mark is missing), CorruptionError (no durable mark can be read), FileSystemError.
    """
    fs = fs or FileSystem()
    if not os.path.isdir(ledger_directory(root, config)):
        return []
    with ExitStack() as undo:
        closed = _Closed(fs, root, config, undo)
        return list(closed.walk.ranges(closed.begin))


class RepairSession(Closing):
    """Repairs one range of a closed store, whose lock it holds until `close`.

    Entries come in pieces of any size and are kept in a file until all are there, so memory stays
    bounded. Use it as a context manager. A session that is closed early changes nothing.
    """

    def __init__(
        self,
        root: str,
        config: StoreConfig,
        damaged: DamagedRange,
        *,
        fs: FileSystem | None = None,
    ) -> None:
        """Lock the store. Raises as `find_damage`, and StoreFullError; CorruptionError when the
        good entries before and behind the range are not there (any more): find the damage again.
        """
        self._fs, self._root, self._config = fs or FileSystem(), root, config
        self.damaged = damaged
        """The range to be fetched; wider after DamageWiderError."""
        self._point = EntryBoundary(damaged.position, damaged.before)
        self._fetched: list[_Fetched] = []
        self._size_bytes = 0
        with ExitStack() as undo:
            self._closed = _Closed(self._fs, root, config, undo)
            self._check_sides()
            self._path = os.path.join(root, KEPT_DIRECTORY, _FETCHED_NAME)
            self._fs.make_directory(os.path.dirname(self._path))
            if os.path.exists(self._path):  # Left by a session that was killed.
                self._fs.unlink(self._path)
            self._fd = self._fs.open(self._path, create=True)
            undo.callback(self._fs.unlink, self._path)
            undo.callback(self._fs.close, self._fd)
            self._undo = undo.pop_all()

    def _check_sides(self) -> None:
        """Refuse a range whose sides are not as they were when it was found."""
        damaged, image = self.damaged, self._closed.image
        sides: list[tuple[int, ChainLink]] = []
        if damaged.before_position >= 0:
            sides.append((damaged.before_position, damaged.before))
        if damaged.after is not None:
            after = damaged.after
            link = ChainLink(after.entry_index, after.term, after.chain_crc)
            sides.append((damaged.end_position, link))
        for position, link in sides:
            header = unpack_header(image.read(position, _HEADER))
            side = ChainLink(header.entry_index, header.term, header.chain_crc)
            if side != link:
                at = position % image.file_size_bytes
                raise CorruptionError(image.path(position), at, "header", f"{link}", f"{side}")

    @property
    def next_index(self) -> int:
        """Index of the entry to fetch next: a peer gets it as `lo_index`."""
        return self._point.link.entry_index + 1

    @property
    def is_complete(self) -> bool:
        """Whether all entries are there, so that `finish` may be called."""
        return covers(self.damaged, self._point)

    def add(self, raw_entries: bytes) -> int:
        """Check whole entries from `next_index` on, and keep them; return the next index.

        `raw_entries` lie back to back as `Ledger.read_range` returns them, without blanks; they may
        reach over file ends. Checked are magic, index, position, sizes, term order, chain and body
        CRC. Raises ForeignEntryError (nothing of this piece was kept: fetch it elsewhere),
        StoreFullError or FileSystemError (try again).
        """
        file_size_bytes = self._config.file_size_bytes
        if not raw_entries:
            return self.next_index
        checked = check_fetched(raw_entries, self._point, self.damaged, file_size_bytes)
        self._fs.write_at(self._fd, self._path, self._size_bytes, raw_entries)
        for piece in checked.pieces:
            position, size_bytes = piece.position, piece.hi - piece.at
            last = self._fetched[-1] if self._fetched else None
            if last is not None and last.position + last.size_bytes == position:
                self._fetched[-1] = last._replace(size_bytes=last.size_bytes + size_bytes)
            else:
                self._fetched.append(_Fetched(position, self._size_bytes + piece.at, size_bytes))
            self._point = EntryBoundary(position + size_bytes, piece.link)
        self._size_bytes += len(raw_entries)
        return self.next_index

    def finish(self) -> RepairReport:
        """Prove that the entries lead to the one behind, write them in place and sync.

        Raises ForeignEntryError (entries are missing), DamageWiderError (`damaged` has become
        wider: go on adding), StoreFullError, FileSystemError (repeat it), SyncFailedError (stop) or
        CorruptionError (what was written cannot be read back).
        """
        damaged, point = self.damaged, self._point
        file_size_bytes = self._config.file_size_bytes
        if not self.is_complete:
            expected = f"those before {damaged.hi_index}, up to {damaged.end_position}"
            actual = f"none behind position {point.position}"
            raise ForeignEntryError(self.next_index, 0, "entries", expected, actual)
        if damaged.after is not None:
            header = self._closed.image.read(damaged.end_position, _HEADER)
            if not leads_to(point, damaged, header, file_size_bytes):
                self.damaged = self._closed.walk.wider(damaged, self.next_index)
                raise DamageWiderError(
                    self.next_index, self.damaged.hi_index, self.damaged.end_position
                )
        read = self._closed.image.read
        kept_path = keep_aside(self._fs, self._root, read, damaged, file_size_bytes)
        hit("ledger_repair.before_write")
        self._closed.image.close()  # Opened again to read the written bytes.
        self._write()
        self._verify()
        return RepairReport(
            damaged,
            point.link.entry_index - damaged.before.entry_index,
            point.link.entry_index,
            self._size_bytes,
            kept_path,
        )

    # --- A branch that was never committed ---

    @property
    def first_index(self) -> int:
        """Index of the first entry of this log."""
        return self._closed.begin.link.entry_index + 1

    @property
    def held(self) -> tuple[int, int]:
        """Newest term of the entries beside the damage, and last index that this log has held, as
        far as the mark or the entry behind the damage shows it."""
        damaged = self.damaged
        term = damaged.before.term if damaged.after is None else damaged.after.term
        return term, max(self._closed.last_index, damaged.hi_index - 1)

    @property
    def was_seen(self) -> bool:
        """Whether readers have seen damaged entries, which are committed then and never cut."""
        return self.damaged.position < self._closed.mark.mark.dispatched_position

    def contradicts(self, raw_entries: bytes) -> bool:
        """Whether the last of these entries has another term than the entry of its index here.

        `raw_entries` are committed at a peer and lie back to back: one entry before the damage, and
        the entry in front of it, whose chain proves the header of the other (not needed for
        `first_index`). If so, the log of this replica is a branch from that entry on, at the
        latest, and no entry behind can be committed. Raises ForeignEntryError (the bytes prove
        nothing: fetch them elsewhere) and FileSystemError.
        """
        point, at = self._closed.begin, 0
        if len(raw_entries) < _HEADER:
            raise ForeignEntryError(point.link.entry_index + 1, 0, "entries", "two", "none")
        front = unpack_header(raw_entries)
        if front.entry_index != self.first_index:
            link = ChainLink(front.entry_index, front.term, front.chain_crc)
            point, at = EntryBoundary(front.position + front.size_bytes, link), front.size_bytes
        raw = raw_entries[max(at, 0) :]
        checked = check_entries(raw, point.position, point.link, self._config.file_size_bytes)
        other = checked.pieces[-1].link
        if not self.first_index <= other.entry_index <= self.damaged.before.entry_index:
            expected = f"within [{self.first_index}, {self.damaged.lo_index})"
            raise ForeignEntryError(
                other.entry_index, at, "index", expected, str(other.entry_index)
            )
        return self._term_at(other.entry_index) != other.term

    def _term_at(self, index: int) -> int:
        """Return the term of a good entry before the damage; reads the log up to there."""
        point, walk = self._closed.begin, self._closed.walk
        term = point.link.term
        while point.link.entry_index < index:
            run = walk.next_run(point)
            for first_index, own in run.term_changes:
                term = own if first_index <= index else term
            point = walk.behind(point, run)  # All is proven to be good up to the damage.
        return term

    def cut(self) -> RepairReport:
        """Cut the damaged entries and all behind them; durable on return.

        Call it only if `contradicts` has proven that they were never committed, and they were not
        seen; note `held` before, since this replica may have acked up to there. Good entries in
        front of the damage stay, and Raft cuts what is of the branch. Raises StoreFullError,
        FileSystemError (repeat it) or SyncFailedError (stop).
        """
        assert not self.was_seen, f"cut {self.damaged}, which readers have seen"
        damaged, fs, image = self.damaged, self._fs, self._closed.image
        file_size_bytes, before = self._config.file_size_bytes, damaged.before
        end_position = self._closed.begin.position  # Of the good entries: no blank counts.
        if damaged.before_position >= 0:
            header = unpack_header(image.read(damaged.before_position, _HEADER))
            end_position = header.position + header.size_bytes
        kept_path = keep_aside(fs, self._root, image.read, damaged, file_size_bytes)
        image.close()
        # The mark comes last: until then the damage is found again, and the next attempt cuts it.
        hit("ledger_repair.before_cut")
        lo = -(-damaged.position // file_size_bytes) * file_size_bytes
        names = [n for n in fs.list_directory(image.directory) if n.isdecimal() and int(n) >= lo]
        for name in sorted(names, key=int, reverse=True):
            fs.unlink(os.path.join(image.directory, name))
        fs.sync_directory(image.directory)
        if damaged.position < lo:
            self._make_whole(image.path(damaged.position), lo - file_size_bytes)
        hit("ledger_repair.cut")
        self._closed.mark.lower(end_position, before.entry_index)
        return RepairReport(damaged, 0, before.entry_index, 0, kept_path, is_cut=True)

    # --- Writing ---

    def _write(self) -> None:
        """Write entries and blanks, file by file; durable on return.

        The order does not matter: until all is there, the rest is as damaged as it was.
        """
        file_size_bytes, end = self._config.file_size_bytes, self.damaged.position
        for piece in self._fetched:
            if piece.position != end:
                self._write_file(end, [blank(end, file_size_bytes)])
            self._write_file(piece.position, self._parts_of(piece))
            end = piece.position + piece.size_bytes
        if self.damaged.after is not None and end != self.damaged.end_position:
            self._write_file(end, [blank(end, file_size_bytes)])

    def _parts_of(self, piece: _Fetched) -> Iterator[bytes]:
        for done in range(0, piece.size_bytes, _WRITE_SIZE_BYTES):
            size_bytes = min(_WRITE_SIZE_BYTES, piece.size_bytes - done)
            yield self._fs.read_at(self._fd, self._path, piece.at + done, size_bytes)

    def _write_file(self, position: int, parts: Iterable[bytes]) -> None:
        """Write parts one behind the other into one file, and sync it."""
        fs, path = self._fs, self._closed.image.path(position)
        at = position % self._config.file_size_bytes
        self._make_whole(path, position - at)
        fd = fs.open(path)
        try:
            for part in parts:
                hit("ledger_repair.write")
                fs.write_at(fd, path, at, part)
                at += len(part)
            hit("ledger_repair.sync")
            fs.sync(fd, path)
        finally:
            fs.close(fd)

    def _make_whole(self, path: str, position: int) -> None:
        """Make a data file that is missing, or too short, as large as it was: with zeros."""
        fs, size_bytes = self._fs, self._config.file_size_bytes
        if not os.path.exists(path):
            fs.make_directory(os.path.dirname(path))
            sweep(fs, os.path.dirname(path))  # Left by a repair that was killed.
            create_file(fs, os.path.dirname(path), position, size_bytes, warm_up=False).close()
        elif os.path.getsize(path) < size_bytes:
            fd = fs.open(path)
            try:
                fs.allocate(fd, path, size_bytes)
            finally:
                fs.close(fd)

    def _verify(self) -> None:
        """Read the range back, and drop the index if that differs."""
        damaged, walk = self.damaged, self._closed.walk
        index = LedgerIndex(
            self._fs,
            os.path.join(self._closed.directory, "index"),
            self._config.ledger_index_units_per_file,
        )
        index.load()
        differs = False
        try:
            point = EntryBoundary(damaged.position, damaged.before)
            while point.position < self._point.position:
                run = walk.next_run(point)
                if run.problem is not None:
                    path, at = self._closed.image.path(point.position), point.position
                    at = at % self._config.file_size_bytes + run.problem.at
                    problem = run.problem
                    raise CorruptionError(path, at, problem.field, problem.expected, problem.actual)
                lo = point.link.entry_index + 1
                try:
                    differs = differs or index.first_difference(lo, run.units) is not None
                except FileSystemError:
                    differs = True
                point = walk.behind(point, run)
            if differs:
                hit("ledger_repair.index")
                index.wipe()  # The opening rebuilds it.
        finally:
            index.close()

    def close(self) -> None:
        """Release the directory, and drop the fetched bytes. May be called twice."""
        self._undo.close()
