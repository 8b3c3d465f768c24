"""The Raft journal of one name server replica: entries, term and vote, durable and checked.

Owns the files `journal` and `term`. The journal has the methods that PySyncObj calls on its own
journal and replaces that one, which is never synced, loads flipped bits and is left in pieces by a
crash during its compaction (fault-matrix 7). Must not know the content of commands.

Changes are made in memory; `sync` makes all of them durable and is called before any message that
depends on them leaves this process. An append writes behind the last record; any other change
writes a whole new file and renames it, so a crash leaves the old journal or the new one. The
journal is small (it is compacted), and both are rare.

A record is u32 size of the command, u32 CRC-32C of the rest, u64 index, u64 term, command; little
endian, behind a magic line. An incomplete last record was never synced and is cut; any other
mismatch is damage.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from pydantic import TypeAdapter

from node.errors.nameserver import FilesDamagedError, TwoHistoriesError
from node.nameserver.directory.fields import CommandRefused, Name, Number, Text, checked
from store.errors import CorruptionError, StoreError
from store.files.checksum import crc32c
from store.files.file_system import FileSystem
from store.files.meta_file import MetaFile

Entry = tuple[bytes, int, int]
"""Command, index, term: the order of PySyncObj."""

_MAGIC: Final = b"quorumlog-ns-1\n"
_HEAD: Final = struct.Struct("<IIQQ")
NAME: Final = "journal"
TERM_NAME: Final = "term"
_GENERATION_MIN: Final = 3
"""Generation from which the loss of either file of `term` is noticed; a first one has one file."""
COMMIT_SAVE_SECONDS: Final = 10
"""Interval of writing the commit index: a hint that makes a restart without a quorum useful."""


class Own(NamedTuple):
    """The identity of a replica beside its log (`lives`)."""

    life: int = 0
    """The count of starts of this directory."""
    incarnation: int = 0
    """A number that grows with each detected loss of memory."""
    is_joining: bool = False
    """Whether the replica has no memory, so that its votes and acks do not count."""


@dataclass(frozen=True, slots=True)
class _TermRecord:
    """The content of the file `term`."""

    address: Name
    members: list[Name]
    term: Number
    vote: Text
    commit_index: Number
    life: Number
    incarnation: Number
    is_joining: bool


_RECORD: Final = TypeAdapter(_TermRecord)


class Journal:
    """The journal. One thread; the method names in camel case are those of PySyncObj."""

    def __init__(self, fs: FileSystem, directory: str, address: str, members: list[str]) -> None:
        """Read the files. Raises FilesDamagedError or a store error; the replica must not start
        then."""
        self._fs, self._directory = fs, directory
        self._path = os.path.join(directory, NAME)
        self._address = address
        self.members = sorted(members)
        """The addresses of all replicas, in order."""
        self.own = Own()
        """The identity of this replica."""
        self._meta = MetaFile(fs, directory, TERM_NAME)
        self._term, self._vote, self._commit_index = 0, "", 1
        self._entries: list[Entry] = []
        self._synced_count = 0
        self.size_bytes = 0
        """The size of the journal's file."""
        self._is_meta_dirty = self._must_rewrite = False
        self._keeps_tail = False
        self._seconds = 0
        self._fd = -1
        is_new = not os.path.exists(self._path)
        self._load_meta(must_exist=not is_new)
        if is_new:
            self._must_rewrite = self._is_meta_dirty = True
        else:
            self._load_entries()

    def set_own(self, own: Own) -> None:
        """Set the identity of this replica; `sync` makes it durable."""
        self.own = own
        self._is_meta_dirty = True

    @property
    def first_index(self) -> int:
        """The index of the oldest entry in the journal; 0 when there is none."""
        return self._entries[0][1] if self._entries else 0

    @property
    def last_index(self) -> int:
        """The index of the newest entry; 0 when there is none."""
        return self._entries[-1][1] if self._entries else 0

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry; None when it is not in the journal."""
        if not self._entries:
            return None
        at = index - self._entries[0][1]
        return self._entries[at][2] if 0 <= at < len(self._entries) else None

    def covers(self, index: int, term: int) -> bool:
        """Whether this replica has all entries of a leader's dump, in its journal or in its own
        dump. Raises TwoHistoriesError if the dump contradicts a committed entry."""
        own_term = self.term_at(index)
        if own_term not in (None, term) and index <= self._commit_index:
            raise TwoHistoriesError(self._path, index, self._commit_index)
        return own_term == term or index < self.first_index

    def trim_to(self, index: int, term: int) -> None:
        """Drop the entries that a dump up to `index` covers, to complete an interrupted compaction.

        Otherwise PySyncObj would drop the whole journal, with all entries after the dump.
        """
        if self.term_at(index) == term and self.term_at(index - 1) is not None:
            self.deleteEntriesTo(index - 1 - self._entries[0][1])

    @contextmanager
    def keeping_tail(self) -> Iterator[None]:
        """Make `deleteEntriesFrom` remove no entry: the leader has not contradicted the tail."""
        self._keeps_tail = True
        try:
            yield
        finally:
            self._keeps_tail = False

    def sync(self) -> None:
        """Make every change durable. Raises a store error; the replica must stop and answer no
        message then."""
        if self._is_meta_dirty:
            self._save_meta()
        if self._must_rewrite:
            self._rewrite()
        elif len(self._entries) > self._synced_count:
            data = b"".join(_record(entry) for entry in self._entries[self._synced_count :])
            self._fs.write_at(self._fd, self._path, self.size_bytes, data)
            self._fs.sync(self._fd, self._path)
            self.size_bytes += len(data)
            self._synced_count = len(self._entries)

    def close(self) -> None:
        """Make all changes and the commit index durable, and close. A second call does nothing."""
        if self._fd >= 0:
            self._is_meta_dirty = True
            self.sync()
            self.abandon()

    def abandon(self) -> None:
        """Close without writing: after a fault the state in memory cannot be trusted."""
        if self._fd >= 0:
            self._fs.close(self._fd)
            self._fd = -1

    # --- Methods that PySyncObj calls ---

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        return self._entries[at]

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append an entry."""
        last = self.last_index
        if last and index != last + 1:
            raise FilesDamagedError(self._path, f"entry {index} would follow entry {last}")
        self._entries.append((command, index, term))

    def clear(self) -> None:
        """Remove all entries: a dump takes their place."""
        self._entries = []
        self._must_rewrite = True

    def deleteEntriesFrom(self, at: int) -> None:  # noqa: N802
        """Remove the tail from position `at`, which the leader contradicts. Raises
        TwoHistoriesError if it is committed."""
        if self._keeps_tail or at >= len(self._entries):
            return
        index = self._entries[at][1]
        if index <= self._commit_index:
            raise TwoHistoriesError(self._path, index, self._commit_index)
        del self._entries[at:]
        self._must_rewrite = True

    def deleteEntriesTo(self, at: int) -> None:  # noqa: N802
        """Remove the entries before position `at`, which a dump covers."""
        if at > 0:
            del self._entries[:at]
            self._must_rewrite = True

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Set the commit index; it is written at intervals."""
        self._commit_index = index

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Return the commit index, but not beyond the journal's end (an unsynced tail was lost)."""
        return max(1, min(self._commit_index, self.last_index))

    def setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802
        """Set term and vote; `sync` makes them durable before a message leaves."""
        self._term, self._vote = term, vote or ""
        self._is_meta_dirty = True

    def getCurrentTerm(self) -> int:  # noqa: N802
        """Return the term."""
        return self._term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        """Return the vote in this term; None if there was none."""
        return self._vote or None

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Let the next `sync` write the commit index every COMMIT_SAVE_SECONDS."""
        self._seconds += 1
        if self._seconds % COMMIT_SAVE_SECONDS == 0:
            self._is_meta_dirty = True

    def _destroy(self) -> None:
        self.close()

    # --- Files ---

    def _load_meta(self, *, must_exist: bool) -> None:
        try:
            payload = self._meta.load(must_exist=must_exist)
            if payload is None:
                return
            record = checked(_RECORD, payload)
        except (StoreError, CommandRefused) as error:
            raise FilesDamagedError(self._directory, str(error)) from error
        if (record.address, record.members) != (self._address, self.members):
            raise FilesDamagedError(
                self._directory,
                f"it belongs to replica {record.address} of {record.members}, "
                f"this is {self._address} of {self.members}",
            )
        self._term, self._vote = record.term, record.vote
        self._commit_index = record.commit_index
        self.own = Own(record.life, record.incarnation, record.is_joining)

    def _save_meta(self) -> None:
        commit_index = min(self._commit_index, max(1, self.last_index))
        record = _TermRecord(
            self._address, self.members, self._term, self._vote, commit_index, *self.own
        )
        payload = asdict(record)
        self._meta.save(payload)
        while self._meta.generation < _GENERATION_MIN:
            self._meta.save(payload)
        self._is_meta_dirty = False

    def _load_entries(self) -> None:
        self._fd = self._fs.open(self._path)
        content = self._fs.read_at(self._fd, self._path, 0, self._fs.size_bytes(self._fd))
        read = read_journal(self._path, content)
        if read.problem is not None and not read.is_torn:
            self.abandon()
            raise files_damaged(read.problem) from read.problem
        self._entries, self.size_bytes, self._must_rewrite = read.entries, read.end, read.is_torn
        self._synced_count = len(self._entries)

    def _rewrite(self) -> None:
        temporary = self._path + ".new"
        data = _MAGIC + b"".join(_record(entry) for entry in self._entries)
        self._fs.write_file(temporary, data)
        # The dump that covers the removed entries must have its name first.
        self._fs.sync_directory(self._directory)
        self._fs.rename(temporary, self._path)
        self._fs.sync_directory(self._directory)
        self.abandon()
        self._fd = self._fs.open(self._path)
        self._must_rewrite = False
        self._synced_count, self.size_bytes = len(self._entries), len(data)


class JournalContent(NamedTuple):
    """The entries of a journal up to byte `end`, and what is wrong there. `is_torn`: only the last
    record may be torn, and a record with another one behind it was synced."""

    entries: list[Entry]
    end: int
    problem: CorruptionError | None = None
    is_torn: bool = False


def read_journal(path: str, content: bytes) -> JournalContent:
    """Check the bytes of a journal from the first one to the first problem."""
    if not content.startswith(_MAGIC):
        problem = CorruptionError(path, 0, "magic", repr(_MAGIC), repr(content[:15]))
        return JournalContent([], 0, problem)
    entries, at = list[Entry](), len(_MAGIC)
    while at < len(content):
        entry = _entry_at(content, at)
        if entry is None:
            problem = CorruptionError(path, at, "record", "a whole one", content[at : at + 8].hex())
            is_torn = all(_entry_at(content, n) is None for n in range(at + 1, len(content)))
            return JournalContent(entries, at, problem, is_torn)
        if entries and entry[1] != entries[-1][1] + 1:
            expected = str(entries[-1][1] + 1)
            problem = CorruptionError(path, at + 8, "index", expected, str(entry[1]))
            return JournalContent(entries, at, problem)
        entries.append(entry)
        at += _HEAD.size + len(entry[0])
    return JournalContent(entries, at)


def files_damaged(error: CorruptionError) -> FilesDamagedError:
    """Return the error of a replica that does not start because of damage in a file."""
    damage = f"byte {error.at}: {error.field} is {error.actual}, expected {error.expected}"
    return FilesDamagedError(error.path, damage)


def _record(entry: Entry) -> bytes:
    command, index, term = entry
    crc = crc32c(struct.pack("<QQ", index, term) + command)
    return _HEAD.pack(len(command), crc, index, term) + command


def _entry_at(content: bytes, position: int) -> Entry | None:
    """Return the entry of the complete record at a position; None when there is none."""
    if len(content) - position < _HEAD.size:
        return None
    size_bytes, crc, index, term = _HEAD.unpack_from(content, position)
    start = position + _HEAD.size
    if size_bytes == 0 or size_bytes > len(content) - start:
        return None
    command = content[start : start + size_bytes]
    if crc32c(content[position + 8 : start + size_bytes]) != crc:
        return None
    return command, index, term
