"""The ways to become master: by advice, by hand, or as the first of a new group.

Owns when a promotion may begin and how a caller learns its outcome. Must not know the fence: that
is the machine's, and it alone decides.
"""

from __future__ import annotations

import asyncio
import secrets

from node.errors.ha import PromotionLostError, PromotionRefusedError, PromotionTimeoutError
from node.replication.ha.core.types import NO_EPOCH, HaRole, PromotionError
from node.replication.ha.replica import HaReplica
from raft.messages import NodeId


class Promotion:
    """The promotions of one replica."""

    def __init__(self, replica: HaReplica, *, is_first_master: bool) -> None:
        """`is_first_master`: whether this replica proposes itself when the group is new."""
        self._replica = replica
        self._is_first_master = is_first_master
        self.changed = asyncio.Event()
        """Set by the driver when the role, or whether it is ready, may have changed."""
        self.advice_refused_count = 0

    def advise(self, number: int, master_id: NodeId, nonce: int) -> None:
        """Take a controller's proposal. It starts a promotion at most, and the fence decides."""
        if master_id != self._replica.node_id or number <= self._replica.term:
            return
        if self._why_not_promote():
            self.advice_refused_count += 1
            return
        self._replica.input(lambda machine: machine.advise(number, master_id, nonce))

    async def promote(self, timeout_ms: int) -> int:
        """Become master, and return the number of the epoch once this node serves in it.

        A serving master stays one. Raises PromotionRefusedError, PromotionLostError; and
        PromotionTimeoutError, after which the node goes on trying.
        """
        replica = self._replica
        if replica.machine.role is not HaRole.MASTER:
            reason = self._why_not_promote()
            if reason:
                raise PromotionRefusedError(reason)
            nonce = secrets.randbits(64)
            replica.input(lambda machine: machine.promote(nonce))
        number = replica.term
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not replica.is_ready:
                    if replica.term != number or replica.machine.role is HaRole.SLAVE:
                        master_id = replica.machine.state.bound.master_id
                        raise PromotionLostError(replica.term, master_id)
                    self.changed.clear()
                    await self.changed.wait()
                    replica.check_running()
        except TimeoutError as error:
            bound = 1 + sum(x.promise is not None for x in replica.machine.state.downs())
            raise PromotionTimeoutError(bound, replica.group.fence_count, timeout_ms) from error
        return number

    def _why_not_promote(self) -> str:
        replica = self._replica
        if replica.is_draining:
            return f"node {replica.node_id} is draining"
        if (error := replica.save_error) is not None:
            return f"node {replica.node_id} cannot write what it would promise: {error}"
        if replica.applied.is_missing:
            return f"node {replica.node_id} has no copy of the replicated state yet"
        try:
            replica.machine.check_promotion()
        except PromotionError as refusal:
            return refusal.reason
        return ""

    def maybe_propose(self) -> None:
        """Become the first master of a new group, once all replicas are connected and none was
        master."""
        if not self._is_first_master:
            return
        state = self._replica.machine.state
        if state.highest_epoch > NO_EPOCH:
            self._is_first_master = False
            return
        is_complete = len(state.downs()) == len(self._replica.group.replica_ids) - 1
        if is_complete and not self._why_not_promote():
            self._is_first_master = False
            nonce = secrets.randbits(64)
            self._replica.input(lambda machine: machine.promote(nonce))
