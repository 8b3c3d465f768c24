"""The durable mark: how far the log is known to be durable, kept beside the log (S06).

Owns the file `marks`: two slots with a checksum. Must not know how the log is synced. The mark is
written after each sync of the log and never before, so it is never ahead of the truth. The mark is
synced on an interval only, because a second sync in each round would almost double the latency of
an append. So after a SIGKILL the mark is exact (the page cache is still there); after a power loss
it is at most the interval behind, or exact with interval 0.

Writes go to one slot until it is synced, then to the other. So the slot that was synced last is
never being written, and whatever a power loss makes of the other, there is a good mark to read.
Deviation: RocketMQ has no such mark; its checkpoint holds times and not positions.
"""

import os
import struct
import threading
from typing import Final, NamedTuple, Self

from store.derived.dispatch import Built
from store.errors import CorruptionError, LayoutError
from store.files import failpoints
from store.files.checksum import crc32c
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import TEMPORARY_SUFFIX

FILE_NAME: Final = "marks"
_MAGIC: Final = 0x514C4D31  # "QLM1"
UNKNOWN_COUNT: Final = -1
_BODY: Final = struct.Struct(">IIqqqqqqq")  # Magic, zero, sequence, the six fields of a mark.
_CRC: Final = struct.Struct(">I")
SLOT_SIZE_BYTES: Final = _BODY.size + _CRC.size
SLOT_AT: Final = (0, 4096)  # Two pages, so that no device writes both slots at once.
FILE_SIZE_BYTES: Final = 8192
assert SLOT_SIZE_BYTES == 68
_new_tuple: Final = tuple.__new__  # Makes a named tuple in one step.


class Mark(NamedTuple):
    """Known state of the log, in the order of the file. Positions are bytes of the log.

    `durable_position` and `durable_index` (-1 = none): everything before the position, and up to
    and including the index, is durable. `dispatched_position`: the derived files hold everything
    before it, in page cache at least, so it counts only while the machine stays up.
    `dispatched_durable_position`: the same, durably. The item counts say how much the derived files
    held then (see Dispatcher.built), UNKNOWN_COUNT when that is not known: a queue file that lost
    units would else look like a shorter queue, and its offsets would be given out twice.
    """

    durable_position: int = 0
    durable_index: int = -1
    dispatched_position: int = 0
    dispatched_durable_position: int = 0
    dispatched_item_count: int = UNKNOWN_COUNT
    dispatched_durable_item_count: int = UNKNOWN_COUNT

    def cut_to(self, position: int, index: int) -> "Mark":
        """Return the mark of a log that ends at `position`, after entry `index`."""
        is_built = self.dispatched_position <= position
        is_built_durably = self.dispatched_durable_position <= position
        return Mark(
            min(self.durable_position, position),
            min(self.durable_index, index),
            min(self.dispatched_position, position),
            min(self.dispatched_durable_position, position),
            self.dispatched_item_count if is_built else UNKNOWN_COUNT,
            self.dispatched_durable_item_count if is_built_durably else UNKNOWN_COUNT,
        )


class DurableMark:
    """The open file. Any thread may call; a lock of its own orders the writes."""

    def __init__(self, fs: FileSystem, path: str, fd: int, interval_ms: int) -> None:
        self._fs, self._path, self._fd = fs, path, fd
        self._interval_ms = interval_ms
        self._lock = threading.RLock()
        self._synced_ms: int | None = None
        self._dirty = False
        self.mark = Mark()
        """The mark that was published last. For others to read only."""
        self._sequence = 0
        self._slot = 0  # Where the next write goes; the other one is synced.

    @classmethod
    def open(cls, fs: FileSystem, directory: str, *, interval_ms: int, log_is_empty: bool) -> Self:
        """Open the marks of a store, or make them when the log is empty.

        `interval_ms` 0 syncs each mark as it is published. Raises LayoutError when the file is
        missing although there is a log (`create` makes one on purpose), and CorruptionError when no
        slot can be read although there is a log.
        """
        path = os.path.join(directory, FILE_NAME)
        if not os.path.exists(path):
            if not log_is_empty:
                raise LayoutError(path, "the marks of the log beside it", "no such file")
            return cls.create(fs, directory, Mark(), interval_ms=interval_ms)
        fd = fs.open(path)
        mark = cls(fs, path, fd, interval_ms)
        try:
            if mark._load(log_is_empty):
                return mark
        except BaseException:
            fs.close(fd)
            raise
        fs.close(fd)
        return cls.create(fs, directory, Mark(), interval_ms=interval_ms)

    @classmethod
    def create(cls, fs: FileSystem, directory: str, mark: Mark, *, interval_ms: int) -> Self:
        """Make the file, replacing what is there, with `mark` in both slots, durably.

        For a new store, and for one whose marks were lost and whose log was checked as a whole.
        """
        _check(mark)
        path = os.path.join(directory, FILE_NAME)
        temporary = path + TEMPORARY_SUFFIX
        data = bytearray(FILE_SIZE_BYTES)
        for sequence, at in enumerate(SLOT_AT, 1):
            data[at : at + SLOT_SIZE_BYTES] = _encode(sequence, mark)
        fs.write_file(temporary, bytes(data))
        fs.rename(temporary, path)
        fs.sync_directory(directory)
        made = cls(fs, path, fs.open(path), interval_ms)
        made.mark, made._sequence, made._slot = mark, len(SLOT_AT), 0
        return made

    def _load(self, log_is_empty: bool) -> bool:
        """Read the better slot; return False when none is good and there is no log to guard."""
        size_bytes = min(self._fs.size_bytes(self._fd), FILE_SIZE_BYTES)
        data = self._fs.read_at(self._fd, self._path, 0, size_bytes)
        slots = [(*slot, n) for n, at in enumerate(SLOT_AT) if (slot := decode_slot(data, at))]
        if not slots:
            if log_is_empty:
                return False
            raise CorruptionError(
                self._path, 0, "durable mark", "one good slot of two", "none with a good checksum"
            )
        self._sequence, self.mark, good = max(slots, key=lambda f: f[0])
        # A bad slot is written first, so that two good ones are there again soon. The good slot may
        # be in the page cache only, after a SIGKILL: sync it before the other one is touched.
        self._slot = 1 - good
        self._fs.sync(self._fd, self._path)
        return True

    def publish(self, new: Mark, now_ms: int) -> None:
        """Write a mark; it is in page cache on return, durable with interval 0.

        Call it after the log was synced up to its `durable_position`, and before the receipts.
        No value may fall: a cut is announced by `lower`. `now_ms` is monotonic. Raises
        FileSystemError or SyncFailedError: stop the process.
        """
        with self._lock:
            old = self.mark
            _check(new)
            for old_value, new_value in zip(old[:4], new[:4], strict=True):
                assert new_value >= old_value, f"the mark falls from {old} to {new}"
            if new != old:
                self._write(new)
            if self._interval_ms == 0:
                self._sync(now_ms)

    def publish_built(self, built: Built, durable: Built) -> None:
        """Write how far derived files are `built`, and were `durable` at their last sync.

        A report that began earlier may come later, with less: it lowers nothing. Errors as
        `publish`.
        """
        with self._lock:
            now = self.mark
            if built.position < now.dispatched_position:
                built = Built(now.dispatched_position, now.dispatched_item_count)
            if durable.position < now.dispatched_durable_position:
                durable = Built(now.dispatched_durable_position, now.dispatched_durable_item_count)
            dispatched = built.position, durable.position, built.item_count, durable.item_count
            self.publish(Mark(*now[:2], *dispatched), now_ms=0)

    def raise_durable(self, position: int, index: int) -> None:
        """Write how far the log is durable, as `publish` does; lower values change nothing.

        For each sync of the log: the rest of the mark stays as it is.
        """
        with self._lock:
            old_position, old_index, built, built_durably, count, count_durably = self.mark
            if position > old_position or index > old_index:
                # The values only rise from those of a checked mark, so they need no other check.
                position = position if position > old_position else old_position
                index = index if index > old_index else old_index
                fields = position, index, built, built_durably, count, count_durably
                self._write(_new_tuple(Mark, fields))
            if self._interval_ms == 0:
                self._sync(0)

    def forget_counts(self) -> None:
        """Write durably that it is unknown how much derived files hold, until the next `publish`.

        Call it before one of them expires: a crash behind that would leave the count of before.
        Raises FileSystemError or SyncFailedError.
        """
        with self._lock:
            self._write(Mark(*self.mark[:4]))
            self._sync(self._synced_ms)

    def lower(self, position: int, index: int) -> None:
        """Lower the mark to a cut of the log, durably; call it before the log is cut.

        `index` is the last entry that stays (-1 for none, or in a log without entries). Raises
        FileSystemError or SyncFailedError; do not cut then.
        """
        with self._lock:
            old = self.mark
            new = old.cut_to(position, index)
            if new != old:
                self._write(new)
            self._sync(self._synced_ms)
            # The other slot is older but may lie higher: it must not be found after a bad sector.
            self._write(new)
            self._sync(self._synced_ms)

    def maybe_sync(self, now_ms: int) -> bool:
        """Sync the mark if it is older than the interval; return whether it did."""
        with self._lock:
            last_ms = self._synced_ms
            if not self._dirty or (last_ms is not None and now_ms - last_ms < self._interval_ms):
                return False
            self._sync(now_ms)
            return True

    def close(self) -> None:
        """Sync the mark and release the file. Raises SyncFailedError."""
        with self._lock:
            try:
                self._sync(self._synced_ms)
            finally:
                self._fs.close(self._fd)

    def _write(self, mark: Mark) -> None:
        if failpoints.is_on:
            hit("durable_mark.write")
        self._fs.write_at(
            self._fd, self._path, SLOT_AT[self._slot], _encode(self._sequence + 1, mark)
        )
        self._sequence += 1
        self.mark, self._dirty = mark, True

    def _sync(self, now_ms: int | None) -> None:
        if self._dirty:
            self._fs.sync(self._fd, self._path)
            self._dirty = False
            self._slot = 1 - self._slot
        self._synced_ms = now_ms


def _check(mark: Mark) -> None:
    assert mark.durable_position >= 0, f"durable position {mark.durable_position}"
    assert mark.durable_index >= -1, f"durable index {mark.durable_index}"
    assert 0 <= mark.dispatched_durable_position <= mark.dispatched_position, (
        f"dispatched {mark.dispatched_position}, durably {mark.dispatched_durable_position}"
    )


def _encode(sequence: int, mark: Mark) -> bytes:
    body = _BODY.pack(_MAGIC, 0, sequence, *mark)
    return body + _CRC.pack(crc32c(body))


def decode_slot(data: bytes, at: int) -> tuple[int, Mark] | None:
    """Return (sequence, mark) of a slot, None when it is torn, garbage or was never written."""
    body, crc = data[at : at + _BODY.size], data[at + _BODY.size : at + SLOT_SIZE_BYTES]
    if len(crc) != _CRC.size or _CRC.unpack(crc)[0] != crc32c(body):
        return None
    magic, _, sequence, *values = _BODY.unpack(body)
    if magic != _MAGIC or min(values[0], values[3]) < 0 or values[1] < -1 or values[3] > values[2]:
        return None
    return sequence, Mark(*values)
