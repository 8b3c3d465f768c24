"""Messages between replicas: six kinds, as named tuples.

Owns the vocabulary of the wire; knows neither encoding nor transport. A heartbeat is an append with
an empty range, so there is one consistency check and one place that moves the commit index
(fault-matrix R12). Messages never carry payload: an append names an index range and the term runs
that cover it, and the shell adds the bytes. Named tuples because they cost 0.3 us to build against
0.6 us for a frozen dataclass, compare by value, and cannot be changed after sending.

Every message starts with the same four fields: `group` (cluster identity), `sender`, `to` and
`term`. `term` is always the sender's real current term, also in a pre-vote, so "a higher term wins"
is one rule."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

# Plain aliases instead of NewType: `index + 1` of a NewType is an int again, so each arithmetic
# step on the hot path would pay a call to wrap it.
NodeId: TypeAlias = int
Term: TypeAlias = int
Index: TypeAlias = int
Round: TypeAlias = int

NO_NODE: NodeId = 0  # Node ids are positive.
NO_INDEX: Index = -1  # The first entry of a log has index 0.
NO_TERM: Term = 0  # The term before any election, and the term of the empty prefix.

# One stretch of consecutive entries of equal term: (index of its first entry, term).
TermRun: TypeAlias = tuple[Index, Term]


class Standing(IntEnum):
    """Degree to which other nodes may trust this node's memory. Persisted with term and vote."""

    FULL = 0
    """All promises this node ever made are still on its disk."""

    RECOVERING = 1
    """The machine lost power with unsynced entries: acks given before may be broken (design
    4.5)."""

    JOINING = 2
    """The disk started empty, or with an old copy of itself. Only a learner may leave this
    standing; a voter in it has forgotten its promises."""

    DIVERGED = 3
    """A leader's log contradicts entries committed here. The node keeps its log as evidence, and
    takes part in nothing, permanently: a person has to decide which history to go on with."""


class Refusal(IntEnum):
    """Why a vote, pre-vote or append was refused. For transcripts and metrics; decides nothing."""

    NONE = 0
    OLD_TERM = 1
    ALREADY_VOTED = 2
    OLD_LOG = 3
    LEADER_ALIVE = 4
    NO_STANDING = 5
    NO_MATCH = 6
    HISTORY_CONFLICT = 7
    """The candidate's log contradicts entries committed here."""


class Configuration(NamedTuple):
    """Members of the cluster. Both tuples are sorted, disjoint and free of duplicates."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()


class ConfigurationAt(NamedTuple):
    """A configuration and the index of the entry that brought it (NO_INDEX: given at bootstrap)."""

    index: Index  # type: ignore[assignment]  # Hides tuple.index, which is not needed here.
    configuration: Configuration


class SnapshotMeta(NamedTuple):
    """Description of a snapshot: the state after applying all entries through `index`."""

    index: Index  # type: ignore[assignment]  # Hides tuple.index, which is not needed here.
    term: Term
    configuration_at: ConfigurationAt


class VoteRequest(NamedTuple):
    """Request for a vote, or with `pre` the question whether a vote would be given."""

    group: str
    sender: NodeId
    to: NodeId
    term: Term
    vote_term: Term
    """The term the vote is for: equal to `term` in a real request, `term + 1` in a pre-vote."""
    last_index: Index
    last_term: Term
    pre: bool
    transfer: bool
    """The current leader asked for this election, so a recent message of it is no reason to
    refuse."""
    recovery: bool
    """Election among nodes that all lost power: needs a grant from every voter (design 4.5)."""


class VoteReply(NamedTuple):
    group: str
    sender: NodeId
    to: NodeId
    term: Term
    vote_term: Term
    granted: bool
    pre: bool
    recovery: bool
    refusal: Refusal
    leader: NodeId
    """The leader of `term` if the sender knows it, else NO_NODE."""


class AppendRequest(NamedTuple):
    """Entries `[prev_index + 1, hi)`, which follow the entry (prev_index, prev_term). An empty
    range is a heartbeat."""

    group: str
    sender: NodeId
    to: NodeId
    term: Term
    prev_index: Index
    prev_term: Term
    hi: Index
    runs: tuple[TermRun, ...]
    """Term runs that cover exactly `[prev_index + 1, hi)`; empty if and only if the range is."""
    commit: Index
    round: Round
    """The newest confirmation round of the leader when it sent this; echoed in the reply."""
    configurations: tuple[ConfigurationAt, ...]
    """The configuration entries inside the range: the core sees no payload but must see these."""
    admitted: int
    """Incarnation of the receiver that the leader found caught up; 0 for none. Ends recovery."""
    prev_chain: int | None = None
    """Content of the leader's log through `prev_index`, as one number; None: not given. For the
    pump, which adds it to heartbeats and compares it."""

    def without_entries(self) -> AppendRequest:
        """Return a heartbeat that checks only the empty prefix, which always holds."""
        return self._replace(
            prev_index=NO_INDEX,
            prev_term=NO_TERM,
            hi=0,
            runs=(),
            configurations=(),
            prev_chain=None,
        )


class AppendReply(NamedTuple):
    """Answer to an append or a snapshot."""

    group: str
    sender: NodeId
    to: NodeId
    term: Term
    match: Index
    """Every entry up to here equals the leader's and is durable here. NO_INDEX: no claim."""
    refusal: Refusal
    """NONE, OLD_TERM or NO_MATCH."""
    refused_prev: Index
    """With NO_MATCH: the refused prev_index, by which the leader recognises a stale refusal."""
    hint_last: Index
    """With NO_MATCH: the last index below or at refused_prev that the sender has."""
    hint_runs: tuple[TermRun, ...]
    """With NO_MATCH: the sender's newest term runs up to hint_last, oldest first, bounded."""
    round: Round
    standing: Standing
    incarnation: int


class InstallSnapshot(NamedTuple):
    """Order to replace a follower's log by a snapshot, since the leader's log no longer has the
    needed entries. The shell streams the state itself.

    The receiving shell hands this to the core only once the whole state has arrived and was
    verified."""

    group: str
    sender: NodeId
    to: NodeId
    term: Term
    meta: SnapshotMeta
    round: Round


class CampaignNow(NamedTuple):
    """Order to campaign at once, without pre-vote: the leader hands over."""

    group: str
    sender: NodeId
    to: NodeId
    term: Term


Message: TypeAlias = (
    VoteRequest | VoteReply | AppendRequest | AppendReply | InstallSnapshot | CampaignNow
)
