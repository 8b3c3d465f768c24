"""Decides what a node with an empty disk is: a founder, or a member that lost its memory.

Owns that one decision; must not know how peers are reached. A voter that comes back with an empty
disk must not vote (fault-matrix R29): it may have acknowledged entries that it no longer has. So an
empty disk founds a cluster only once every configured voter has answered, and none has an entry. As
soon as one has, the cluster exists and this node joins it without a vote. Neither answer can be
wrong: an acknowledged entry lies on a quorum, every quorum has another voter than this one, and
this node asks every voter. A founder begins to vote once it knows that all voters have founded, or
that the cluster exists. Otherwise two could write entries while the third still asks, and the third
would count itself as a member that lost its memory.
"""

import asyncio
from collections.abc import Iterable
from enum import Enum

from node.monitoring.health import Health, Phase
from raft.messages import NO_INDEX, Index, NodeId


class FoundingVerdict(Enum):
    """The role of the node."""

    WAIT = "wait"
    """Some voter has not answered yet, and none of the others has an entry."""

    FOUND = "found"
    JOIN = "join"


class Foundation:
    """Collects the voters' answers about their logs."""

    def __init__(self, node_id: NodeId, voters: Iterable[NodeId]) -> None:
        """`voters` are the configured ones. A node that is not among them joins."""
        voters = frozenset(voters)
        self._is_voter = node_id in voters
        self.missing = set(voters - {node_id})
        """Voters that have not answered yet."""
        self.unfounded = set(self.missing)
        """Voters that have not reported yet that they founded."""
        self._is_living = False
        self._changed = asyncio.Event()

    def on_peer(self, node: NodeId, last_index: Index) -> None:
        """Note that a peer was connected. Its log ends at `last_index` (NO_INDEX: it is empty)."""
        self.missing.discard(node)
        if last_index > NO_INDEX:
            self._is_living = True
        self._changed.set()

    def on_founded(self, node: NodeId) -> None:
        """Note that a peer belongs to this cluster permanently."""
        self.missing.discard(node)
        self.unfounded.discard(node)
        self._changed.set()

    async def wait_for(self, nodes: Iterable[NodeId], what: str, health: Health) -> None:
        """Show which nodes a new `what` waits for, and wait until the next voter has answered."""
        missing = ", ".join(map(str, sorted(nodes)))
        health.enter(Phase.WAITING, f"a new {what} needs to hear of node {missing} first")
        self._changed.clear()
        await self._changed.wait()

    @property
    def verdict(self) -> FoundingVerdict:
        """The decision so far. FOUND and JOIN are final."""
        if self._is_living or not self._is_voter:
            return FoundingVerdict.JOIN
        return FoundingVerdict.WAIT if self.missing else FoundingVerdict.FOUND

    @property
    def may_begin(self) -> bool:
        """Whether a founder may take part in elections."""
        return self._is_living or not self.unfounded
