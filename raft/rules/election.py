"""Elections: time-out, pre-vote, vote, and the rules for granting either.

Owns the decision which node may become leader. A pre-vote asks without changing any term, so a node
that was cut off cannot disturb (Raft thesis 9.6); a node with a recent message of a leader grants
nothing (4.2.3). A candidate counts its own vote once it is durable, like any other, so a single
node follows the same path as five."""

from __future__ import annotations

from raft.ceiling import TERM_END
from raft.messages import NO_NODE, NO_TERM, CampaignNow, Refusal, Standing, VoteReply, VoteRequest
from raft.quorum import VoteResult, vote_result
from raft.rules import recovery
from raft.rules.divergence import contradicts
from raft.rules.follower import become_follower
from raft.rules.leader import become_leader
from raft.state.state import RaftState
from raft.transitions import Role


def tick(state: RaftState, *, has_met_all: bool) -> None:
    """Process one tick of a node that does not lead."""
    opens = has_met_all and _opens_cluster(state)
    timeout_ticks = state.config.heartbeat_ticks if opens else state.timeout_ticks
    if state.now - state.timer_start < timeout_ticks:
        return
    state.draw_timeout()
    if is_entitled(state):
        _ask_pre_votes(state)
    elif state.role is not Role.FOLLOWER:
        become_follower(state, state.term, NO_NODE, "no longer entitled to campaign")


def _opens_cluster(state: RaftState) -> bool:
    """Whether this node asks for the first leader of a new cluster, without waiting for one.

    One founder does, lest several split the votes. It asks with each heartbeat interval, since the
    others may still be starting, and for the shortest time-out only: after that it waits like any
    other. The others wait for their random time-outs, in case that this one is down. A pre-vote
    changes no term and no vote, so asking early is as safe as asking late.
    """
    if state.term != NO_TERM or state.now >= state.config.election_ticks_min:
        return False
    return state.node_id == min(state.voters, default=NO_NODE)


def is_entitled(state: RaftState) -> bool:
    """Whether this node may campaign: a voter, or one whose removal is not known as committed.

    A node of the second kind may hold the newest log, with the very entry that removes it, so that
    the other voters can elect no leader without it (Raft thesis 4.2.2). Its own vote does not
    count.
    """
    if _is_at_end(state):
        return False
    if state.standing in (Standing.JOINING, Standing.DIVERGED):
        return False
    if state.is_voter:
        return True
    configurations = state.configurations
    return (
        len(configurations) > 1
        and configurations[-1].index > state.commit
        and state.node_id in configurations[-2].configuration.voters
    )


def _is_at_end(state: RaftState) -> bool:
    """Whether there is no term left to campaign for. Only an operator can help then, with a
    new cluster (`qlog store restore`)."""
    return state.term + 1 >= TERM_END


def _ask_pre_votes(state: RaftState) -> None:
    state.is_recovery_campaign = recovery.needs_recovery_election(state)
    state.set_role(Role.PRE_CANDIDATE, NO_NODE, "election timeout")
    state.votes = {state.node_id: True}
    state.standing_refusals.clear()
    _ask(state, pre=True, transfer=False)
    _count_votes(state)


def _ask_votes(state: RaftState, reason: str, *, transfer: bool) -> None:
    """Raise the term, vote for this node, ask the others once that is durable (R01)."""
    state.term += 1
    assert state.term < TERM_END, f"campaign for term {state.term}, which is the end"
    state.vote = state.node_id
    state.touch_hard_state()
    state.set_role(Role.CANDIDATE, NO_NODE, reason)
    state.votes = {}
    state.draw_timeout()
    _ask(state, pre=False, transfer=transfer)


def _ask(state: RaftState, *, pre: bool, transfer: bool) -> None:
    log = state.log
    vote_term = state.term + 1 if pre else state.term
    for voter in state.voters:
        if voter == state.node_id:
            continue
        request = VoteRequest(
            state.group,
            state.node_id,
            voter,
            state.term,
            vote_term,
            log.last_index,
            log.last_term,
            pre,
            transfer,
            state.is_recovery_campaign,
        )
        if pre:
            state.send(request)
        else:
            state.send_promise(request)


def own_vote_durable(state: RaftState) -> None:
    """Count this candidate's vote for itself, since the hard state with it is durable."""
    if state.role is Role.CANDIDATE and state.is_hard_state_durable:
        assert state.vote == state.node_id, f"candidate voted for {state.vote}"
        if state.node_id not in state.votes:
            state.votes[state.node_id] = True
            _count_votes(state)


def _count_votes(state: RaftState) -> None:
    # Deviation: a recovery election needs every voter, since no majority remembers all promises.
    result = vote_result(state.voters, state.votes, unanimous=state.is_recovery_campaign)
    if result is VoteResult.WON:
        if state.role is Role.PRE_CANDIDATE:
            _ask_votes(state, "pre-vote quorum", transfer=False)
        else:
            become_leader(state)
    elif result is VoteResult.LOST:
        become_follower(state, state.term, NO_NODE, "refused by a quorum")


def handle_vote_reply(state: RaftState, message: VoteReply) -> None:
    """Count an answer to the current campaign; ignore answers to earlier ones (R04)."""
    if state.role is Role.PRE_CANDIDATE:
        is_current = message.pre and message.vote_term == state.term + 1
    elif state.role is Role.CANDIDATE:
        is_current = not message.pre and message.vote_term == state.term
    else:
        return
    if not is_current or message.recovery != state.is_recovery_campaign:
        return
    if message.sender not in state.voters or message.sender in state.votes:
        return
    state.terms_seen[message.sender] = message.term
    if message.refusal is Refusal.NO_STANDING:
        state.standing_refusals.add(message.sender)
    elif message.refusal is Refusal.HISTORY_CONFLICT:
        state.divergent_peers.add(message.sender)
    elif message.granted:
        state.divergent_peers.discard(message.sender)
    state.votes[message.sender] = message.granted
    _count_votes(state)


def handle_vote_request(state: RaftState, message: VoteRequest) -> None:
    """Answer a vote or pre-vote request. Owns the term rule for both, since leader stickiness comes
    before it."""
    state.terms_seen[message.sender] = message.term
    if message.pre:
        refusal = _pre_vote_refusal(state, message)
        _answer(state, message, refusal)
        return
    if message.term > state.term:
        if not message.transfer and (state.role is Role.LEADER or state.had_leader_contact()):
            _answer(state, message, Refusal.LEADER_ALIVE)
            return
        become_follower(state, message.term, NO_NODE, "higher term seen")
    refusal = _vote_refusal(state, message)
    if refusal is Refusal.NONE and state.vote == NO_NODE:
        if state.role is not Role.FOLLOWER:
            become_follower(state, state.term, NO_NODE, "vote granted")
        state.vote = message.sender
        state.touch_hard_state()
        state.timer_start = state.now
    _answer(state, message, refusal)


def _pre_vote_refusal(state: RaftState, message: VoteRequest) -> Refusal:
    if message.vote_term <= state.term:
        return Refusal.OLD_TERM
    if state.role is Role.LEADER or state.had_leader_contact():
        return Refusal.LEADER_ALIVE
    return _log_refusal(state, message)


def _vote_refusal(state: RaftState, message: VoteRequest) -> Refusal:
    if message.term < state.term:
        return Refusal.OLD_TERM
    if state.vote not in (NO_NODE, message.sender):
        return Refusal.ALREADY_VOTED
    if state.vote == NO_NODE and state.leader != NO_NODE:
        return Refusal.LEADER_ALIVE
    return _log_refusal(state, message)


def _log_refusal(state: RaftState, message: VoteRequest) -> Refusal:
    trusted = state.standing is Standing.FULL or (
        message.recovery and state.standing is Standing.RECOVERING
    )
    if not trusted:
        is_apart = state.standing is Standing.DIVERGED
        return Refusal.HISTORY_CONFLICT if is_apart else Refusal.NO_STANDING
    if not state.log.is_up_to_date(message.last_index, message.last_term):
        return Refusal.OLD_LOG
    if contradicts(state, message):
        state.divergent_peers.add(message.sender)
        return Refusal.HISTORY_CONFLICT
    return Refusal.NONE


def _answer(state: RaftState, message: VoteRequest, refusal: Refusal) -> None:
    reply = VoteReply(
        state.group,
        state.node_id,
        message.sender,
        state.term,
        message.vote_term,
        refusal is Refusal.NONE,
        message.pre,
        message.recovery,
        refusal,
        state.leader,
    )
    if reply.granted and not message.pre:
        state.send_promise(reply)
    else:
        state.send(reply)


def handle_campaign_now(state: RaftState, message: CampaignNow) -> None:
    """Campaign without pre-vote, if entitled, since the leader hands over."""
    if state.role not in (Role.FOLLOWER, Role.PRE_CANDIDATE):
        return
    if not state.is_voter or state.standing is not Standing.FULL or _is_at_end(state):
        return
    state.is_recovery_campaign = False
    state.standing_refusals.clear()
    _ask_votes(state, "asked to take over", transfer=True)
