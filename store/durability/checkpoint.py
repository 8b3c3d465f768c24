"""RocketMQ's `checkpoint` file: up to which time each part of the store is durable.

Owns the 4096 bytes of the file, byte-compatible with RocketMQ, and the way from "durable up to this
position" to "durable up to this time". Must not know how anything is flushed. Our own recovery uses
the durable mark, which has a checksum and holds positions; this file is for RocketMQ's tools and
for a RocketMQ store that opens the directory. The file is derived: a value that cannot be read
counts as zero, which only makes a recovery start earlier.

Deviation: RocketMQ moves logicsMsgTimestamp when a queue unit is in page cache and swallows a
failed sync (storage-formats 11.3, 11.5). Here a field moves only to what is truly durable, and the
file is synced each time it is saved. Source: RocketMQ StoreCheckpoint; storage-formats 4.1.
"""

import os
import threading
from collections import deque
from typing import Final, NamedTuple, Self

from store import format as fmt
from store.files.file_system import FileSystem
from store.files.staging import TEMPORARY_SUFFIX

FILE_NAME: Final = "checkpoint"
_SAMPLE_COUNT_MAX: Final = 4_096


class CheckpointValues(NamedTuple):
    """The fields in file order. Times are store timestamps in unix milliseconds, 0 = nothing yet.

    `physic_unix_ms`: every record of the log up to this time is durable. `logics_unix_ms`: so are
    their consume queue units. `index_unix_ms`: so are their index entries.
    `master_flushed_position`, `confirm_position`: positions that HA keeps here (5.x).
    """

    physic_unix_ms: int = 0
    logics_unix_ms: int = 0
    index_unix_ms: int = 0
    master_flushed_position: int = 0
    confirm_position: int = 0


assert len(CheckpointValues._fields) * 8 == fmt.CHECKPOINT.size


class Checkpoint:
    """The open file. One thread moves and saves it; `values` may be read from any."""

    def __init__(self, fs: FileSystem, path: str, fd: int, values: CheckpointValues) -> None:
        self._fs, self._path, self._fd = fs, path, fd
        self._saved = values
        self.values = values

    @classmethod
    def open(cls, fs: FileSystem, directory: str) -> Self:
        """Open the file, or make it with zeros, durably.

        Negative values and a short file count as zero. Raises StoreFullError, FileSystemError,
        SyncFailedError.
        """
        path = os.path.join(directory, FILE_NAME)
        if not os.path.exists(path):
            temporary = path + TEMPORARY_SUFFIX
            fs.write_file(temporary, bytes(fmt.CHECKPOINT_SIZE_BYTES))
            fs.rename(temporary, path)
            fs.sync_directory(directory)
        fd = fs.open(path)
        try:
            values = CheckpointValues()
            if fs.size_bytes(fd) >= fmt.CHECKPOINT.size:
                fields = fmt.CHECKPOINT.unpack(fs.read_at(fd, path, 0, fmt.CHECKPOINT.size))
                values = CheckpointValues(*(max(0, value) for value in fields))
        except BaseException:
            fs.close(fd)
            raise
        return cls(fs, path, fd, values)

    def advance(self, durable: CheckpointValues) -> None:
        """Move fields forward to what is durable now; a smaller value leaves its field alone.

        In memory only until `save`. The values must have been synced before the call.
        """
        self.values = CheckpointValues(*map(max, self.values, durable))

    def save(self) -> bool:
        """Write and sync the values if they changed; return whether they did. Durable on return.

        Raises FileSystemError or SyncFailedError: stop the process.
        """
        values = self.values
        if values == self._saved:
            return False
        self._fs.write_at(self._fd, self._path, 0, fmt.CHECKPOINT.pack(*values))
        self._fs.sync(self._fd, self._path)
        self._saved = values
        return True

    def close(self) -> None:
        """Save and release the file."""
        try:
            self.save()
        finally:
            self._fs.close(self._fd)


class DurableTimes:
    """Answers "up to which store time is everything before this position", for one log.

    The writer notes each append; the syncing thread asks for the time of the durable position.
    Keeps a bounded number of samples; a forgotten one makes the answer older, never newer.
    """

    def __init__(self, sample_count_max: int = _SAMPLE_COUNT_MAX) -> None:
        self._samples: deque[tuple[int, int]] = deque()  # (end position, newest time before it).
        self._sample_count_max = sample_count_max
        self._durable_unix_ms = 0
        self._newest_unix_ms = 0
        self._lock = threading.Lock()

    def note(self, end_position: int, store_unix_ms: int) -> None:
        """Note an append that ends at `end_position`; its records carry `store_unix_ms`."""
        with self._lock:
            samples = self._samples
            # The max rule: a clock that steps back does not take time back (fault-matrix C1).
            newest = self._newest_unix_ms = max(self._newest_unix_ms, store_unix_ms)
            if samples:
                assert end_position >= samples[-1][0], f"noted {end_position} after {samples[-1]}"
                if samples[-1][1] == newest or len(samples) >= self._sample_count_max:
                    samples.pop()  # One sample a millisecond, and never more than the limit.
            samples.append((end_position, newest))

    def up_to(self, durable_position: int) -> int:
        """Return a time: every record that carries it or an older one lies before the position."""
        with self._lock:
            while self._samples and self._samples[0][0] <= durable_position:
                unix_ms = self._samples.popleft()[1]
                # The next append may carry the newest millisecond again.
                self._durable_unix_ms = unix_ms - (unix_ms == self._newest_unix_ms)
            return self._durable_unix_ms
