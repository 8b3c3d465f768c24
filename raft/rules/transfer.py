"""Hand-over of leadership: on request, to the preferred node, and on the own removal.

Raft thesis 3.10: the target catches up while proposals are refused, then campaigns at once with a
flag that lifts leader stickiness. A hand-over is abandoned after one minimum election time-out, so
a dead target costs no more than a crash would."""

from __future__ import annotations

from raft.errors import NotLeaderError, TransferInvalidError, TransferRefusedError
from raft.messages import NO_NODE, NO_TERM, CampaignNow, NodeId, Term
from raft.rules import replication
from raft.state.progress import Progress, ProgressState
from raft.state.state import RaftState
from raft.transitions import Role


def transfer_leadership(state: RaftState, target: NodeId) -> None:
    """Hand leadership to a voter; refuse proposals until it takes over or the time is up.

    Raises NotLeaderError or TransferRefusedError."""
    if state.role is not Role.LEADER:
        raise NotLeaderError(state.leader)
    if target == NO_NODE:
        check_other_voter(state)
        raise TransferRefusedError(target, "no other voter counts at the moment")
    progress = state.progress.get(target)
    if progress is None or target not in state.voters:
        raise TransferInvalidError(target, "it is no other voter")
    if state.transferee != NO_NODE:
        raise TransferRefusedError(target, f"a transfer to node {state.transferee} is under way")
    if not progress.is_counted:
        raise TransferRefusedError(target, "its memory is in doubt until it has caught up")
    if not state.has_contact(progress):
        # Else a caller that repeats an abandoned hand-over stops proposals for as long again.
        raise TransferRefusedError(target, "it does not answer at the moment")
    lag = state.log.last_index - progress.match
    limit = state.config.transfer_lag_entry_count_max
    if lag > limit:
        raise TransferRefusedError(target, f"it is {lag} entries behind, at most {limit} allowed")
    state.transferee = target
    state.transfer_deadline = state.now + state.config.election_ticks_min
    order_if_caught_up(state, progress)
    if not state.own_entries:
        replication.feed(state, progress)


def check_other_voter(state: RaftState) -> None:
    """Raise TransferInvalidError if no node could ever take over: this node is the only voter."""
    if all(voter == state.node_id for voter in state.voters):
        raise TransferInvalidError(NO_NODE, "there is no other voter")


def order_if_caught_up(state: RaftState, progress: Progress) -> None:
    """Tell the target to campaign once it holds the whole log; repeat at each of its acks."""
    if progress.match == state.log.last_index:
        _order(state, progress.node)


def _order(state: RaftState, node: NodeId) -> None:
    state.is_campaign_ordered = True
    state.send(CampaignNow(state.group, state.node_id, node, state.term))


def best_follower(state: RaftState, *, asked_last: tuple[Term, NodeId]) -> NodeId:
    """Return the voter with most of the log, those that answer first; NO_NODE without one that
    counts.

    The node that was asked last in this term comes behind the others: it did not take over."""
    rows = [
        (
            state.has_contact(progress),
            progress.state is ProgressState.REPLICATE,
            (state.term, node) != asked_last,
            progress.match,
            -node,
            node,
        )
        for node, progress in state.progress.items()
        if node in state.voters and progress.is_counted
    ]
    return max(rows)[-1] if rows else NO_NODE


def order_best(state: RaftState) -> None:
    """Let the best follower campaign at once, since this leader leaves the cluster."""
    node = best_follower(state, asked_last=(NO_TERM, NO_NODE))
    if node != NO_NODE:
        _order(state, node)


def abandon(state: RaftState) -> None:
    """Go on leading and take proposals again, since the target did not take over in time."""
    state.transferee = NO_NODE


def maybe_prefer(state: RaftState) -> None:
    """Hand over to the preferred leader if it is healthy and close, at most once per pause."""
    target = state.config.preferred_leader
    if target == state.node_id or target not in state.voters:
        return
    if state.transferee != NO_NODE or state.now < state.preferred_next_tick:
        return
    progress = state.progress[target]
    is_near = state.log.last_index - progress.match <= state.config.transfer_lag_entry_count_max
    if is_near and state.has_contact(progress) and progress.is_counted:
        state.preferred_next_tick = state.now + state.config.preferred_retry_ticks
        transfer_leadership(state, target)
