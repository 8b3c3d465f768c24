"""The replica's state machine: messages, ticks and proposals in, `Ready` out. The public interface
of `raft`.

Owns the dispatch and the contract with the shell. Knows no socket, file, clock, thread or payload
byte. The rules are in modules beside this one, one per idea: election, leader, follower,
replication, quorum, membership, read_index, transfer, snapshot, recovery. The shell's loop is:

    core.step(message) or core.tick() or core.propose(...)
    while (ready := core.ready()) is not None:
        do its fields in order, without waiting for the sync
        core.advance()
    when a sync ends: core.hard_state_stable(...), core.stable_to(...), then release what was held
    when entries are applied: core.applied_to(...)

What needs no order (reads, hand-over, snapshots of this node) the shell asks of the rules, with
`core.state`. `raft/pump/replica.py` is that loop, used unchanged by the production driver and by
the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from raft.config import RaftConfig
from raft.errors import PeerProtocolError, TermJumpError
from raft.messages import (
    NO_INDEX,
    NO_NODE,
    AppendReply,
    AppendRequest,
    CampaignNow,
    Index,
    InstallSnapshot,
    Message,
    NodeId,
    Term,
    VoteReply,
    VoteRequest,
)
from raft.ready import EntryPositions, HardState, InitialState, Ready
from raft.rules import (
    election,
    follower,
    leader,
    read_index,
    replication,
    snapshot,
)
from raft.rules.membership import Change
from raft.state.progress import ProgressState
from raft.state.state import RaftState
from raft.transitions import Role

_HANDLERS: dict[type, Callable[[RaftState, Any], None]] = {
    AppendRequest: follower.handle_append,
    AppendReply: leader.handle_append_reply,
    VoteReply: election.handle_vote_reply,
    InstallSnapshot: snapshot.handle_install,
    CampaignNow: election.handle_campaign_now,
}
"""Handler of each message of the current term. A vote request has its own term rule."""


def check_append(message: AppendRequest) -> None:
    """Raise PeerProtocolError for an append that no correct leader builds."""
    lo, hi, runs = message.prev_index + 1, message.hi, message.runs
    if lo < 0 or hi < lo:
        raise PeerProtocolError(message.sender, f"append of [{lo}, {hi})")
    if bool(runs) != (hi > lo) or (runs and runs[0][0] != lo):
        raise PeerProtocolError(message.sender, f"term runs {runs} do not cover [{lo}, {hi})")
    at, term = lo - 1, message.prev_term
    for first, run_term in runs:
        is_ordered = first > at and run_term >= term if at < lo else first > at and run_term > term
        if not is_ordered or first >= hi:
            raise PeerProtocolError(message.sender, f"term runs {runs} are out of order")
        at, term = first, run_term
    if term > message.term:
        raise PeerProtocolError(message.sender, f"entry of term {term} in term {message.term}")


def check_term(state: RaftState, message: Message) -> None:
    """Raise TermJumpError for a term that is too far ahead, before anything is done with it.

    Also for a shell that would do work, such as collecting a snapshot, before it has the whole
    message. Deviation: the paper adopts any higher term (Raft paper, figure 2, rules for
    servers)."""
    if message.term > state.term and state.term_ceiling.refuses(message.term):
        raise TermJumpError(message.sender, message.term, state.term_ceiling.limit)


class RaftCore:
    """One replica. Not thread-safe, never blocks, deterministic in its inputs and the seed of
    `random`."""

    __slots__ = ("state",)

    def __init__(
        self,
        config: RaftConfig,
        initial: InitialState,
        positions: EntryPositions,
        random: Random,
    ) -> None:
        """Start as a follower from the state of the disk.

        `initial.hard_state` must be durable already. `random` is used for election time-outs only.
        """
        state = RaftState(config, initial, positions, random)
        state.assert_sane()
        self.state = state

    # Inputs.

    def step(self, message: Message) -> None:
        """Take one message from a peer.

        An append's payload and a snapshot's state stay with the shell; it must take the Ready that
        follows before it steps the next such message. Raises PeerProtocolError, with no state
        changed, for a message of another group, from this node, to another node, or of impossible
        content; its subclass TermJumpError for a term that no number of elections explains."""
        state = self.state
        if message.group != state.group:
            raise PeerProtocolError(message.sender, f"it belongs to cluster {message.group!r}")
        if message.to != state.node_id:
            raise PeerProtocolError(message.sender, f"message for node {message.to} came here")
        if message.sender == state.node_id or message.sender <= NO_NODE:
            raise PeerProtocolError(message.sender, "sender is this node or no node")
        kind = type(message)
        if kind is AppendRequest:
            check_append(message)  # type: ignore[arg-type]
        elif kind is VoteRequest:
            check_term(state, message)
            election.handle_vote_request(state, message)  # type: ignore[arg-type]
            return
        if message.term != state.term:
            if message.term < state.term:
                if kind is AppendRequest or kind is InstallSnapshot:
                    follower.answer_old_leader(state, message)  # type: ignore[arg-type]
                elif kind is VoteReply and message.pre:  # type: ignore[union-attr]
                    # A voter of a lower term grants a pre-vote without raising its term. The
                    # `vote_term` of the grant tells whether it is about the current campaign.
                    election.handle_vote_reply(state, message)  # type: ignore[arg-type]
                return
            check_term(state, message)
            follower.become_follower(state, message.term, NO_NODE, "higher term seen")
        _HANDLERS[kind](state, message)

    def follows(self, message: AppendRequest) -> bool:
        """Whether `step` would follow the sender of an append; nothing changes.

        The shell compares logs with the followed leader only: a deposed leader, or a second one of
        the same term, may hold another history. Raises TermJumpError as `step` does."""
        state = self.state
        check_term(state, message)
        if message.term == state.term:
            return not follower.is_second_leader(state, message.sender)
        return message.term > state.term

    def tick(self, *, may_campaign: bool = True, has_met_all: bool = False) -> None:
        """Advance the clock by one tick interval.

        A node that may not campaign, since its shell has no room for a leader's first entry, must
        tick all the same: otherwise its promise to the last seen leader would never end (R22).
        With links to all voters one founder of a new cluster need not wait for its time-out."""
        state = self.state
        state.now += 1
        if state.now >= state.term_ceiling.renew_at:
            state.term_ceiling.renew(state.term, now=state.now)
        if state.role is Role.LEADER:
            leader.tick(state)
        elif may_campaign:
            election.tick(state, has_met_all=has_met_all)

    def propose(self, count: int = 1) -> tuple[Index, Term]:
        """Reserve `count` consecutive log indexes for data; return the first index and the term.

        The shell must write the entries before it takes the next Ready, and must have taken any
        Ready that holds own entries before (they come first in the log).
        Raises NotLeaderError, TransferringError or BusyError; then nothing was reserved."""
        return leader.propose(self.state, count)

    def propose_change(self, change: Change) -> tuple[Index, Term]:
        """Append a membership change of one node; it is in force at once, final when committed.

        Raises NotLeaderError, TransferringError, BusyError or ChangeRefusedError.
        """
        return leader.propose_change(self.state, change)

    # Reports from the shell.

    def hard_state_stable(self, hard_state: HardState) -> None:
        """Note that `hard_state` is durable. A candidate's own vote counts from here on."""
        state = self.state
        if not state.is_hard_state_durable:
            follower.hard_state_stable(state, hard_state)
            election.own_vote_durable(state)

    def stable_to(self, index: Index, term: Term) -> None:
        """Note that entries up to (index, term) are durable.

        Ignored if the log holds another term there. A shell that truncated from `lo` since it
        began that sync must report at most `lo - 1`: the same (index, term) may have been written
        a second time and not be synced (R16).
        """
        state = self.state
        if index <= state.synced and state.snapshot_gate == NO_INDEX:
            return
        log = state.log
        if (log.last_term if index == log.last_index else log.term_of(index)) != term:
            return
        if index >= state.snapshot_gate:
            state.snapshot_gate = NO_INDEX
        if index > state.synced:
            state.synced = index
            if state.role is Role.LEADER:
                leader.maybe_commit(state)

    def applied_to(self, index: Index) -> None:
        """Note that entries up to `index` are applied."""
        state = self.state
        assert index >= state.applied, f"applied would go back from {state.applied} to {index}"
        assert index <= state.handed, f"applied {index}, handed out through {state.handed}"
        state.applied = index

    def compact_to(self, index: Index) -> None:
        """Cut the log through `index`, as the shell does. Raises CompactionRefusedError."""
        snapshot.compact_to(self.state, index)
        self.state.assert_sane()

    def report_unreachable(self, node: NodeId) -> None:
        """Probe `node` again, since its link broke: messages in flight may be lost."""
        progress = self.state.progress.get(node)
        if progress is not None and progress.state is not ProgressState.PROBE:
            progress.become_probe()

    def report_snapshot_failed(self, node: NodeId) -> None:
        """Probe `node` again, since the snapshot being sent to it did not arrive."""
        progress = self.state.progress.get(node)
        if progress is not None and progress.state is ProgressState.SNAPSHOT:
            progress.become_probe()

    def report_snapshot_moved(self, node: NodeId) -> None:
        """Extend the deadline of the snapshot being sent to `node`: more of it was sent."""
        state = self.state
        progress = state.progress.get(node)
        if progress is not None and progress.state is ProgressState.SNAPSHOT:
            progress.snapshot_deadline = state.now + state.config.snapshot_ticks_max

    # Output.

    def has_ready(self) -> bool:
        """Whether `ready()` would return work."""
        state = self.state
        return (
            state.is_dirty
            or (state.is_broadcast_due and not state.own_entries)
            or (
                state.handed < state.commit
                and state.handed < state.synced
                and state.handed < state.applied + state.config.apply_entry_count_max
            )
            or (
                bool(state.reads_waiting)
                and read_index.is_startable(state, waiting=len(state.reads_waiting))
            )
        )

    def ready(self) -> Ready | None:
        """Return the work owed since the last call, or None. Call `advance()` when it is done."""
        if not self.has_ready():
            return None
        state = self.state
        if state.reads_waiting and read_index.is_startable(state, waiting=len(state.reads_waiting)):
            read_index.start_round(state)
        if state.is_broadcast_due and not state.own_entries:
            replication.broadcast(state)
        ready = Ready()
        self._take_writes(ready)
        if state.send_now:
            ready.send_now, state.send_now = state.send_now, []
        if state.send_after_sync:
            ready.send_after_sync, state.send_after_sync = state.send_after_sync, []
        ready.commit_lo, ready.commit_hi = state.handed + 1, self.hand_out()
        if state.reads_ready:
            ready.reads, state.reads_ready = state.reads_ready, []
        if state.reads_failed:
            ready.reads_failed, state.reads_failed = state.reads_failed, []
        if state.role_changes:
            ready.role_changes, state.role_changes = state.role_changes, []
        if state.loss_from != NO_INDEX:
            ready.loss_from, state.loss_from = state.loss_from, NO_INDEX
        state.is_dirty = False
        return ready

    def hand_out(self) -> Index:
        """Hand out what may be applied now; return its end. It begins behind the last that was.

        What may be applied is committed, durable here, and within the window. Entries beyond the
        synced index are not handed out, so that no saved state can be ahead of the durable log
        (R45)."""
        state = self.state
        last = state.commit if state.commit < state.synced else state.synced
        limit = state.applied + state.config.apply_entry_count_max
        if limit < last:  # noqa: PLR1730  A call less, as below.
            last = limit
        if last > state.handed:  # noqa: PLR1730
            state.handed = last
        return state.handed + 1

    def advance(self) -> None:
        """Note that the last Ready was done, except for the sync: its writes can be read and
        sent."""
        state = self.state
        if state.role is Role.LEADER and state.written < state.log.last_index:
            leader.written(state)

    # Internals of `ready`.

    def _take_writes(self, ready: Ready) -> None:
        state = self.state
        if state.snapshot_taken is not None:
            ready.snapshot, state.snapshot_taken = state.snapshot_taken, None
        if not state.is_hard_state_durable:
            hard_state = state.hard_state()
            if hard_state != state.hard_state_taken:
                ready.hard_state = state.hard_state_taken = hard_state
        if state.truncate_from != NO_INDEX:
            ready.truncate_from, state.truncate_from = state.truncate_from, NO_INDEX
        if state.write_lo != NO_INDEX:
            ready.write_lo, ready.write_hi = state.write_lo, state.log.last_index + 1
            state.write_lo = NO_INDEX
        if state.own_entries:
            ready.own_entries, state.own_entries = state.own_entries, []
