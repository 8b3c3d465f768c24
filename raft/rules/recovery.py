"""Nodes whose memory is in doubt: when they count again, and recovery when too many are in doubt.

A node that lost power with unsynced entries (RECOVERING) or that started with an empty disk
(JOINING) may have broken an ack it once gave. A node in doubt neither votes nor counts until a
leader elected without it has brought it past that leader's commit index at the time it joined
(design 4.5): by then its log again holds all entries that it once acked and a quorum relied on. A
leader without a commit in its term does not know that index yet. The winner of a recovery election
then uses the end of its log instead, since no other entries exist; any other leader admits no node
yet. Replies carry an incarnation, so that an ack given before the loss and delivered after it is
not believed.

A recovery election needs a grant from every voter instead of a majority. Deviation from design
4.5: a voter of full standing takes part too when a majority is in doubt, since otherwise a leader
that was elected this way and crashed before it admitted the others could never be elected again.
This is no less safe: the winner's log is the newest of all existing logs."""

from __future__ import annotations

from raft.errors import RecoveryRefusedError
from raft.messages import AppendReply, Index, NodeId, Refusal, Standing, Term
from raft.quorum import quorum_size
from raft.rules.follower import end_doubt
from raft.state.progress import NO_TARGET, UNHEARD, Progress
from raft.state.state import RaftState


def admit_reply(state: RaftState, progress: Progress, message: AppendReply) -> bool:
    """Note standing and incarnation of a follower; return whether the reply tells of its log.

    A reply of an earlier incarnation, or of a node with a differing history, does not."""
    if message.incarnation != progress.incarnation:
        if message.incarnation < progress.incarnation:
            return False
        state.divergent_peers.discard(progress.node)
        if progress.incarnation == UNHEARD and message.standing is Standing.FULL:
            progress.incarnation = message.incarnation
        else:
            progress.restart(message.incarnation)
            if message.refusal is Refusal.NO_MATCH:
                progress.next = message.refused_prev + 1
    if message.standing is Standing.FULL:
        progress.is_counted = True
        progress.admitted = 0
        return True
    progress.is_counted = False
    if message.standing is Standing.DIVERGED:
        progress.is_divergent = True
        state.divergent_peers.add(progress.node)
        return False
    if progress.admission_target == NO_TARGET:
        if state.commit >= state.own_term_first:
            progress.admission_target = state.commit
        elif state.admission_floor is not None:
            progress.admission_target = state.admission_floor
    return True


def is_admissible(state: RaftState, progress: Progress, message: AppendReply) -> bool:
    """Whether a follower in doubt has caught up now and was not yet told.

    A JOINING voter is never admitted: it voted and acked under this identity and forgot it (R29).
    The operator has to remove it and add it again as a learner with a new id."""
    if message.standing is Standing.FULL or progress.admitted == message.incarnation:
        return False
    if message.standing is Standing.JOINING and _may_be_voter(state, progress.node):
        return False
    target = progress.admission_target
    return target != NO_TARGET and progress.match >= target


def _may_be_voter(state: RaftState, node: NodeId) -> bool:
    """Whether a node is a voter, or will be one again if its removal never gets committed."""
    newest = state.configurations[-1]
    candidates = state.configurations[-2:] if newest.index > state.commit else [newest]
    return any(node in each.configuration.voters for each in candidates)


def needs_recovery_election(state: RaftState) -> bool:
    """Whether a normal election cannot succeed because a majority of voters is in doubt."""
    if state.standing is Standing.RECOVERING:
        return True
    trusted = len(state.voters) - len(state.standing_refusals)
    return state.standing is Standing.FULL and trusted < quorum_size(len(state.voters))


def win_recovery_election(state: RaftState) -> None:
    """Trust this log, since no more entries exist, and report from where records may be missing."""
    state.admission_floor = state.log.last_index
    # Every voter granted, so none had seen a term above the one before this campaign.
    state.loss_from = _loss_from(state, state.term - 1)
    end_doubt(state)


def _loss_from(state: RaftState, newest_term: Term) -> Index:
    """Return from where acked entries may be missing, if the lost ones were of no newer term.

    Entries acked in the last term of this log, or before, are in it or behind it. A leader of a
    later term may have begun anywhere above the commit index: this log can end in a tail which that
    leader had replaced, and then is longer than the lost one."""
    if state.log.last_term >= newest_term:
        return state.log.last_index + 1
    return state.commit + 1


def accept_loss(state: RaftState) -> None:
    """Trust the log as it is after a loss of power of a majority, by an operator's decision.

    `Ready.loss_from` says from where acked records may be missing. Raises RecoveryRefusedError if
    the node is not recovering."""
    if state.standing is not Standing.RECOVERING:
        raise RecoveryRefusedError(f"standing is {state.standing.name.lower()}, not recovering")
    state.loss_from = _loss_from(state, state.term)
    state.is_dirty = True
    end_doubt(state)
