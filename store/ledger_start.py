"""Where a ledger begins, and what its first entry must follow.

Owns the meta file `start` beside the data: it is what remains of the entries that retention or a
snapshot took away. Must not know the data files. Without it, nobody could check the chain, the term
order and the index of the first entry that is left; with it every kept byte is checked, the first
entry like all others. It is written before files are deleted, so it is never behind them.
Deviation: DLedger takes whatever it finds first as the beginning (storage-formats 7.4).
"""

from typing import Final, NamedTuple

from store.errors import CorruptionError
from store.file_system import FileSystem
from store.ledger_entry import NO_LINK, Link
from store.meta_file import MetaFile

NAME: Final = "start"


class LogStart(NamedTuple):
    """The log begins with the entry after `link`, at `position` or in the file behind it."""

    position: int
    link: Link


LOG_FROM_ZERO: Final = LogStart(0, NO_LINK)


class StartFile:
    """The file. One thread at a time."""

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
        for name in ("position", "previous_index", "previous_term", "previous_chain_crc"):
            value = payload.get(name)
            if not isinstance(value, int) or value < -1:
                raise CorruptionError(self._directory, 0, f"{NAME}: {name}", "a number", str(value))
            values.append(value)
        return LogStart(values[0], Link(*values[1:])), payload.get("is_resetting") is True

    def save(self, start: LogStart, *, is_resetting: bool = False) -> None:
        """Replace the start; durable on return. Errors as MetaFile.save."""
        self._meta.save(
            {
                "position": start.position,
                "previous_index": start.link.entry_index,
                "previous_term": start.link.term,
                "previous_chain_crc": start.link.chain_crc,
                "is_resetting": is_resetting,
            }
        )
