"""One way to replicate, at work in one node, and what it gets of that node.

`node.replication.raft.assembly` and `node.replication.ha.assembly` make the two values that exist,
so the fields of `Replication` are the list of what differs between the two, and all that the rest
of the node knows of it.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from node.config.settings import Settings
from node.contract import Driver, ReceiptRules, ReplicaStatus
from node.monitoring.health import Health
from node.monitoring.pages import Pages
from node.nameserver.local_broker import LocalBroker
from node.peers.common_link import Link
from node.peers.handshake import LinkIdentity
from node.peers.security.tls import TlsFiles
from node.replication.admin_parts import NodeCalls, NodeParts
from node.replication.fetch import EntryFetcher
from node.replication.lives import NodeLives
from node.replication.maintenance import Maintenance
from node.runtime.fail_stop import FailStop
from node.runtime.opening import Opening
from node.state.machine import StateMachine
from store.errors import CorruptionError, DerivedFileError
from store.files.file_system import FileSystem
from store.replicated.ledger_store import ReplicaStore
from store.replicated.shipped_store import ShippedStore
from store.replicated.store import ReplicatedStore


@dataclass(frozen=True)
class ReplicaHost:
    """The parts of a node that its replica uses."""

    settings: Settings
    fs: FileSystem
    fail_stop: FailStop
    health: Health
    lives: NodeLives
    pages: Pages
    life: AsyncExitStack
    """The end of everything that the start opened."""
    opening: Opening
    log_is_open: Callable[[ReplicatedStore[Any]], None]
    """Watches the syncs of an open log. Raises PortTakenError of the HTTP port."""
    meet_peers: Callable[[Callable[[LinkIdentity, TlsFiles | None], Link]], Awaitable[None]]
    """Opens the ports, and the link that its argument makes. A repeated call does nothing."""
    spawn: Callable[[Any], None]
    """Runs a coroutine as a task of the node."""
    on_met: Callable[[CorruptionError | DerivedFileError], None]
    """Reacts to damage that background work met."""
    has_audience: Callable[[], bool]
    """Returns whether a reader waits for entries to be shown here. Call it from a turn only."""


@dataclass(frozen=True)
class Replication:
    """The components of a replica; none of them has been started but the link."""

    store: ReplicaStore | ShippedStore
    machine: StateMachine
    link: Link
    """The connections to the other nodes, open since before the log was."""
    driver: Driver
    start: Callable[[], None]
    """Starts the driver."""
    receipts: ReceiptRules
    maintenance: Maintenance[Any]
    status: Callable[[], ReplicaStatus]
    """Returns the place of the replica in its group."""
    warnings: Callable[[], tuple[str, ...]]
    """Returns what an operator of this mode should know, as sentences."""
    on_damage: Callable[[CorruptionError], None]
    """Reacts to damage of the log: has it fetched from a peer, or says what to do."""
    admin: Callable[[NodeParts], NodeCalls]
    """Makes the calls of AdminService that differ."""
    local_broker: Callable[[str, str], LocalBroker]
    """Makes what the name server sees of this node, from the addresses of its client service and of
    its peer link."""
    fetcher: EntryFetcher | None = None
    """Fetches entries from peers for comparison; None: there is no comparison."""
