"""The interface between core and shell: the core's output and its initial state.

The order of the fields of `Ready` is the order of the work. The type shows that no promise is made
before it is durable: `send_now` promises nothing about this node's disk, `send_after_sync` does."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from raft.messages import (
    NO_INDEX,
    NO_NODE,
    NO_TERM,
    Configuration,
    ConfigurationAt,
    Index,
    Message,
    NodeId,
    SnapshotMeta,
    Standing,
    Term,
    TermRun,
)
from raft.transitions import Role


class EntryKind(IntEnum):
    """The `channel` field of an entry (design 4.2)."""

    DATA = 0
    NO_OP = 1
    CONFIGURATION = 2


class HardState(NamedTuple):
    """State to make durable before any message that reveals it leaves. Changes at elections only.

    The commit index is not part of it: it may restart low (Raft thesis 3.8), and saving it would
    make every commit a meta write."""

    term: Term = NO_TERM
    vote: NodeId = NO_NODE
    standing: Standing = Standing.FULL
    incarnation: int = 0
    """Number of times this node started without full memory. Replies carry it, so that the leader
    can tell an ack given before a power loss from one given after it."""


class InitialState(NamedTuple):
    """State a restarted node found on its disk. Default values: an empty disk of a new cluster."""

    hard_state: HardState = HardState()
    base_index: Index = NO_INDEX
    """Index just before the first entry of the log, that is the last one a snapshot covers."""
    base_term: Term = NO_TERM
    last_index: Index = NO_INDEX
    runs: tuple[TermRun, ...] = ()
    """Term runs that cover exactly (base_index, last_index]."""
    configurations: tuple[ConfigurationAt, ...] = ()
    """Oldest first: the one in force at base_index, then those of configuration entries in the log.
    Empty: this node knows no cluster yet and waits to be added as a learner."""
    commit: Index = NO_INDEX
    """A hint, clamped to the log; may be lower than the truth."""
    applied: Index = NO_INDEX
    synced: Index | None = None
    """Last entry known to be durable. None: all of the log, as after a restart that synced it."""
    snapshot: SnapshotMeta | None = None
    """The newest durable snapshot, if any."""


def bootstrap_state(voters: tuple[NodeId, ...], learners: tuple[NodeId, ...] = ()) -> InitialState:
    """Return the state of a node of a brand-new cluster with this membership."""
    configuration = Configuration(tuple(sorted(voters)), tuple(sorted(learners)))
    return InitialState(configurations=(ConfigurationAt(NO_INDEX, configuration),))


def joining_state(*, incarnation: int = 1) -> InitialState:
    """Return the state of a node with an empty disk that joins an existing cluster.

    If a disk under this identity may be replaced more than once, `incarnation` must be higher than
    any used for it before (a wall clock will do): a leader takes two empty disks of one number for
    the same disk, and believes the second to hold the entries that the first has acked.

    The node never votes or counts until a leader that knows it as a learner has brought it up to
    date, so a wiped voter that comes back under its old identity cannot vote twice (fault-matrix
    R29)."""
    return InitialState(hard_state=HardState(standing=Standing.JOINING, incarnation=incarnation))


def recovering_state(initial: InitialState) -> InitialState:
    """Return `initial` marked as memory lost, for a node whose unsynced writes may be gone.

    The caller persists the new hard state before the core sends anything; a restart of the process
    within the same boot then still finds the node recovering (design 4.5).
    """
    old = initial.hard_state
    is_out = old.standing in (Standing.JOINING, Standing.DIVERGED)
    standing = old.standing if is_out else Standing.RECOVERING
    hard_state = HardState(old.term, old.vote, standing, old.incarnation + 1)
    return initial._replace(hard_state=hard_state)


class OwnEntry(NamedTuple):
    """An entry that the core itself put into the log; the shell writes its body."""

    index: Index  # type: ignore[assignment]  # Hides tuple.index, which is not needed here.
    term: Term
    kind: EntryKind
    configuration: Configuration | None


class ReadConfirmed(NamedTuple):
    """Permission to serve read `read_id` once everything up to `index` is applied."""

    read_id: int
    index: Index  # type: ignore[assignment]  # Hides tuple.index, which is not needed here.


class RoleChange(NamedTuple):
    """Change of this node's role, term or known leader. For metrics, redirects and waiters."""

    role: Role
    term: Term
    leader: NodeId
    reason: str


class EntryPositions(Protocol):
    """The core's one question to the stored log: how many bytes lie between two indexes."""

    def position_of(self, index: Index, /) -> int:
        """Return the position at which entry `index` starts; for last index + 1 the end of the log.

        Called only on a leader, for indexes in (base_index, last_written + 1]. Must not block: the
        core calls it a few times per message sent. Grows with the index.
        """


@dataclass(slots=True, eq=False)
class Ready:
    """Work of the shell for the core. Taken once, done in the order of the fields, then
    `advance()`."""

    hard_state: HardState | None = None
    """Hard state to store before all else. None: unchanged since the last Ready."""

    snapshot: SnapshotMeta | None = None
    """Snapshot, received with the message just stepped, that replaces state machine and whole
    log, atomically: temporary name, sync, rename, sync of the directory."""

    truncate_from: Index = NO_INDEX
    """First entry to drop, with all after it. NO_INDEX: nothing to drop."""

    write_lo: Index = NO_INDEX
    write_hi: Index = NO_INDEX
    """Write entries [write_lo, write_hi) from the payload of the append just stepped, without
    its part below write_lo, which is stored already. Both NO_INDEX: nothing."""

    own_entries: list[OwnEntry] = field(default_factory=list)
    """No-op or configuration entries to encode and write. Proposed data is not listed: the
    shell writes it when `propose` returns."""

    send_now: list[Message] = field(default_factory=list)
    """Messages to send at once: they promise nothing about this node's disk."""

    send_after_sync: list[Message] = field(default_factory=list)
    """Votes, requests for votes and append acks: wait until all of the above is durable. Then
    drop messages that are no longer of the core's term and send the rest."""

    commit_lo: Index = NO_INDEX
    commit_hi: Index = NO_INDEX
    """Apply entries [commit_lo, commit_hi) in order, each exactly once; then `applied_to`. May
    be empty."""

    reads: list[ReadConfirmed] = field(default_factory=list)
    reads_failed: list[int] = field(default_factory=list)
    """Reads that this node can no longer confirm, since it lost leadership. No read was
    served."""

    role_changes: list[RoleChange] = field(default_factory=list)

    loss_from: Index = NO_INDEX
    """First index at which acked records may be gone: a recovery election or an operator
    accepted the loss (design 4.5). A record reported as not applied there may be back, since
    that report rested on records that are gone. NO_INDEX: nothing to report."""
