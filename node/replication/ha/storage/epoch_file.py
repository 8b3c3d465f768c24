"""The two small files of a replica of an HA group: its epochs and its binding.

Owns their form and their way to disk; must not know when they change. `epochFileCheckpoint` has the
text form of RocketMQ (storage-formats 6.7), but is written to a temporary name, synced and renamed;
the content before stays in `.bak`. The binding has no counterpart there and is a
`store.files.meta_file`, which is strict: a replica that cannot read its promises must not start.
"""

from __future__ import annotations

import itertools
import os
import re
import zlib
from typing import Final

from node.replication.ha.core.epochs import EPOCHS_KEPT_MAX, Epochs
from node.replication.ha.core.types import (
    AckMode,
    EpochStart,
    HaBinding,
    HaStanding,
    ReplicaState,
    check_binding,
)
from store.errors import CorruptionError, LayoutError
from store.files.file_system import FileSystem
from store.files.meta_file import Json, MetaFile

EPOCH_FILE: Final = "epochFileCheckpoint"
BINDING_FILE: Final = "haBinding"
BACKUP: Final = ".bak"
TEMPORARY: Final = ".tmp"
_HEAD: Final = re.compile(rb"(0|[1-9][0-9]{0,9})\n(0|[1-9][0-9]{0,9})\n")
_LINE: Final = re.compile(rb"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})(?:\n|\Z)")
_SIZE_BYTES_MAX: Final = 64 << 10
"""1000 lines of an i4, a dash, an i8 and a newline are 32 KiB."""


class EpochFile:
    """`epochFileCheckpoint` in a directory. One thread at a time."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs, self._directory = fs, directory
        self.path: Final = os.path.join(directory, EPOCH_FILE)

    def load(self) -> Epochs:
        """Return the stored epochs; none when neither the file nor its backup exists.

        The backup alone serves only while there is no main file: a crash between the two renames
        leaves that, and nothing depended on the new content yet. Raises CorruptionError when the
        main file is damaged: an old list would claim bytes for a wrong master, so it is no
        substitute. Then the epochs have to come from another replica.
        """
        for path in (self.path, self.path + BACKUP):
            if os.path.exists(path):
                return decode(path, self._fs.read_file(path, _SIZE_BYTES_MAX + 1))
        return Epochs()

    def save(self, epochs: Epochs) -> None:
        """Replace the file; durable on return. Raises as `FileSystem` does.

        After SyncFailedError the process must stop. An empty list is written, too.
        """
        temporary = self.path + TEMPORARY
        self._fs.write_file(temporary, encode(epochs))
        if os.path.exists(self.path):
            self._fs.rename(self.path, self.path + BACKUP)
        self._fs.rename(temporary, self.path)
        self._fs.sync_directory(self._directory)


class BindingFile:
    """The replica's state on disk. A change is durable on return."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._directory = directory
        self._file = MetaFile(fs, directory, BINDING_FILE)
        self._state: ReplicaState | None = None
        self.life = 0
        """Number of starts of this disk, see `raft.lives`. Saved from the first save of the state
        on."""

    def load(self, *, must_exist: bool) -> ReplicaState | None:
        """Return the saved state; None on a new disk. Raises as `MetaFile.load` does."""
        loaded = self._file.load(must_exist=must_exist)
        if loaded is None:
            return None
        try:
            bound = HaBinding(
                _int(loaded, "number"), _int(loaded, "master_id"), _int(loaded, "nonce")
            )
            standing = HaStanding(_int(loaded, "standing"))
            mode = AckMode(loaded["mode"])
            self.life = _int(loaded, "life")
            self._state = ReplicaState(bound, standing, _int(loaded, "incarnation"), mode)
        except (KeyError, ValueError) as error:
            path = os.path.join(self._directory, BINDING_FILE)
            raise LayoutError(path, "number, master_id, nonce, standing", str(loaded)) from error
        return self._state

    def save(self, state: ReplicaState) -> None:
        """Replace the state. Raises BindingRefusedError if it would go back; nothing changed
        then."""
        if self._state is not None:
            check_binding(self._state.bound, state.bound)
        if state != self._state:
            self._write(state)

    def _write(self, state: ReplicaState) -> None:
        payload = state.bound._asdict() | {
            "standing": state.standing.value,
            "incarnation": state.incarnation,
            "mode": state.mode.value,
            "life": self.life,
        }
        self._file.save(payload)
        self._state = state

    def begin(self, life: int) -> None:
        """Note the number of a new life; durable on return, if there is a state. Raises as
        `MetaFile.save`."""
        self.life = life
        if self._state is not None:
            self._write(self._state)


def _int(fields: dict[str, Json], name: str) -> int:
    value = fields[name]
    if not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}")
    return value


def encode(epochs: Epochs) -> bytes:
    """Return the text of the file."""
    lines = "".join(f"{number}-{start}\n" for number, start in epochs.entries).encode()
    return b"%d\n%d\n" % (len(epochs.entries), zlib.crc32(lines) & 0x7FFFFFFF) + lines


def decode(path: str, data: bytes) -> Epochs:
    """Return the epochs in the text of the file. Raises CorruptionError."""
    if len(data) > _SIZE_BYTES_MAX:
        raise CorruptionError(path, 0, "size", f"up to {_SIZE_BYTES_MAX}", "more")
    head = _HEAD.match(data)
    if head is None:
        raise CorruptionError(path, 0, "text", "count, CRC-32 and lines", repr(data[:24]))
    (count, crc), lines = head.groups(), data[head.end() :]
    rows = _LINE.findall(lines)
    if b"\n".join(b"%b-%b" % row for row in rows) != lines.removesuffix(b"\n"):
        raise CorruptionError(path, head.end(), "lines", "epoch-position", repr(lines[:40]))
    wanted = b"%d" % (zlib.crc32(lines) & 0x7FFFFFFF)
    if crc not in (wanted, b"0"):  # 0: RocketMQ does not verify.
        raise CorruptionError(path, head.start(2), "CRC-32", wanted.decode(), repr(crc))
    if int(count) != len(rows) or len(rows) > EPOCHS_KEPT_MAX:
        raise CorruptionError(path, 0, "count", str(len(rows)), repr(count))
    entries = [EpochStart(int(number), int(start)) for number, start in rows]
    for before, after in itertools.pairwise(entries):
        if not (before.number < after.number and before.start < after.start):
            raise CorruptionError(path, 0, "order", f"more than {before}", str(after))
    return Epochs(entries)
