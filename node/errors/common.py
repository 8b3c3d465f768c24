"""Common errors of the node itself, with their meaning for the caller.

Owns the names, codes and texts; must not know which code raises them or how they travel
(`node.errors.translation` translates them for clients). As in `store.errors` the positional values
go to `super().__init__` and `__str__` builds the text, so all errors pickle; a leader hint that is
added later travels in the instance's dictionary.
"""

from typing import ClassVar, Final, Self

from raft.messages import NO_NODE, Index, NodeId, Term
from store.errors import Outcome

RETRY_SOON_MS: Final = 20  # About two rounds to a quorum.
RETRY_BUSY_MS: Final = 50
RETRY_ELECTION_MS: Final = 200  # A part of an election time-out: no node leads at the moment.


class NodeError(Exception):
    """Root of all errors raised by `node`.

    `code` is stable text for machines, `retryable` says whether the same call may succeed later,
    `outcome` what is known about the effect, `retry_after_ms` after which time to retry (0: at
    once).
    """

    code: ClassVar[str] = "node.error"
    retryable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    status: ClassVar[str] = "INTERNAL"
    """Name of the gRPC status."""

    retry_after_ms: int = 0
    leader_id: NodeId = NO_NODE
    """The leader, as far as the answering node knows; NO_NODE: unknown."""
    leader_address: str = ""
    """host:port of the leader's client service; empty: unknown."""
    faulty_records: tuple[int, ...] = ()
    """Records of a refused batch with this fault, by number from 0, if that was found out."""

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

    def __init__(self, leader_id: NodeId = NO_NODE, leader_address: str = "") -> None:
        super().__init__(leader_id, leader_address)
        self.leader_id, self.leader_address = leader_id, leader_address
        self.retry_after_ms = 0 if leader_id != NO_NODE else RETRY_ELECTION_MS

    def __str__(self) -> str:
        return f"this node does not lead, {self._leader_text()}; ask there"


class NotReadyError(NodeError):
    """This node leads, but has not yet applied all entries of earlier terms, or it has just started
    (term 0). The node will serve soon."""

    code, retryable, status = "node.not_ready", True, "UNAVAILABLE"
    retry_after_ms = RETRY_SOON_MS

    def __init__(self, term: Term) -> None:
        super().__init__(term)
        self.term = term

    def __str__(self) -> str:
        if not self.term:
            return "this node is starting and does not serve yet; try again in a moment, or another"
        return f"this node has just begun to lead in term {self.term}; try again in a moment"


class TransferringError(NodeError):
    """Leadership is being handed over. The call had no effect."""

    code, retryable, status = "node.transferring", True, "UNAVAILABLE"
    retry_after_ms = RETRY_SOON_MS

    def __init__(self, target: NodeId) -> None:
        super().__init__(target)
        self.target = self.leader_id = target

    def __str__(self) -> str:
        return f"leadership is moving to node {self.target}; try again there in a moment"


class DrainingError(NodeError):
    """An operator drains this node: it takes no new appends. Reads go on."""

    code, retryable, status = "node.draining", True, "UNAVAILABLE"
    retry_after_ms = RETRY_ELECTION_MS

    def __str__(self) -> str:
        return f"this node is draining, {self._leader_text()}; ask another node"


class ShuttingDownError(NodeError):
    """This node is stopping and has not begun the call. Ask another node."""

    code, retryable, status = "node.shutting_down", True, "UNAVAILABLE"
    retry_after_ms = RETRY_ELECTION_MS

    def __str__(self) -> str:
        return f"this node is shutting down, {self._leader_text()}; ask another node"


class WrongClusterError(NodeError):
    """The call names another cluster. The call had no effect."""

    code, status = "node.wrong_cluster", "FAILED_PRECONDITION"

    def __init__(self, asked: str, own: str) -> None:
        super().__init__(asked, own)
        self.asked, self.own = asked, own

    def __str__(self) -> str:
        return (
            f"this node belongs to cluster {self.own!r} and not to {self.asked!r}; "
            f"check the address or the cluster id"
        )


class WrongModeError(NodeError):
    """The call belongs to the other replication mode. The call had no effect."""

    code, status = "node.wrong_mode", "FAILED_PRECONDITION"

    def __init__(self, call: str, replication: str) -> None:
        super().__init__(call, replication)
        self.call, self.replication = call, replication

    def __str__(self) -> str:
        return (
            f"{self.call} has no meaning with replication = {self.replication}; "
            f"see docs/operations.md for what does the same"
        )


# --- Limits ---


class BusyError(NodeError):
    """A bounded queue is full. The call had no effect; try again after a pause."""

    code, retryable, status = "node.busy", True, "RESOURCE_EXHAUSTED"
    retry_after_ms = RETRY_BUSY_MS

    def __init__(self, what: str, held: int, limit: int) -> None:
        super().__init__(what, held, limit)
        self.what, self.held, self.limit = what, held, limit

    def __str__(self) -> str:
        return f"{self.what}: {self.held} held, the limit is {self.limit}; slow down and try again"


class LimitReachedError(NodeError):
    """The cluster holds the maximum of something. The state is unchanged."""

    code, status = "node.limit_reached", "RESOURCE_EXHAUSTED"

    def __init__(self, what: str, count: int, limit: int) -> None:
        super().__init__(what, count, limit)
        self.what, self.count, self.limit = what, count, limit

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.count} would be more than the limit of {self.limit}; "
            f"delete what is not used, nothing was changed"
        )


# --- Outcomes of appends and reads ---


class AppendTimeoutError(NodeError):
    """The caller's time-out passed before the entry was decided. The entry may still be committed.

    An idempotent retry (same producer id and sequence) gets the answer.
    """

    code, retryable, status = "node.timeout", True, "DEADLINE_EXCEEDED"
    outcome = Outcome.UNKNOWN

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return (
            f"not committed within {self.timeout_ms} ms, it may still be; "
            f"send it again with the same producer id and sequence"
        )


class OutcomeUnknownError(NodeError):
    """This node lost leadership while the entry was pending, and does not know its outcome.

    An idempotent retry gets the answer.
    """

    code, retryable, status = "node.outcome_unknown", True, "UNAVAILABLE"
    outcome = Outcome.UNKNOWN
    retry_after_ms = RETRY_SOON_MS

    def __init__(self, index: Index, term: Term) -> None:
        super().__init__(index, term)
        self.index, self.term = index, term

    def __str__(self) -> str:
        entry = f"entry {self.index}" if self.index >= 0 else "an entry"
        return (
            f"{entry} of term {self.term} was neither committed nor replaced when this node "
            f"stopped leading; send it again with the same producer id and sequence"
        )


class NotAppliedError(NodeError):
    """Another leader's entry replaced this one, so it was never committed. Send it again."""

    code, retryable, status = "node.not_applied", True, "ABORTED"

    def __init__(self, index: Index, term: Term) -> None:
        super().__init__(index, term)
        self.index, self.term = index, term

    def __str__(self) -> str:
        return (
            f"entry {self.index} of term {self.term} was replaced by a newer leader's, nothing was "
            f"appended; send it again"
        )


class ReadFailedError(NodeError):
    """This node lost leadership before the read was confirmed. Ask the new leader."""

    code, retryable, status = "node.read_failed", True, "UNAVAILABLE"
    retry_after_ms = RETRY_SOON_MS

    def __init__(self, leader_id: NodeId = NO_NODE) -> None:
        super().__init__(leader_id)
        self.leader_id = leader_id

    def __str__(self) -> str:
        return f"this node stopped leading during the read, {self._leader_text()}; ask there"


class ReadTimeoutError(NodeError):
    """The time-out passed before a quorum confirmed the read or this replica applied the index."""

    code, retryable, status = "node.read_timeout", True, "DEADLINE_EXCEEDED"
    retry_after_ms = RETRY_SOON_MS

    def __init__(self, what: str, timeout_ms: int) -> None:
        super().__init__(what, timeout_ms)
        self.what, self.timeout_ms = what, timeout_ms

    def __str__(self) -> str:
        return f"{self.what} within {self.timeout_ms} ms; ask again or ask another node"


# --- Idempotent producers ---


class OutOfSequenceError(NodeError):
    """A batch came before a batch that must precede it. The log is unchanged.

    Send again, in order, from the first batch without a receipt.
    """

    code, retryable, status = "node.out_of_sequence", True, "FAILED_PRECONDITION"

    def __init__(self, producer_id: int, expected: int, sequence: int) -> None:
        super().__init__(producer_id, expected, sequence)
        self.producer_id, self.expected, self.sequence = producer_id, expected, sequence

    def __str__(self) -> str:
        return (
            f"producer {self.producer_id:016x} sent sequence {self.sequence}, expected is "
            f"{self.expected}; send again in order from there"
        )


class UnknownProducerError(NodeError):
    """The node does not know the producer (any more), so a duplicate would go unnoticed.

    Begin again with a new producer id and sequence 0; check which batches were acked before.
    """

    code, status = "node.unknown_producer", "FAILED_PRECONDITION"

    def __init__(self, producer_id: int, sequence: int) -> None:
        super().__init__(producer_id, sequence)
        self.producer_id, self.sequence = producer_id, sequence

    def __str__(self) -> str:
        return (
            f"producer {self.producer_id:016x} is not known here, but sent sequence "
            f"{self.sequence}; begin again with a new producer id"
        )


class DuplicateExpiredError(NodeError):
    """The batch is in the log already, but is too old for its receipt to be given again."""

    code, status = "node.duplicate_expired", "ALREADY_EXISTS"
    outcome = Outcome.APPLIED

    def __init__(self, producer_id: int, sequence: int, first_kept: int) -> None:
        super().__init__(producer_id, sequence, first_kept)
        self.producer_id, self.sequence, self.first_kept = producer_id, sequence, first_kept

    def __str__(self) -> str:
        return (
            f"sequence {self.sequence} of producer {self.producer_id:016x} was appended before, "
            f"receipts are kept from {self.first_kept} on; count it as sent"
        )


# --- Topics, queues, groups, messages ---


class UnknownTopicError(NodeError):
    """The node that was asked has no such topic."""

    code, status = "node.unknown_topic", "NOT_FOUND"

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.topic!r} does not exist; run 'qlog topic create {self.topic}'"


class TopicExistsError(NodeError):
    """The topic to be created exists already. The state is unchanged."""

    code, status = "node.topic_exists", "ALREADY_EXISTS"

    def __init__(self, topic: str, queue_count: int) -> None:
        super().__init__(topic, queue_count)
        self.topic, self.queue_count = topic, queue_count

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} exists with {self.queue_count} queues; use it, or take another "
            f"name"
        )


class ReservedTopicError(NodeError):
    """System topics belong to the cluster; clients may at most read them, and groups only some."""

    code, status = "node.reserved_topic", "PERMISSION_DENIED"

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.topic!r} belongs to the cluster; take another name"


class TopicNotWritableError(NodeError):
    """The topic's permission forbids appends. The log is unchanged."""

    code, status = "node.topic_not_writable", "PERMISSION_DENIED"

    def __init__(self, topic: str, permission: int) -> None:
        super().__init__(topic, permission)
        self.topic, self.permission = topic, permission

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has permission {self.permission}, which forbids writing; "
            f"run 'qlog topic create {self.topic} --permission rw --exist-ok' to change it"
        )


class TopicNotReadableError(NodeError):
    """The topic's permission forbids reading."""

    code, status = "node.topic_not_readable", "PERMISSION_DENIED"

    def __init__(self, topic: str, permission: int) -> None:
        super().__init__(topic, permission)
        self.topic, self.permission = topic, permission

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has permission {self.permission}, which forbids reading; "
            f"run 'qlog topic create {self.topic} --permission rw --exist-ok' to change it"
        )


class UnknownQueueError(NodeError):
    """The topic has no such queue."""

    code, status = "node.unknown_queue", "NOT_FOUND"

    def __init__(self, topic: str, queue_id: int, queue_count: int) -> None:
        super().__init__(topic, queue_id, queue_count)
        self.topic, self.queue_id, self.queue_count = topic, queue_id, queue_count

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has no queue {self.queue_id}; use 0 to {self.queue_count - 1}, "
            f"or run 'qlog topic create {self.topic} --queues N --exist-ok' to have more"
        )


class UnknownGroupError(NodeError):
    """No offset was ever committed for this group, and the group has no member."""

    code, status = "node.unknown_group", "NOT_FOUND"

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return f"group {self.group!r} does not exist; its first commit creates it"


class GroupNotEmptyError(NodeError):
    """The group has members that are alive. The state is unchanged."""

    code, status = "node.group_not_empty", "FAILED_PRECONDITION"

    def __init__(self, group: str, member_count: int) -> None:
        super().__init__(group, member_count)
        self.group, self.member_count = group, member_count

    def __str__(self) -> str:
        return f"group {self.group!r} has {self.member_count} members; stop them first"


class MessageNotFoundError(NodeError):
    """No committed message has this id; it may have expired."""

    code, status = "node.message_not_found", "NOT_FOUND"

    def __init__(self, message_id: str) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"no message has the id {self.message_id!r}; it may have expired, check the id"


# --- Bad input ---


class UnknownCommandError(NodeError):
    """The log holds a command that this version does not know. The node must stop."""

    code = "node.unknown_command"

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position

    def __str__(self) -> str:
        return (
            f"the command at log position {self.position} is of a newer version; "
            f"upgrade this node, then start it again"
        )


class StateDivergedError(NodeError):
    """The replicated state of this node differs from that of a majority, so it answers nothing from
    it. The call had no effect; ask another node."""

    code, retryable, status = "node.state_diverged", True, "UNAVAILABLE"
    retry_after_ms = RETRY_ELECTION_MS

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the state of this node is not that of a majority ({self.reason}); ask another one"


class BadRequestError(NodeError):
    """A field of the request is wrong. The call had no effect."""

    code, status = "node.bad_request", "INVALID_ARGUMENT"

    def __init__(self, field: str, expected: str, value: str) -> None:
        super().__init__(field, expected, value)
        self.field, self.expected, self.value = field, expected, value

    def __str__(self) -> str:
        return f"{self.field} is {self.value}, expected {self.expected}; correct the request"
