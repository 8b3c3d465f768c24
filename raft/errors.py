"""Typed errors of the consensus layer. Each tells the known outcome of the caller's request.

Only a refused call raises; a later loss of leadership is reported through the waiter, never by
raising. All errors pickle. A class is a dataclass, which `RaftError` makes of it: its fields are
the values of the constructor, and `text` has their names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, dataclass_transform

from raft.messages import Index, NodeId, Term


class Outcome(Enum):
    """Effect of a request, as far as the answering node can know it."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


@dataclass_transform(eq_default=False)
class RaftError(Exception):
    """Root of all errors raised by `raft`; `text` is what `str` fills with the fields."""

    code: ClassVar[str] = "raft.error"
    retryable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    text: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())  # Also values given by name, and defaults.

    def __str__(self) -> str:
        return self.text.format_map(vars(self))


class NotLeaderError(RaftError):
    """This node does not lead; nothing was appended. Retry at `leader_hint` (0: ask again
    later)."""

    code, retryable = "raft.not_leader", True
    leader_hint: NodeId

    def __str__(self) -> str:
        where = f"node {self.leader_hint} does" if self.leader_hint else "no leader is known"
        return f"this node does not lead, {where}; retry there"


class TransferringError(RaftError):
    """Leadership is being handed to `target`; nothing was appended. Retry there after a moment."""

    code, retryable = "raft.transferring", True
    text = "leadership is moving to node {target}; retry there"

    def __init__(self, target: NodeId) -> None:
        super().__init__(target)
        self.target = target
        self.leader_hint = target


class BusyError(RaftError):
    """A bounded queue is full; nothing was queued or appended. Retry after a pause."""

    code, retryable = "raft.busy", True
    text = "{what}: {held} held, limit {limit}; retry after a pause"
    what: str
    held: int
    limit: int


class ChangeRefusedError(RaftError):
    """A membership change was refused before it entered the log; see `reason`."""

    code, retryable = "raft.change_refused", True
    text = "change of node {node} refused: {reason}"
    node: NodeId
    reason: str


class ChangeInvalidError(ChangeRefusedError):
    """A membership change does not apply to the members that there are. Nothing was appended."""

    code, retryable = "raft.change_invalid", False
    text = "change of node {node} refused: {reason}; look at the list of members first"


class TransferRefusedError(RaftError):
    """The hand-over was not started; the leader keeps leading."""

    code, retryable = "raft.transfer_refused", True
    target: NodeId
    reason: str

    def __str__(self) -> str:
        to = f" to node {self.target}" if self.target else ""
        return f"transfer{to} refused: {self.reason}"


class TransferInvalidError(TransferRefusedError):
    """The node that was named is no other voter, or there is none. The leader keeps leading."""

    code, retryable = "raft.transfer_invalid", False


class RecoveryRefusedError(RaftError):
    """An operator asked to accept loss on a node that has nothing to accept."""

    code = "raft.recovery_refused"
    text = "recovery refused: {reason}"
    reason: str


class PeerProtocolError(RaftError):
    """A peer sent a message that no correct peer of this cluster sends. Drop the connection; no
    state changed."""

    code = "raft.peer_protocol"
    text = "node {peer} broke the protocol: {detail}; drop the connection"
    peer: NodeId
    detail: str


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
    index: Index
    content: object


class HardStateNotSavedError(RaftError):
    """The log could not store term and vote and still holds the old ones; no promise may be made.

    Raised by implementations of `raft.pump.replica.PumpLog`. A *sync* that fails is another matter:
    the content of the disk is then unknown and the process must end.
    """

    code, retryable = "raft.hard_state_not_saved", True
    text = "term and vote not saved ({detail}); free disk space"
    detail: str


class CompactionRefusedError(RaftError):
    """The log may not be cut at `index`: no durable snapshot covers it."""

    code = "raft.compaction_refused"
    text = "cannot cut the log through {index}: allowed through {limit}; snapshot first"
    index: Index
    limit: Index
