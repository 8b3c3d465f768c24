"""The state of one replica and the few primitives that every rule is made of.

Owns the fields and their meaning; the rules that change them are in the modules named in `core`.
One mutable slotted object, since attribute access on it is the cheapest in Python.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import NamedTuple

from raft.ceiling import ceiling_of_terms
from raft.config import RaftConfig
from raft.messages import (
    NO_INDEX,
    NO_NODE,
    Configuration,
    ConfigurationAt,
    Index,
    Message,
    NodeId,
    Round,
    SnapshotMeta,
    Standing,
    Term,
)
from raft.ready import (
    EntryPositions,
    HardState,
    InitialState,
    OwnEntry,
    ReadConfirmed,
    RoleChange,
)
from raft.state.log_view import LogView
from raft.state.progress import Progress
from raft.transitions import TRANSITIONS, Role

NEVER = -(1 << 40)
"""A tick so long ago that no time-out reaches back to it."""


class PendingReads(NamedTuple):
    """Reads that share one confirmation round."""

    round: Round
    index: Index  # type: ignore[assignment]  # Hides tuple.index, which is not needed here.
    read_ids: list[int]


class RaftState:
    """All state of one replica. `ready()` empties the fields of the last block."""

    __slots__ = (
        "admission_floor",
        "applied",
        "commit",
        "config",
        "configurations",
        "contact_tick",
        "divergent_peers",
        "group",
        "handed",
        "hard_state_taken",
        "heartbeat_tick",
        "incarnation",
        "is_broadcast_due",
        "is_campaign_ordered",
        "is_dirty",
        "is_hard_state_durable",
        "is_recovery_campaign",
        "is_voter",
        "leader",
        "learners",
        "log",
        "loss_from",
        "node_id",
        "now",
        "own_entries",
        "own_term_first",
        "positions",
        "preferred_next_tick",
        "progress",
        "random",
        "read_count",
        "reads_failed",
        "reads_pending",
        "reads_ready",
        "reads_waiting",
        "role",
        "role_changes",
        "round",
        "round_ticks",
        "send_after_sync",
        "send_now",
        "snapshot",
        "snapshot_gate",
        "snapshot_taken",
        "standing",
        "standing_refusals",
        "steady_entry_count_max",
        "steady_size_bytes_max",
        "synced",
        "term",
        "term_ceiling",
        "terms_seen",
        "timeout_ticks",
        "timer_start",
        "transfer_deadline",
        "transferee",
        "truncate_from",
        "vote",
        "voters",
        "votes",
        "write_lo",
        "written",
    )

    def __init__(
        self, config: RaftConfig, initial: InitialState, positions: EntryPositions, random: Random
    ) -> None:
        self.config = config
        self.group, self.node_id = config.group, config.node_id
        self.positions = positions
        self.random = random
        self.log = LogView(
            base_index=initial.base_index,
            base_term=initial.base_term,
            last_index=initial.last_index,
            runs=initial.runs,
        )
        hard_state = initial.hard_state
        assert hard_state.term >= self.log.last_term, "a term that the hard state never saw"
        self.term: Term = hard_state.term
        self.term_ceiling = ceiling_of_terms(hard_state.term)
        """Bound on the terms of messages. Own campaigns are bound by the typed end only."""
        self.vote: NodeId = hard_state.vote
        """Vote of this node in `term`. Invariant: set at most once per term."""
        self.standing: Standing = hard_state.standing
        self.incarnation = hard_state.incarnation
        self.is_hard_state_durable = True
        """While false, no message at all leaves before a sync: each message reveals the term."""
        self.hard_state_taken = hard_state
        self.snapshot_gate: Index = NO_INDEX
        """Index of an installed snapshot, not yet durable: no message leaves before it is."""

        self.role = Role.FOLLOWER
        self.leader: NodeId = NO_NODE
        """The leader of `term`, once known. Forgotten with the term."""
        self.now = 0
        """Ticks since start."""
        self.timer_start = 0
        self.timeout_ticks = 0
        # With leases another node may rely on this node's silence, promised before the restart.
        self.contact_tick = 0 if config.lease_reads else NEVER
        """Tick of the last contact with a leader. Outlives the term, as promises of silence do
        (R22)."""
        self.heartbeat_tick = 0
        """Leader only: tick of the last round of heartbeats."""

        self.commit: Index = max(initial.base_index, min(initial.commit, initial.last_index))
        self.applied: Index = max(initial.base_index, initial.applied)
        assert self.applied <= initial.last_index, "applied state is ahead of the log"
        self.commit = max(self.commit, self.applied)
        self.handed: Index = self.applied
        """Last entry handed out for apply. Invariant: applied <= handed <= min(commit, synced)."""
        self.synced: Index = initial.last_index if initial.synced is None else initial.synced
        """Last entry durable on this disk. Goes back only with a truncation."""
        self.written: Index = initial.last_index
        """Leader only: last entry the shell can read back, so the last that may be sent."""
        self.snapshot: SnapshotMeta | None = initial.snapshot

        self.terms_seen: dict[NodeId, Term] = {}
        """Terms in which other nodes took part in elections, since the last look of `lives`."""
        self.divergent_peers: set[NodeId] = set()
        """Nodes whose committed log contradicts that of this node, or of the leader it knows."""

        self.configurations: list[ConfigurationAt] = list(initial.configurations)
        """The configuration at the base of the log, then one per configuration entry of the log."""
        self.voters: tuple[NodeId, ...] = ()
        self.learners: tuple[NodeId, ...] = ()
        self.is_voter = False

        self._set_limits()
        self._clear_office()
        self._clear_output()
        self.draw_timeout()
        self.use_configuration()

    def _set_limits(self) -> None:
        config = self.config
        self.steady_entry_count_max = min(
            config.message_entry_count_max, config.window_entry_count_max
        )
        self.steady_size_bytes_max = min(
            config.message_size_bytes_max, config.window_size_bytes_max
        )
        """Entries and bytes in flight to a follower that fit into its window and one message."""

    def _clear_office(self) -> None:
        """Reset the fields of a campaign and of a leadership."""
        self.votes: dict[NodeId, bool] = {}
        self.standing_refusals: set[NodeId] = set()
        """Voters that refused the last campaign because their memory is in doubt."""
        self.is_recovery_campaign = False

        self.progress: dict[NodeId, Progress] = {}
        """Leader only: every other member, in order of id."""
        self.own_term_first: Index = NO_INDEX
        """Leader only: index of its no-op. Entries from here on are of its own term."""
        self.admission_floor: Index | None = None
        """Leader by a recovery election: its last index then. A node in doubt has to reach it until
        this leader commits; from then on the commit index decides."""
        self.round: Round = 0
        self.round_ticks: deque[tuple[Round, int]] = deque(maxlen=64)
        """With leases: first tick of each recent round. Losing an old one only shortens the
        lease."""
        self.reads_waiting: list[int] = []
        self.reads_pending: deque[PendingReads] = deque()
        self.read_count = 0
        """Reads waiting or pending, bounded by read_count_max."""

        self.transferee: NodeId = NO_NODE
        self.transfer_deadline = 0
        self.is_campaign_ordered = False
        """Whether a CampaignNow left in this term: it may arrive any time later, so leases are
        void."""
        self.preferred_next_tick = 0

    def _clear_output(self) -> None:
        """Reset the fields that `ready()` empties."""
        self.is_dirty = False
        self.is_broadcast_due = False
        self.send_now: list[Message] = []
        self.send_after_sync: list[Message] = []
        self.own_entries: list[OwnEntry] = []
        self.snapshot_taken: SnapshotMeta | None = None
        self.truncate_from: Index = NO_INDEX
        self.write_lo: Index = NO_INDEX
        self.reads_ready: list[ReadConfirmed] = []
        self.reads_failed: list[int] = []
        self.role_changes: list[RoleChange] = []
        self.loss_from: Index = NO_INDEX

    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.standing, self.incarnation)

    def touch_hard_state(self) -> None:
        """Mark term, vote and standing as changed: no message leaves until they are durable."""
        self.is_hard_state_durable = False
        self.is_dirty = True

    def send(self, message: Message) -> None:
        """Send a message that promises nothing about the disk; no term is revealed before its
        sync."""
        if self.is_hard_state_durable and self.snapshot_gate == NO_INDEX:
            self.send_now.append(message)
        else:
            self.send_after_sync.append(message)
        self.is_dirty = True

    def send_promise(self, message: Message) -> None:
        """Send a promise about the disk, once durable: a vote, a request for one, an append ack."""
        self.send_after_sync.append(message)
        self.is_dirty = True

    def draw_timeout(self) -> None:
        """Start the election timer with a new random time-out (R25)."""
        self.timer_start = self.now
        config = self.config
        self.timeout_ticks = self.random.randint(
            config.election_ticks_min, config.election_ticks_max
        )

    def set_role(self, role: Role, leader: NodeId, reason: str) -> None:
        """Change role or leader, as the table of transitions allows."""
        assert reason in TRANSITIONS.get((self.role, role), ()), (
            f"{self.role.name} -> {role.name} because {reason!r} is not in the table"
        )
        self.role = role
        self.leader = leader
        self.note_role(reason)

    def note_role(self, reason: str) -> None:
        self.role_changes.append(RoleChange(self.role, self.term, self.leader, reason))
        self.is_dirty = True

    def had_leader_contact(self) -> bool:
        """Whether a leader made contact within the minimum election time-out (leader
        stickiness)."""
        return self.now - self.contact_tick < self.config.election_ticks_min

    def has_contact(self, progress: Progress) -> bool:
        """Whether a follower answered within the minimum election time-out."""
        return self.now - progress.contact_tick < self.config.election_ticks_min

    def in_flight_size_bytes(self, progress: Progress) -> int:
        """Return the size of what was sent to a follower and is not acked."""
        lo, position_of = max(progress.match, self.log.base_index) + 1, self.positions.position_of
        return position_of(progress.next) - position_of(lo) if progress.next > lo else 0

    def use_configuration(self) -> None:
        """Put the newest configuration of the log into force: on append, not on commit."""
        newest = self.configurations[-1].configuration if self.configurations else Configuration(())
        self.voters, self.learners = newest
        self.is_voter = self.node_id in self.voters
        self.divergent_peers &= {*self.voters, *self.learners}

    def assert_sane(self) -> None:
        """Assert the invariants that hold between any two inputs; called after the rarer inputs."""
        log = self.log
        assert self.applied <= self.handed, f"applied {self.applied} beyond handed {self.handed}"
        assert self.handed <= self.commit, f"handed {self.handed} beyond commit {self.commit}"
        assert self.commit <= log.last_index, f"commit {self.commit} beyond last {log.last_index}"
        assert self.synced <= log.last_index, f"synced {self.synced} beyond last {log.last_index}"
        assert self.synced >= log.base_index, f"synced {self.synced} below base {log.base_index}"
        assert self.term >= log.last_term, f"log term {log.last_term} beyond term {self.term}"
