"""Finds a stored batch again by the log position of its command record.

Owns the way from that position to the whole batch; must not know receipts. A ledger knows its
entries. A plain log does not know where a batch begins, so there the command record says how large
the batch before it is.
"""

from typing import Protocol

from node.state.command_records import StoredBatch
from store import format as fmt
from store.ledger.ledger import Ledger


class Batches(Protocol):
    """Finds batches again."""

    def batch_of(self, position: int) -> StoredBatch:
        """Return the batch whose command record is at a position.

        Raises PositionRangeError when retention has deleted it, CorruptionError, FileSystemError.
        """
        ...


class EntryBatches:
    """`Batches` of a ledger: a batch is an entry."""

    def __init__(self, log: Ledger) -> None:
        self._log = log

    def batch_of(self, position: int) -> StoredBatch:
        """See `Batches.batch_of`."""
        entry = self._log.entry(self._log.index_at_position(position))
        first = entry.position + fmt.ENTRY_HEADER_SIZE_BYTES
        return StoredBatch(entry.entry_index, entry.term, first, entry.body)
