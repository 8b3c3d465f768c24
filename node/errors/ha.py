"""Errors that a node in master-slave mode returns to clients and operators.

Owns the names, codes and texts, in the form of `node.errors.common`. The errors of the machine
itself are in `node.replication.ha`, and none of them leaves the node.
"""

from node.errors.common import RETRY_ELECTION_MS, NodeError
from raft.messages import NO_NODE, NodeId
from store.errors import Outcome


class NotMasterError(NodeError):
    """Only the master answers this call, and this node is a slave. The call had no effect."""

    code, retryable, status = "ha.not_master", True, "UNAVAILABLE"

    def __init__(self, master_id: NodeId = NO_NODE) -> None:
        super().__init__(master_id)
        self.leader_id = master_id
        self.retry_after_ms = 0 if master_id != NO_NODE else RETRY_ELECTION_MS

    def __str__(self) -> str:
        if self.leader_id == NO_NODE:
            return "this node is not the master, and knows none; see 'qlog ha status'"
        return f"this node is not the master, {self._leader_text()}; ask there"


class StateMissingError(NodeError):
    """This node's log does not reach back far enough to contain topics and groups; the node fetches
    them from the master. The call had no effect; ask again, or another node."""

    code, retryable, status = "ha.state_missing", True, "UNAVAILABLE"
    retry_after_ms = RETRY_ELECTION_MS

    def __str__(self) -> str:
        return "this node has no copy of the replicated state yet; ask another one meanwhile"


class PromotionRefusedError(NodeError):
    """This node cannot begin to become master now. The state is unchanged."""

    code, status = "ha.promotion_refused", "FAILED_PRECONDITION"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}; nothing changed"


class PromotionTimeoutError(NodeError):
    """The promotion was not fenced in time. The fence may still complete: the node goes on trying
    until it is bound to another master."""

    code, retryable, status = "ha.promotion_timeout", True, "DEADLINE_EXCEEDED"
    outcome = Outcome.UNKNOWN

    def __init__(self, bound_count: int, needed: int, timeout_ms: int) -> None:
        super().__init__(bound_count, needed, timeout_ms)
        self.bound_count, self.needed, self.timeout_ms = bound_count, needed, timeout_ms

    def __str__(self) -> str:
        return (
            f"after {self.timeout_ms} ms {self.bound_count} of the {self.needed} replicas that a "
            f"fence needs are bound; start more of them, or promote another node"
        )


class PromotionLostError(NodeError):
    """Another replica was promoted meanwhile, with a higher epoch."""

    code, retryable, status = "ha.promotion_lost", True, "ABORTED"

    def __init__(self, number: int, master_id: NodeId) -> None:
        super().__init__(number, master_id)
        self.number, self.master_id = number, master_id

    def __str__(self) -> str:
        return (
            f"this node is bound to epoch {self.number} of node {self.master_id} by now; "
            f"see 'qlog ha status'"
        )
