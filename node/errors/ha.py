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
    text = "this node has no copy of the replicated state yet; ask another one meanwhile"


class PromotionRefusedError(NodeError):
    """This node cannot begin to become master now. The state is unchanged."""

    code, status = "ha.promotion_refused", "FAILED_PRECONDITION"
    text = "{reason}; nothing changed"
    reason: str


class PromotionTimeoutError(NodeError):
    """The promotion was not fenced in time. The fence may still complete: the node goes on trying
    until it is bound to another master."""

    code, retryable, status = "ha.promotion_timeout", True, "DEADLINE_EXCEEDED"
    outcome = Outcome.UNKNOWN
    text = (
        "after {timeout_ms} ms {bound_count} of the {needed} replicas that a fence needs are "
        "bound; start more of them, or promote another node"
    )
    bound_count: int
    needed: int
    timeout_ms: int


class PromotionLostError(NodeError):
    """Another replica was promoted meanwhile, with a higher epoch."""

    code, retryable, status = "ha.promotion_lost", True, "ABORTED"
    text = "this node is bound to epoch {number} of node {master_id} by now; see 'qlog ha status'"
    number: int
    master_id: NodeId
