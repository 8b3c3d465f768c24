"""The place of a node's replica in its group: the one source for /status, AdminService and metrics.

Owns the names of these values for all three. Must not know a driver; the node of each mode fills
them in.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from node.monitoring.metrics import Sample
from raft.messages import Index, NodeId
from raft.transitions import Role


@dataclass(frozen=True, slots=True)
class NodeReplicaStatus:
    """The values at one moment. In master-slave mode positions stand for indexes, epochs for
    terms."""

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

    def fields(self) -> dict[str, Any]:
        """Return the fields of /status and of NodeStatusResponse, by their common names."""
        return {
            "role": self.role.name.lower(),
            "term": self.term,
            "leader_id": self.leader_id,
            **self._indexes(),
        }

    def samples(self, roles: Iterable[Role]) -> Iterator[Sample]:
        """Yield the metrics; `roles` are those that a replica of this mode can have."""
        for role in roles:
            yield "role", (role.name.lower(),), float(role is self.role)
        for standing in type(self.standing):
            yield "standing", (standing.name.lower(),), float(standing is self.standing)
        yield "term", (), self.term
        yield "leader_id", (), self.leader_id
        for name, index in self._indexes().items():
            yield name, (), index

    def _indexes(self) -> dict[str, Index]:
        return {
            "first_index": self.first_index,
            "last_index": self.last_index,
            "durable_index": self.durable_index,
            "commit_index": self.commit_index,
            "applied_index": self.applied_index,
        }
