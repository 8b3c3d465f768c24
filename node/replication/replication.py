"""One way to replicate, at work in one node: all that the rest of the node knows of it.

`node.raft_node.build_raft` and `node.ha_node.build_ha` make the two values that exist, so the
fields are the list of what differs between the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from node.peers.link import PeerLink
from node.replication.contract import ReceiptRules, ReplicaStatus
from node.replication.ha.driver import HaDriver
from node.replication.ha.link.link import HaLink
from node.replication.maintenance import Maintenance
from node.replication.raft.driver import RaftDriver
from node.replication.raft.fetch import EntryFetcher
from node.state.machine import StateMachine
from store.errors import CorruptionError
from store.replicated.ledger_store import ReplicaStore
from store.replicated.shipped_store import ShippedStore


@dataclass(frozen=True)
class Replication:
    """The components of a replica; none of them has been started but the link."""

    store: ReplicaStore | ShippedStore
    machine: StateMachine
    link: PeerLink | HaLink
    """The connections to the other nodes, open since before the log was."""
    driver: RaftDriver | HaDriver
    receipts: ReceiptRules
    maintenance: Maintenance[Any]
    status: Callable[[], ReplicaStatus]
    """Returns the place of the replica in its group."""
    warnings: Callable[[], tuple[str, ...]]
    """Returns what an operator of this mode should know, as sentences."""
    on_damage: Callable[[CorruptionError], None]
    """Reacts to damage of the log: has it fetched from a peer, or says what to do."""
    fetcher: EntryFetcher | None = None
    """Fetches entries from peers for comparison; None: there is no comparison."""
