"""The digests that the replicas of a group report to their leader.

Owns one question: which digest a majority of the voters has at a point. Must not know frames, the
log, or what follows from the answer.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from node.state.digest import Digest
from raft.messages import NodeId
from raft.quorum import quorum_size


class Reports:
    """The newest digest of each node."""

    def __init__(self) -> None:
        self._newest: dict[NodeId, Digest] = {}

    def add(self, node: NodeId, digest: Digest) -> None:
        """Note the digest of a member; one of an earlier point is dropped."""
        newest = self._newest.get(node)
        if newest is None or newest.position <= digest.position:
            self._newest[node] = digest

    def keep(self, members: Iterable[NodeId]) -> None:
        """Forget all nodes but these."""
        for node in self._newest.keys() - set(members):
            del self._newest[node]

    def at(self, position: int) -> dict[NodeId, Digest]:
        """Return the digests of the nodes that reported one at a point."""
        return {node: one for node, one in self._newest.items() if one.position == position}

    def majority(self, position: int, voters: Sequence[NodeId]) -> Digest | None:
        """Return the digest that a majority of all voters has at a point; None if none has it."""
        counts = Counter(one for node, one in self.at(position).items() if node in voters)
        for digest, count in counts.most_common(1):
            if count >= quorum_size(len(voters)):
                return digest
        return None
