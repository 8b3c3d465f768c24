"""The types that both ways to replicate fill in: what drivers do, what receipts promise, where a
replica stands in its group.

Owns these types; `node.replication.raft` and `node.replication.ha` make the values, and the broker
names the types. Must not know either of the two.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from node.errors.common import NodeError
from node.state.append_times import AppendTimes
from node.state.appends import Committed, Prepared
from node.state.command_records import StoredBatch
from quorumlog.pb import common_pb2
from raft.messages import Index, NodeId, Term
from raft.transitions import Role
from store.errors import StoreError


class Driver(Protocol):
    """Runs the replica of this node: `RaftDriver` or `HaDriver`; a small one in tests of the
    broker."""

    is_ready: bool
    """Whether this node leads and has applied everything that was acknowledged before."""
    append_times: AppendTimes

    @property
    def node_id(self) -> NodeId: ...
    @property
    def role(self) -> Role: ...
    @property
    def term(self) -> Term: ...
    @property
    def leader_id(self) -> NodeId: ...
    @property
    def no_room(self) -> StoreError | None: ...
    @property
    def applied_index(self) -> Index: ...

    def append(
        self, batch: bytes, check: Callable[[Prepared], None]
    ) -> "asyncio.Future[Committed]": ...
    def read_barrier(self) -> "asyncio.Future[Index]": ...
    def add_listener(self, listener: Callable[[], None]) -> None: ...


class ReceiptRules(NamedTuple):
    """The differences between the two ways to replicate that a caller of the broker notices."""

    batch_of: Callable[[int], StoredBatch]
    """Returns the stored batch whose command record is at a log position.

    Raises PositionRangeError when retention has deleted it, CorruptionError, FileSystemError."""
    durability: Callable[[], common_pb2.Durability]
    """Returns the promise of a receipt that is given now."""
    not_leader: Callable[[NodeId], NodeError]
    """Returns the error of a node that does not lead; its argument is the leader."""
    has_entries: bool
    """Whether batches are entries. If not, an idempotent batch has to record its size: nothing else
    in the log does."""
    why_not_local: Callable[[], NodeError | None] = lambda: None
    """Returns the error of a node that has no readable data yet, else None, under any leader."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The place of a replica in its group at one moment: the one source for /status, AdminService
    and metrics. In master-slave mode positions stand for indexes, epochs for terms."""

    role: Role
    standing: Enum
    """A member of the `Standing` of the replication mode."""
    term: int
    leader_id: NodeId
    first_index: Index
    last_index: Index
    durable_index: Index
    commit_index: Index
    applied_index: Index
    members: tuple[NodeId, ...] = ()
    """Voters and learners of a Raft group, as this node knows them; empty in master-slave mode."""
    voters: tuple[NodeId, ...] = ()
    """Those of the members whose acks count; empty in master-slave mode."""
    roles: tuple[Role, ...] = tuple(Role)
    """The roles that a replica of this mode can have."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of /status and of NodeStatusResponse, by their common names."""
        return {
            "role": self.role.name.lower(),
            "term": self.term,
            "leader_id": self.leader_id,
            "first_index": self.first_index,
            "last_index": self.last_index,
            "durable_index": self.durable_index,
            "commit_index": self.commit_index,
            "applied_index": self.applied_index,
        }
