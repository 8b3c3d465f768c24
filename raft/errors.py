"""Typed errors of the consensus layer. Each tells the known outcome of the caller's request.

Only a refused call raises; a later loss of leadership is reported through the waiter, never by
raising. All errors pickle: the positional values go to `super().__init__`, the text is built in
`__str__`."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from raft.messages import Index, NodeId, Term


class Outcome(Enum):
    """Effect of a request, as far as the answering node can know it."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


class RaftError(Exception):
    """Root of all errors raised by `raft`."""

    code: ClassVar[str] = "raft.error"
    retryable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED


class NotLeaderError(RaftError):
    """This node does not lead; nothing was appended. Retry at `leader_hint` (0: ask again
    later)."""

    code, retryable = "raft.not_leader", True

    def __init__(self, leader_hint: NodeId) -> None:
        super().__init__(leader_hint)
        self.leader_hint = leader_hint

    def __str__(self) -> str:
        where = f"node {self.leader_hint} does" if self.leader_hint else "no leader is known"
        return f"this node does not lead, {where}; retry there"


class TransferringError(RaftError):
    """Leadership is being handed to `target`; nothing was appended. Retry there after a moment."""

    code, retryable = "raft.transferring", True

    def __init__(self, target: NodeId) -> None:
        super().__init__(target)
        self.target = target
        self.leader_hint = target

    def __str__(self) -> str:
        return f"leadership is moving to node {self.target}; retry there"


class BusyError(RaftError):
    """A bounded queue is full; nothing was queued or appended. Retry after a pause."""

    code, retryable = "raft.busy", True

    def __init__(self, what: str, held: int, limit: int) -> None:
        super().__init__(what, held, limit)
        self.what, self.held, self.limit = what, held, limit

    def __str__(self) -> str:
        return f"{self.what}: {self.held} held, limit {self.limit}; retry after a pause"


class ChangeRefusedError(RaftError):
    """A membership change was refused before it entered the log; see `reason`."""

    code, retryable = "raft.change_refused", True

    def __init__(self, node: NodeId, reason: str) -> None:
        super().__init__(node, reason)
        self.node, self.reason = node, reason

    def __str__(self) -> str:
        return f"change of node {self.node} refused: {self.reason}"


class ChangeInvalidError(ChangeRefusedError):
    """A membership change does not apply to the members that there are. Nothing was appended."""

    code, retryable = "raft.change_invalid", False


class TransferRefusedError(RaftError):
    """The hand-over was not started; the leader keeps leading."""

    code, retryable = "raft.transfer_refused", True

    def __init__(self, target: NodeId, reason: str) -> None:
        super().__init__(target, reason)
        self.target, self.reason = target, reason

    def __str__(self) -> str:
        to = f" to node {self.target}" if self.target else ""
        return f"transfer{to} refused: {self.reason}"


class TransferInvalidError(TransferRefusedError):
    """The node that was named is no other voter, or there is none. The leader keeps leading."""

    code, retryable = "raft.transfer_invalid", False


class RecoveryRefusedError(RaftError):
    """An operator asked to accept loss on a node that has nothing to accept."""

    code = "raft.recovery_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"recovery refused: {self.reason}"


class PeerProtocolError(RaftError):
    """A peer sent a message that no correct peer of this cluster sends. Drop the connection; no
    state changed."""

    code = "raft.peer_protocol"

    def __init__(self, peer: NodeId, detail: str) -> None:
        super().__init__(peer, detail)
        self.peer, self.detail = peer, detail

    def __str__(self) -> str:
        return f"node {self.peer} broke the protocol: {self.detail}; drop the connection"


class TermJumpError(PeerProtocolError):
    """A message has a term that no number of elections explains. Refused before it was adopted;
    drop the connection."""

    code = "raft.term_jump"

    def __init__(self, peer: NodeId, term: Term, limit: Term) -> None:
        RaftError.__init__(self, peer, term, limit)
        self.peer, self.term, self.limit = peer, term, limit
        self.detail = (
            f"term {term} is too far ahead, at most {limit} is taken now; if that node is one of "
            f"this cluster, check its term and which hosts can reach its peer port"
        )


class ForeignChainError(PeerProtocolError):
    """Entries do not follow the ones before them here, although their terms say so.

    Either bytes were changed on the way, or the two logs differ where they must not: then a
    repeated append finds the same difference."""

    code = "raft.foreign_chain"

    def __init__(self, peer: NodeId, detail: str, index: Index, content: object) -> None:
        super().__init__(peer, detail)
        self.args = (peer, detail, index, content)
        self.index, self.content = index, content


class HardStateNotSavedError(RaftError):
    """The log could not store term and vote and still holds the old ones; no promise may be made.

    Raised by implementations of `raft.pump.replica.PumpLog`. A *sync* that fails is another matter:
    the content of the disk is then unknown and the process must end.
    """

    code, retryable = "raft.hard_state_not_saved", True

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"term and vote not saved ({self.detail}); free disk space"


class CompactionRefusedError(RaftError):
    """The log may not be cut at `index`: no durable snapshot covers it."""

    code = "raft.compaction_refused"

    def __init__(self, index: Index, limit: Index) -> None:
        super().__init__(index, limit)
        self.index, self.limit = index, limit

    def __str__(self) -> str:
        return (
            f"cannot cut the log through {self.index}: allowed through {self.limit}; snapshot first"
        )
