"""One append on its way to the log and back: types only.

Whatever replicates the log makes them, and the broker reads them; neither knows the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raft.messages import Index, NodeId, Term
from store.ledger.ledger import PreparedEntry
from store.log.record_log import AppendResult
from store.log.shipped_log import PreparedBatch
from store.record.stamp import QueueKey


class Prepared:
    """A batch of encoded records that is checked and has room in the log, but is not written."""

    __slots__ = ("_next_offsets", "content", "result")

    def __init__(
        self, content: PreparedEntry | PreparedBatch, next_offsets: Mapping[QueueKey, int]
    ) -> None:
        """`content` is what the store has to append; `next_offsets` are those before it."""
        self.content = content
        self._next_offsets = next_offsets
        self.result: AppendResult | None = None
        """Place of the batch, once it was appended."""

    @property
    def queues(self) -> dict[QueueKey, tuple[int, int]]:
        """New records per queue, (topic, queue id): (first offset, count). Read it before the
        append; records of unfinished transactions do not count."""
        before, after = self._next_offsets, self.content.next_offsets
        counts = {}
        for key in after:
            first = before[key] if key in before else 0  # noqa: SIM401 - Without a call.
            counts[key] = first, after[key] - first
        return counts


class Committed(NamedTuple):
    """One append that is committed and applied here."""

    index: Index  # type: ignore[assignment]  # Hides tuple.index, which is unused here.
    """Index of the entry; in master-slave mode the end of the batch in the log, less one."""
    term: Term
    """Term of the entry; in master-slave mode the number of the epoch."""
    result: AppendResult
    synced_by: tuple[NodeId, ...]
    """Nodes known to have it, durably with flush=sync, when it was found committed."""
    commit_us: int
    """Microseconds from `append` to here, by this node's clock."""
