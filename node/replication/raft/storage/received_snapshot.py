"""A snapshot being installed in a node's directory: the one file that makes installation atomic.

Owns the files `snapshot.received` and `snapshot.installed`. From the rename to the first name on,
the snapshot is the node's log: remains of the old log, queues and marks are replaced, by the next
opening if necessary. Under the second name only the state machine has still to take its part over.
Must not know how the parts are replaced.
"""

import os
from typing import Final

from node.replication.raft.storage.snapshot import Snapshot, decode_snapshot
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import TEMPORARY_SUFFIX

RECEIVED_NAME: Final = "snapshot.received"
INSTALLED_NAME: Final = "snapshot.installed"


class ReceivedSnapshot:
    """The files of the snapshot. One thread."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs, self._directory = fs, directory
        self._received = os.path.join(directory, RECEIVED_NAME)
        self._installed = os.path.join(directory, INSTALLED_NAME)
        self._written: bytes | None = None
        """The bytes that are durable under the temporary name."""
        self._staged: Snapshot | None = None
        self.installed: Snapshot | None = None
        """The snapshot that is installed, except in the state machine.

        At start: restore it, unless the own checkpoint has applied `state_index` or more."""

    def load(self) -> Snapshot | None:
        """Return the snapshot whose installation a crash interrupted, if any.

        Raises SnapshotFormatError for a damaged one, FileSystemError.
        """
        temporary = self._received + TEMPORARY_SUFFIX
        if os.path.exists(temporary):
            self._fs.unlink(temporary)
        if os.path.exists(self._installed):
            self.installed = decode_snapshot(self._fs.read_file(self._installed))
        if os.path.exists(self._received):
            self._staged = decode_snapshot(self._fs.read_file(self._received))
        return self._staged

    def write(self, data: bytes) -> None:
        """Write the bytes of a snapshot that may be installed next, or never.

        Raises StoreFullError or FileSystemError (nothing has changed), SyncFailedError (stop).
        """
        self._written = None
        self._fs.write_file(self._received + TEMPORARY_SUFFIX, data)
        self._written = data

    def stage(self, data: bytes, snapshot: Snapshot) -> None:
        """Make this snapshot the one to be installed; its bytes are written if necessary. Durable
        on return.

        Raises as `write`.
        """
        fs, temporary = self._fs, self._received + TEMPORARY_SUFFIX
        if self._written is not data:
            self.write(data)
        self._written = None
        hit("snapshot.before_stage")
        fs.rename(temporary, self._received)
        fs.sync_directory(self._directory)
        hit("snapshot.staged")
        self._staged = snapshot

    def mark_installed(self) -> None:
        """Rename the staged snapshot: everything except the state machine holds it now."""
        assert self._staged is not None, "nothing was staged"
        hit("snapshot.before_installed")
        self._fs.rename(self._received, self._installed)
        self._fs.sync_directory(self._directory)
        self.installed, self._staged = self._staged, None
        hit("snapshot.installed")

    def forget(self) -> None:
        """Remove the snapshot: the state machine has it, too."""
        if self.installed is not None:
            self._fs.unlink(self._installed)
            self._fs.sync_directory(self._directory)
            self.installed = None
