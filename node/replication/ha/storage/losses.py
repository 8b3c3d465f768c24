"""The losses that a replica knows of after changes of masters, kept for people.

Owns the file `haLosses` and its limit; must not know how a loss comes about. A report is durable
when the bytes are aside and before any of them is cut, so a crash in between makes the same cut
once more, and the same report: the first one counts, since that process had seen the acks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from node.replication.ha.core.types import HaError
from store.files.file_system import FileSystem
from store.files.meta_file import Json, MetaFile

LOSS_FILE: Final = "haLosses"
LOSS_COUNT_MAX: Final = 100
"""Older ones are forgotten; bytes set aside stay until an operator removes them."""


class LossFileError(HaError):
    """The file of losses is not in the form of this version. Move it away; no record is in it."""

    code = "ha.loss_file"
    text = f"{LOSS_FILE}: {{detail}}; move it away, only reports are in it"
    detail: str


@dataclass(frozen=True, slots=True)
class LostEnd:
    """The lost end of a log."""

    unix_ms: int
    epoch: int
    """The last epoch of the lost bytes."""
    lo: int
    hi: int
    acked_hi: int
    """Appends that end in (lo, acked_hi] had been acknowledged, as far as this replica knows."""
    is_exact: bool
    """Whether `acked_hi` is exact; otherwise more or less may have been acked, as this process did
    not see all of it."""
    record_count: int
    """Messages in the range, without those of the system; -1: this replica never had the bytes."""
    acked_record_count: int
    """Messages of the range up to `acked_hi`; -1: unknown."""
    file: str
    """File with the bytes that were set aside; empty: this replica never had them."""


class LossFile:
    """The losses of one replica. On the loop's thread; `save` waits for the disk, and is rare."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        """Load the stored losses. Raises as `MetaFile.load`, and LossFileError."""
        self._file = MetaFile(fs, directory, LOSS_FILE)
        payload = self._file.load(must_exist=False)
        self.losses: list[LostEnd] = [] if payload is None else _losses(payload)
        """Losses, oldest first."""
        self._is_saved = True

    def note(self, loss: LostEnd) -> None:
        """Add a loss, unless it is known; call `save` afterwards."""
        place = loss.epoch, loss.lo, loss.hi
        if all((old.epoch, old.lo, old.hi) != place for old in self.losses):
            self.losses = [*self.losses, loss][-LOSS_COUNT_MAX:]
            self._is_saved = False

    def save(self) -> None:
        """Make noted losses durable. Raises StoreFullError or FileSystemError: repeat it."""
        if not self._is_saved:
            self._file.save({"losses": [dataclasses.asdict(loss) for loss in self.losses]})
            self._is_saved = True


def _losses(payload: dict[str, Json]) -> list[LostEnd]:
    rows = payload.get("losses")
    if not isinstance(rows, list):
        raise LossFileError("no list of losses")
    try:
        return [LostEnd(**row) for row in rows]  # type: ignore[arg-type]
    except TypeError as error:
        raise LossFileError(str(error)) from error
