"""The referees: invariants that hold after every step, checked against all disks at once.

Owns the invariants I1 to I7 and I10 of fault-matrix section 2 as far as one step can break them.
Must not change anything it looks at. Each check compares a few integers, because log digests stand
for whole prefixes; the checks that look at other nodes run only when a commit index or a role
changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from raft.messages import (
    AppendReply,
    Index,
    NodeId,
    Refusal,
    Standing,
    Term,
    VoteReply,
    VoteRequest,
)
from raft.pump.effects import Outgoing
from raft.quorum import quorum_size
from raft.transitions import Role
from simulation.raft.coverage import Coverage
from simulation.raft.ledger import CommittedLedger
from simulation.raft.verdict import InvariantError

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.raft.world.process import Process


NOTHING_LOST = 1 << 60


class Referee:
    """Watches all nodes of one world."""

    __slots__ = (
        "_loss_floor",
        "coverage",
        "leaders",
        "ledger",
        "nodes",
        "on_entries_lost",
        "page_cache",
        "votes",
    )

    def __init__(
        self, nodes: dict[NodeId, Process], coverage: Coverage, *, page_cache: bool
    ) -> None:
        self.nodes = nodes
        self.coverage = coverage
        self.page_cache = page_cache
        """Whether entries count as durable once written: the written log stands for the synced."""
        self.ledger = CommittedLedger(coverage)
        self.on_entries_lost: Callable[[Index], None] | None = None
        """Called before committed entries from an index on are given up; None: no loss may
        happen."""
        self._loss_floor = NOTHING_LOST
        """Lowest index from which on entries may be missing, as reported since the last leader."""
        self.leaders: dict[Term, NodeId] = {}
        self.votes: dict[tuple[NodeId, Term], NodeId] = {}

    def after_step(self, node: Process) -> None:
        """Compare a node with its earlier state and with the others."""
        state = node.replica.core.state
        role, term = state.role, state.term
        if state.standing is Standing.DIVERGED:
            raise InvariantError("I5", f"{node} was contradicted in what it has committed")
        if term != node.seen_term or role is not node.seen_role:
            self._on_role(node, term, role)
        disk = node.disk
        if disk.truncated:
            self._on_truncate(node, term, role)
        commit = state.commit
        if commit != node.seen_commit:
            if node.replica.core is not node.seen_core:
                # Term and vote could not be saved: the core began again with the state of the disk
                # and the entries it has handed out (R02). A commit index may restart low.
                node.seen_core = node.replica.core
                node.seen_commit = min(node.seen_commit, max(commit, node.handed))
            if commit < node.seen_commit:
                raise InvariantError("I6", f"{node} commit {node.seen_commit} -> {commit}")
            self._on_commit(node, commit)
        durable = disk.memory.last_index if self.page_cache else disk.durable.last_index
        # A snapshot just installed counts as synced at once, but the gate holds every message back.
        if state.synced > durable and state.synced > state.snapshot_gate:
            raise InvariantError("R16", f"{node} claims {state.synced} synced, has {durable}")
        node.was_leader = role is Role.LEADER

    def on_leader_commit(self, node: Process) -> None:
        """Check what a leader committed while the voters that it counted are still its voters.

        A turn may end without effects, when the window of entries to apply is full, or take a
        membership change after the ack."""
        state = node.replica.core.state
        if state.term == node.seen_term and node.replica.core is node.seen_core:
            self._on_commit(node, state.commit)

    def _on_role(self, node: Process, term: Term, role: Role) -> None:
        """Check I1, I4 and the part of I6 about terms."""
        if term < node.seen_term:
            raise InvariantError("I6", f"{node} term {node.seen_term} -> {term}")
        if role is Role.LEADER and (node.seen_role is not Role.LEADER or term != node.seen_term):
            self.coverage.hit("leader_elected")
            other = self.leaders.setdefault(term, node.node_id)
            if other != node.node_id:
                raise InvariantError("I1", f"{node} and node {other} both lead term {term}")
            # A leader elected late in an old term need not know the commits of a newer one.
            last = bisect_left(self.ledger.commit_terms, term) - 1
            if last >= 0 and not node.disk.memory.holds(last, self.ledger.entries[last].chain):
                self._on_missing(node, term, last)
            self._loss_floor = NOTHING_LOST
        elif node.seen_role is Role.LEADER and role is not Role.LEADER:
            self.coverage.hit("leader_stepped_down")
        node.seen_term, node.seen_role = term, role

    def _on_missing(self, node: Process, term: Term, last: Index) -> None:
        """Check I4: a leader lacks committed entries up to `last` only if that was reported."""
        entries = self.ledger.entries
        first = last
        while first > 0 and not node.disk.memory.holds(first - 1, entries[first - 1].chain):
            first -= 1
        if self.on_entries_lost is None or first < self._loss_floor:
            raise InvariantError(
                "I4",
                f"{node} leads {term} without {entries[first]} and those up to {last}, "
                f"reported as lost from {self._loss_floor} on",
            )
        self.on_entries_lost(first)

    def on_loss(self, loss_from: Index) -> None:
        """Take a node's report that acked entries may be missing."""
        self.coverage.hit("loss_reported")
        self._loss_floor = min(self._loss_floor, loss_from)

    def _on_truncate(self, node: Process, term: Term, role: Role) -> None:
        """Check I2, and that no committed entry goes away.

        A node below the term of a commit was not counted for it. It may follow an older leader that
        need not know the entry, and replace its own copy."""
        truncated, node.disk.truncated = node.disk.truncated, []
        entries = self.ledger.entries
        for entry in truncated:
            if role is Role.LEADER:
                raise InvariantError("I2", f"leader {node} removed its own {entry}")
            if entry.index <= node.seen_commit:
                raise InvariantError("I6", f"{node} removed {entry}, knew {node.seen_commit}")
            if entry.index >= len(entries) or term < self.ledger.commit_terms[entry.index]:
                continue
            if entries[entry.index].chain == entry.chain:
                raise InvariantError("I7", f"{node} removed the committed {entry}")

    def _on_commit(self, node: Process, commit: Index) -> None:
        """Check I5 and I7: a committed entry is the same everywhere and durable on a quorum."""
        image = node.disk.memory
        entries = self.ledger.entries
        last = image.last_index
        if commit > last:
            raise InvariantError("R17", f"{node} committed {commit}, its log ends at {last}")
        known = len(entries)
        if commit >= known:
            if not node.was_leader and node.seen_role is not Role.LEADER:
                raise InvariantError("I7", f"{node} committed {commit}, which no leader did")
            self._check_quorum(node, commit)
            base = image.base_index + 1
            for index in range(known, commit + 1):
                entry = image.entries[index - base]
                entries_before = entries[-1].chain if entries else 0
                if entry.previous_chain != entries_before:
                    raise InvariantError("I5", f"{node} committed {entry} on another prefix")
                self.ledger.extend(entry, node.seen_term)
        elif commit >= 0 and not image.holds(commit, entries[commit].chain):
            raise InvariantError("I5", f"{node} committed another entry than {entries[commit]}")
        if commit > node.disk.durable.last_index:
            self.coverage.hit("sync_outrun_by_commit")
        node.seen_commit = commit

    def _check_quorum(self, node: Process, commit: Index) -> None:
        chain = node.disk.memory.chain_at(commit)
        assert chain is not None
        voters = node.replica.core.state.voters
        holders = [
            voter
            for voter in voters
            if voter in self.nodes and self.nodes[voter].has_held(commit, chain, self.page_cache)
        ]
        if len(holders) < quorum_size(len(voters)):
            raise InvariantError(
                "I7", f"{node} committed {commit}, durable on {holders} of {voters} only"
            )

    def on_send(self, node: Process, sends: Sequence[Outgoing]) -> None:
        """Check R01 and R16: a message reveals only durable state."""
        durable = node.disk.durable
        durable_term = durable.hard_state.term
        for outgoing in sends:
            message = outgoing.message
            if message.term > durable_term:
                raise InvariantError("R01", f"{node} reveals a term before its sync: {message}")
            if isinstance(message, AppendReply):
                if message.refusal is Refusal.NONE and not self.page_cache:
                    match = message.match
                    if match > durable.last_index:
                        raise InvariantError("R16", f"{node} acks before its sync: {message}")
            elif isinstance(message, VoteReply):
                if message.granted:
                    self._on_support(node, recovery=message.recovery)
                    if not message.pre:
                        self._on_vote(node, message.vote_term, message.to)
            elif isinstance(message, VoteRequest):
                self._on_support(node, recovery=message.recovery)
                if not message.pre:
                    self._on_vote(node, message.vote_term, node.node_id)

    @staticmethod
    def _on_support(node: Process, *, recovery: bool) -> None:
        """Check R29: a node that lost memory supports no candidate, not even itself."""
        standing = node.replica.core.state.standing
        if standing is Standing.JOINING or (standing is Standing.RECOVERING and not recovery):
            raise InvariantError("R29", f"{node} takes part in an election, being {standing.name}")

    def _on_vote(self, node: Process, term: Term, candidate: NodeId) -> None:
        """Check I6: one vote per term, durable before it is revealed, also across restarts."""
        hard_state = node.disk.durable.hard_state
        if (hard_state.term, hard_state.vote) != (term, candidate):
            raise InvariantError("R01", f"{node} votes {candidate}@{term}, disk has {hard_state}")
        other = self.votes.setdefault((node.node_id, term), candidate)
        if other != candidate:
            raise InvariantError("I6", f"{node} votes {candidate} after {other} in term {term}")

    def on_apply(self, node: Process, lo: Index, hi: Index) -> None:
        """Check I5 and R45: applied in order, the same everywhere, not ahead of the durable log."""
        if lo != node.handed + 1:
            raise InvariantError("I5", f"{node} applies {lo} after {node.handed}")
        if hi > len(self.ledger.entries):
            raise InvariantError("I5", f"{node} applies {hi - 1}, which no leader committed")
        image = node.disk.memory if self.page_cache else node.disk.durable
        if hi - 1 > image.last_index:
            raise InvariantError("R45", f"{node} applies {hi - 1} ahead of its durable log")
        if not node.disk.memory.holds(hi - 1, self.ledger.entries[hi - 1].chain):
            raise InvariantError("I5", f"{node} applies another entry at {hi - 1}")
        node.handed = hi - 1

    def on_install(self, node: Process, index: Index, chain: int) -> None:
        """Check I5 for a snapshot: it stands for the committed prefix, and is newer."""
        entries = self.ledger.entries
        if index >= len(entries) or entries[index].chain != chain:
            raise InvariantError("I5", f"{node} installs a snapshot of another state at {index}")
        if index <= node.handed:
            raise InvariantError("I6", f"{node} goes back to a snapshot at {index}")
        node.handed = index
        self.coverage.hit("snapshot_installed")

    def on_restart(self, node: Process) -> None:
        """Check I6 across a restart: all promises are still kept."""
        state = node.replica.core.state
        if state.term < node.promised_term:
            raise InvariantError("I6", f"{node} forgot term {node.promised_term}")
        image = node.disk.memory
        if image.base_index >= 0 and (
            image.snapshot is None or image.snapshot.index < image.base_index
        ):
            raise InvariantError("R32", f"{node} cut its log without a durable snapshot")
        node.seen_core = node.replica.core
        node.seen_term, node.seen_role = state.term, state.role
        node.seen_commit = state.commit
        node.was_leader = False
        node.disk.truncated.clear()
        commit, entries = state.commit, self.ledger.entries
        if commit >= len(entries) or (
            commit >= 0 and not node.disk.memory.holds(commit, entries[commit].chain)
        ):
            raise InvariantError("I5", f"{node} restarts with another commit {commit}")
