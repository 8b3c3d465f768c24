"""Common errors of the node itself, with their meaning for the caller.

Owns the names, codes and texts; must not know which code raises them or how they travel
(`node.errors.translation` translates them for clients). As in `store.errors` a class is a
dataclass, whose fields are the values of the constructor, and pickles; a leader hint that is added
later travels in the instance's dictionary.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, dataclass_transform

from raft.messages import NO_NODE, Index, NodeId, Term
from store.errors import Outcome

RETRY_SOON_MS: Final = 20  # About two rounds to a quorum.
RETRY_BUSY_MS: Final = 50
RETRY_ELECTION_MS: Final = 200  # A part of an election time-out: no node leads at the moment.


@dataclass_transform(eq_default=False)
class NodeError(Exception):
    """Root of all errors raised by `node`.

    `code` is stable text for machines, `retryable` says whether the same call may succeed later,
    `outcome` what is known about the effect, `retry_after_ms` after which time to retry (0: at
    once), `text` is what `str` fills with the fields, and with `leader`: who leads.
    """

    code: ClassVar[str] = "node.error"
    retryable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    status: ClassVar[str] = "INTERNAL"
    """Name of the gRPC status."""
    text: ClassVar[str] = ""

    retry_after_ms: int = 0
    leader_id: NodeId = NO_NODE
    """The leader, as far as the answering node knows; NO_NODE: unknown."""
    leader_address: str = ""
    """host:port of the leader's client service; empty: unknown."""
    faulty_records: tuple[int, ...] = ()
    """Records of a refused batch with this fault, by number from 0, if that was found out."""
    is_noted: bool = False
    """Whether the guard has counted it as a refusal."""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())  # Also values given by name, and defaults.

    def __str__(self) -> str:
        return self.text.format(leader=self._leader_text(), **vars(self))

    def with_leader(self, node: NodeId, address: str) -> Self:
        """Add the leader and its address; return the error itself."""
        self.leader_id, self.leader_address = node, address
        return self

    def _leader_text(self) -> str:
        if self.leader_id == NO_NODE:
            return "no leader is known"
        return f"node {self.leader_id} leads" + (
            f" at {self.leader_address}" if self.leader_address else ""
        )


# --- Refusals by the state of the node ---


class NotLeaderError(NodeError):
    """Only the leader answers this call, and this node does not lead. The call had no effect."""

    code, retryable, status = "node.not_leader", True, "UNAVAILABLE"
    text = "this node does not lead, {leader}; ask there"

    def __init__(self, leader_id: NodeId = NO_NODE, leader_address: str = "") -> None:
        super().__init__(leader_id, leader_address)
        self.leader_id, self.leader_address = leader_id, leader_address
        self.retry_after_ms = 0 if leader_id != NO_NODE else RETRY_ELECTION_MS


class NotReadyError(NodeError):
    """This node leads, but has not yet applied all entries of earlier terms, or it has just started
    (term 0). The node will serve soon."""

    code, retryable, status = "node.not_ready", True, "UNAVAILABLE"
    retry_after_ms = RETRY_SOON_MS
    term: Term
    why: str = ""
    """What it waits for at term 0; empty: its start."""

    def __str__(self) -> str:
        if self.why:
            return f"this node {self.why}; try again in a moment, or another"
        if not self.term:
            return "this node is starting and does not serve yet; try again in a moment, or another"
        return f"this node has just begun to lead in term {self.term}; try again in a moment"


class TransferringError(NodeError):
    """Leadership is being handed over. The call had no effect."""

    code, retryable, status = "node.transferring", True, "UNAVAILABLE"
    retry_after_ms = RETRY_SOON_MS
    text = "leadership is moving to node {target}; try again there in a moment"

    def __init__(self, target: NodeId) -> None:
        super().__init__(target)
        self.target = self.leader_id = target


class DrainingError(NodeError):
    """An operator drains this node: it takes no new appends. Reads go on."""

    code, retryable, status = "node.draining", True, "UNAVAILABLE"
    retry_after_ms = RETRY_ELECTION_MS
    text = "this node is draining, {leader}; ask another node"


class ShuttingDownError(NodeError):
    """This node is stopping and has not begun the call. Ask another node."""

    code, retryable, status = "node.shutting_down", True, "UNAVAILABLE"
    retry_after_ms = RETRY_ELECTION_MS
    text = "this node is shutting down, {leader}; ask another node"


class WrongClusterError(NodeError):
    """The call names another cluster. The call had no effect."""

    code, status = "node.wrong_cluster", "FAILED_PRECONDITION"
    text = (
        "this node belongs to cluster {own!r} and not to {asked!r}; check the address or the "
        "cluster id"
    )
    asked: str
    own: str


class WrongModeError(NodeError):
    """The call belongs to the other replication mode. The call had no effect."""

    code, status = "node.wrong_mode", "FAILED_PRECONDITION"
    text = "{what} is not for a cluster with replication = {replication}; {instead}"
    what: str
    replication: str
    instead: str


# --- Limits ---


class BusyError(NodeError):
    """A bounded queue is full. The call had no effect; try again after a pause."""

    code, retryable, status = "node.busy", True, "RESOURCE_EXHAUSTED"
    retry_after_ms = RETRY_BUSY_MS
    text = "{what}: {held} held, the limit is {limit}; slow down and try again"
    what: str
    held: int
    limit: int


class LimitReachedError(NodeError):
    """The cluster holds the maximum of something. The state is unchanged."""

    code, status = "node.limit_reached", "RESOURCE_EXHAUSTED"
    text = (
        "{what}: {count} would be more than the limit of {limit}; delete what is not used, nothing "
        "was changed"
    )
    what: str
    count: int
    limit: int


# --- Outcomes of appends and reads ---


class AppendTimeoutError(NodeError):
    """The caller's time-out passed before the entry was decided. The entry may still be committed.

    An idempotent retry (same producer id and sequence) gets the answer.
    """

    code, retryable, status = "node.timeout", True, "DEADLINE_EXCEEDED"
    outcome = Outcome.UNKNOWN
    text = (
        "not committed within {timeout_ms} ms, it may still be; send it again with the same "
        "producer id and sequence"
    )
    timeout_ms: int
    decided: "asyncio.Future[Any] | None" = None
    """Gets what becomes of a client's batch; for those who must not take it for not applied."""


class BatchUndecidedError(NodeError):
    """As many calls as may wait for one batch do so. The batch itself is not decided yet.

    An idempotent retry gets the answer.
    """

    code, retryable, status = "node.batch_undecided", True, "RESOURCE_EXHAUSTED"
    outcome = Outcome.UNKNOWN
    retry_after_ms = RETRY_BUSY_MS
    text = (
        "sequence {sequence} of producer {producer_id:016x} is not decided yet, and {limit} calls "
        "wait for it, which is the limit; send it again with the same producer id and sequence"
    )
    producer_id: int
    sequence: int
    limit: int


class OutcomeUnknownError(NodeError):
    """This node lost leadership while the entry was pending, and does not know its outcome.

    An idempotent retry gets the answer.
    """

    code, retryable, status = "node.outcome_unknown", True, "UNAVAILABLE"
    outcome = Outcome.UNKNOWN
    retry_after_ms = RETRY_SOON_MS
    index: Index
    term: Term

    def __str__(self) -> str:
        entry = f"entry {self.index}" if self.index >= 0 else "an entry"
        return (
            f"{entry} of term {self.term} was neither committed nor replaced when this node "
            f"stopped leading; send it again with the same producer id and sequence"
        )


class NotAppliedError(NodeError):
    """Another leader's entry replaced this one, so it was never committed. Send it again."""

    code, retryable, status = "node.not_applied", True, "ABORTED"
    text = (
        "entry {index} of term {term} was replaced by a newer leader's, nothing was appended; send "
        "it again"
    )
    index: Index
    term: Term


class ReadFailedError(NodeError):
    """This node lost leadership before the read was confirmed. Ask the new leader."""

    code, retryable, status = "node.read_failed", True, "UNAVAILABLE"
    retry_after_ms = RETRY_SOON_MS
    text = "this node stopped leading during the read, {leader}; ask there"
    leader_id: NodeId = NO_NODE


class ReadTimeoutError(NodeError):
    """The time-out passed before a quorum confirmed the read or this replica applied the index."""

    code, retryable, status = "node.read_timeout", True, "DEADLINE_EXCEEDED"
    retry_after_ms = RETRY_SOON_MS
    text = "{what} within {timeout_ms} ms; ask again or ask another node"
    what: str
    timeout_ms: int


# --- Idempotent producers ---


class OutOfSequenceError(NodeError):
    """A batch came before a batch that must precede it. The log is unchanged.

    Send again, in order, from the first batch without a receipt.
    """

    code, retryable, status = "node.out_of_sequence", True, "FAILED_PRECONDITION"
    text = (
        "producer {producer_id:016x} sent sequence {sequence}, expected is {expected}; send again "
        "in order from there"
    )
    producer_id: int
    expected: int
    sequence: int


class UnknownProducerError(NodeError):
    """The node does not know the producer (any more), so a duplicate would go unnoticed.

    Begin again with a new producer id and sequence 0; check which batches were acked before.
    """

    code, status = "node.unknown_producer", "FAILED_PRECONDITION"
    text = (
        "producer {producer_id:016x} is not known here, but sent sequence {sequence}; begin again "
        "with a new producer id"
    )
    producer_id: int
    sequence: int


class DuplicateExpiredError(NodeError):
    """The batch is in the log already, but is too old for its receipt to be given again."""

    code, status = "node.duplicate_expired", "ALREADY_EXISTS"
    outcome = Outcome.APPLIED
    text = (
        "sequence {sequence} of producer {producer_id:016x} was appended before, receipts are kept "
        "from {first_kept} on; count it as sent"
    )
    producer_id: int
    sequence: int
    first_kept: int


class SequenceReusedError(NodeError):
    """Another batch is in the log under this number of the producer. Nothing of this one is stored.

    Send it under a number, or a producer id, that was not used.
    """

    code, status = "node.sequence_reused", "ALREADY_EXISTS"
    text = (
        "sequence {sequence} of producer {producer_id:016x} has other records in the log "
        "({stored_count}, here {record_count}), or came with other offsets or delays; send these "
        "under an id or a sequence of their own"
    )
    producer_id: int
    sequence: int
    stored_count: int
    record_count: int


class ProducerFencedError(NodeError):
    """Another process has claimed the name of this producer since, and only that one may append
    and end transactions.

    The log is unchanged; no later append of this process will succeed.
    """

    code, status = "node.producer_fenced", "FAILED_PRECONDITION"
    text = (
        "incarnation {number} of producer {name!r} is not the last one, which is {last}; end this "
        "process, or use another name"
    )
    name: str
    number: int
    last: int


# --- Topics, queues, groups, messages ---


class UnknownTopicError(NodeError):
    """The cluster has no such topic: it was never created, or is deleted."""

    code, status = "node.unknown_topic", "NOT_FOUND"
    text = "topic {topic!r} does not exist; check the name, or run 'qlog topic create {topic}'"
    topic: str


class TopicExistsError(NodeError):
    """The topic to be created exists already. The state is unchanged."""

    code, status = "node.topic_exists", "ALREADY_EXISTS"
    text = (
        "topic {topic!r} exists with {queue_count} queues; use it, take another name, or run 'qlog "
        "topic create {topic} --queues N --exist-ok' to have more"
    )
    topic: str
    queue_count: int


class ReservedTopicError(NodeError):
    """System topics belong to the cluster; clients may at most read them, and groups only some."""

    code, status = "node.reserved_topic", "PERMISSION_DENIED"
    text = "topic {topic!r} belongs to the cluster; take another name"
    topic: str


class TopicNotWritableError(NodeError):
    """The topic's permission forbids appends. The log is unchanged."""

    code, status = "node.topic_not_writable", "PERMISSION_DENIED"
    text = (
        "topic {topic!r} has permission {permission}, which forbids writing; run 'qlog topic "
        "create {topic} --permission rw --exist-ok' to change it"
    )
    topic: str
    permission: int


class TopicNotReadableError(NodeError):
    """The topic's permission forbids reading."""

    code, status = "node.topic_not_readable", "PERMISSION_DENIED"
    text = (
        "topic {topic!r} has permission {permission}, which forbids reading; run 'qlog topic "
        "create {topic} --permission rw --exist-ok' to change it"
    )
    topic: str
    permission: int


class UnknownQueueError(NodeError):
    """The topic has no such queue."""

    code, status = "node.unknown_queue", "NOT_FOUND"
    topic: str
    queue_id: int
    queue_count: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has no queue {self.queue_id}; use 0 to {self.queue_count - 1}, "
            f"or run 'qlog topic create {self.topic} --queues N --exist-ok' to have more"
        )


class UnknownGroupError(NodeError):
    """No offset was ever committed for this group, and the group has no member."""

    code, status = "node.unknown_group", "NOT_FOUND"
    text = "group {group!r} does not exist; check the name: 'qlog group list' has all"
    group: str


class GroupNotEmptyError(NodeError):
    """The group has members that are alive. The state is unchanged."""

    code, status = "node.group_not_empty", "FAILED_PRECONDITION"
    text = (
        "group {group!r} has members, {client_id!r} among them; stop them first, or wait up to "
        "60 s for one that crashed"
    )
    group: str
    client_id: str


class MessageNotFoundError(NodeError):
    """No committed message has this id; it may have expired. A user that may not read it gets the
    same answer."""

    code, status = "node.message_not_found", "NOT_FOUND"
    text = "no message that you may read has the id {message_id!r}; check the id and your rights"
    message_id: str


# --- Bad input ---


class UnknownCommandError(NodeError):
    """The log holds a command that this version does not know. The node must stop."""

    code = "node.unknown_command"
    text = (
        "the command at log position {position} is of a newer version; upgrade this node, then "
        "start it again"
    )
    position: int


class NewerLevelError(NodeError):
    """The group works at a level that this build does not have, since an upgrade was finalized. The
    node must stop; its log and state stay as they are."""

    code = "node.newer_level"
    text = (
        "the group works at level {level}, this build has level {own}: an upgrade was finalized; "
        "start this node with the newer version"
    )
    level: int
    own: int


class UpgradeRefusedError(NodeError):
    """The level was not raised: not all members are there with a newer build."""

    code, status = "node.upgrade_refused", "FAILED_PRECONDITION"
    text = "the upgrade is not finalized: {reason}; see 'qlog cluster upgrade status'"
    reason: str


class StateDivergedError(NodeError):
    """The replicated state of this node differs from that of a majority, so it answers nothing from
    it. The call had no effect; ask another node."""

    code, retryable, status = "node.state_diverged", True, "UNAVAILABLE"
    retry_after_ms = RETRY_ELECTION_MS
    text = "the state of this node is not that of a majority ({reason}); ask another one"
    reason: str


class BadRequestError(NodeError):
    """A field of the request is wrong. The call had no effect."""

    code, status = "node.bad_request", "INVALID_ARGUMENT"
    text = "{field} is {value}, expected {expected}; correct the request"
    field: str
    expected: str
    value: str
