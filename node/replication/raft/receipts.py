"""The rules of receipts for a log whose batches are entries that a quorum commits.

Owns the way from the position of a command record to its entry.
"""

from collections.abc import Callable

from node.contract import ReceiptRules
from node.errors.common import NodeError, NotLeaderError
from node.state.command_records import StoredBatch
from quorumlog.pb import common_pb2
from store import format as fmt
from store.replicated.ledger_store import ReplicaStore


def raft_receipts(
    store: ReplicaStore, why_not_local: Callable[[], NodeError | None] = lambda: None
) -> ReceiptRules:
    """Return the rules for a store. With `flush=sync` a quorum syncs an entry before its receipt,
    and does not only hold it in memory."""
    is_synced, ledger = store.config.flush == "sync", store.ledger
    durability = (
        common_pb2.DURABILITY_QUORUM_DISK if is_synced else common_pb2.DURABILITY_QUORUM_MEMORY
    )

    def batch_of(position: int) -> StoredBatch:
        entry = ledger.entry(ledger.index_at_position(position))
        first = entry.position + fmt.ENTRY_HEADER_SIZE_BYTES
        return StoredBatch(entry.entry_index, entry.term, first, entry.body)

    return ReceiptRules(batch_of, lambda: durability, NotLeaderError, True, why_not_local)
