"""The beginning of a ledger, and the link that its first entry must follow.

Owns the meta file `start` beside the data: it is what remains of the entries that retention or a
snapshot took away. Must not know the data files. Without the file the chain, the term order and the
index of the first entry that is left could not be checked; with it every kept byte is checked, the
first entry like all others. The file is written before data files are deleted, so it is never
behind them.
Deviation: DLedger takes the first entry that it finds as the beginning (storage-formats 7.4).
"""

from typing import Final, NamedTuple

from store.errors import CorruptionError
from store.files.file_system import FileSystem
from store.files.meta_file import MetaFile
from store.ledger.entry import NO_LINK, ChainLink

NAME: Final = "start"
FIELDS: Final = (
    "previous_end_position",
    "file_position",
    "previous_index",
    "previous_term",
    "previous_chain_crc",
)


class LogStart(NamedTuple):
    """The log begins with the entry after `link`, in the file at `file_position` or the next one.

    `end_position` is the end of the entry before: where the first one goes if it fits. After a
    snapshot it lies in the first file; after retention in the file that was deleted last.
    """

    end_position: int
    file_position: int
    link: ChainLink

    @property
    def is_in_first_file(self) -> bool:
        """Whether the place of the first entry may still be in a kept file."""
        return self.end_position >= self.file_position

    @property
    def min_position(self) -> int:
        """Position of the first byte that may belong to a kept entry."""
        return max(self.end_position, self.file_position)


LOG_FROM_ZERO: Final = LogStart(0, 0, NO_LINK)


class StartFile:
    """The meta file `start`. One thread at a time."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._directory = directory
        self._meta = MetaFile(fs, directory, NAME)

    def load(self) -> tuple[LogStart, bool]:
        """Return the start, and whether a reset of the log to it was not finished.

        Call it once before `save`. Raises CorruptionError or LayoutError: refuse to open.
        """
        payload = self._meta.load(must_exist=False)
        if payload is None:
            return LOG_FROM_ZERO, False
        values: list[int] = []
        for name in FIELDS:
            value = payload.get(name)
            if not isinstance(value, int) or value < -1:
                raise CorruptionError(self._directory, 0, f"{NAME}: {name}", "a number", str(value))
            values.append(value)
        return LogStart(values[0], values[1], ChainLink(*values[2:])), payload.get(
            "is_resetting"
        ) is True

    def save(self, start: LogStart, *, is_resetting: bool = False) -> None:
        """Replace the start; durable on return. Errors as MetaFile.save."""
        values = dict(
            zip(FIELDS, (start.end_position, start.file_position, *start.link), strict=True)
        )
        self._meta.save({**values, "is_resetting": is_resetting})
