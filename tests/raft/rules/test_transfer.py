"""Rule R43: leadership moves on request, quickly or not at all."""

from __future__ import annotations

import pytest

from raft.errors import (
    NotLeaderError,
    TransferInvalidError,
    TransferRefusedError,
)
from raft.messages import NO_NODE, CampaignNow, Refusal, Standing, VoteRequest
from raft.rules.transfer import best_follower, transfer_leadership
from raft.transitions import Role
from tests.raft.builders import append, append_reply, campaign_now, vote_reply
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, led


def transfer(cluster: Cluster, leader: int, target: int) -> None:
    transfer_leadership(cluster.nodes[leader].core.state, target)
    cluster.settle(leader)


def test_a_target_that_does_not_answer_stops_proposals_once_and_is_then_refused(
    cluster: Cluster,
) -> None:
    cluster.isolate(3)
    transfer(cluster, 1, 3)
    cluster.tick_all(ELECTION_TICKS)

    with pytest.raises(TransferRefusedError, match="does not answer"):
        transfer(cluster, 1, 3)
    cluster.propose(1, "a")
    cluster.heal()
    cluster.tick_all(HEARTBEAT_TICKS)
    transfer(cluster, 1, 3)
    cluster.deliver()
    assert cluster.leaders() == [3]


def test_the_best_follower_is_one_that_answers(cluster: Cluster) -> None:
    """Else a leader that has to go asks a dead node, is refused, and asks it again."""
    best = best_follower(cluster.state(1), asked_last=(0, NO_NODE))
    cluster.isolate(best)
    for _ in range(2 * ELECTION_TICKS):
        cluster.beat(1, 1)

    other = best_follower(cluster.state(1), asked_last=(0, NO_NODE))
    assert other not in (best, NO_NODE)
    transfer(cluster, 1, other)
    cluster.deliver()
    assert cluster.leaders() == [other]


@pytest.mark.parametrize("target", [1, 4, 9])
def test_senseless_targets_are_refused(target: int) -> None:
    cluster = led(voters=(1, 2, 3), learners=(4,))
    with pytest.raises(TransferInvalidError, match="no other voter"):
        transfer(cluster, 1, target)


def test_an_only_voter_has_nobody_to_hand_over_to() -> None:
    cluster = led(voters=(1,), learners=(2,))
    with pytest.raises(TransferInvalidError, match=r"^transfer refused: there is no other voter$"):
        transfer(cluster, 1, NO_NODE)


def test_far_behind_target_is_refused() -> None:
    cluster = led(transfer_lag_entry_count_max=2)
    cluster.isolate(3)
    cluster.replicate(1, "abc")

    with pytest.raises(TransferRefusedError, match="3 entries behind"):
        transfer(cluster, 1, 3)


def test_target_whose_memory_is_in_doubt_is_refused(cluster: Cluster) -> None:
    """It may have acked what it lost: elected, it would begin without that."""
    match = cluster.state(1).log.last_index
    doubtful = append_reply(3, 1, 1, match=match, standing=Standing.RECOVERING, incarnation=1)
    cluster.receive(1, doubtful)
    with pytest.raises(TransferRefusedError, match="memory is in doubt"):
        transfer(cluster, 1, 3)
    assert not any(isinstance(m, CampaignNow) for m in cluster.sent)


def test_a_long_log_is_no_lag() -> None:
    cluster = led(transfer_lag_entry_count_max=2)
    cluster.replicate(1, range(6))

    transfer(cluster, 1, 3)
    cluster.deliver()

    assert cluster.leaders() == [3]


def test_second_transfer_is_refused_while_one_runs(cluster: Cluster) -> None:
    cluster.isolate(3)
    transfer(cluster, 1, 3)
    with pytest.raises(TransferRefusedError, match="under way"):
        transfer(cluster, 1, 2)


def test_only_a_leader_transfers(cluster: Cluster) -> None:
    with pytest.raises(NotLeaderError):
        transfer(cluster, 2, 3)


def test_learner_does_not_follow_the_order() -> None:
    cluster = led(voters=(1, 2, 3), learners=(4,))
    cluster.receive(4, campaign_now(1, 4, 1))
    assert cluster.role(4) is Role.FOLLOWER


def test_preferred_leader_takes_over_when_it_is_well() -> None:
    cluster = led(preferred_leader=3, preferred_retry_ticks=50)

    cluster.tick_all(3 * ELECTION_TICKS)
    assert cluster.leaders() == [3]

    cluster.crash(3)
    cluster.tick_all(4 * ELECTION_TICKS)
    assert cluster.leaders() in ([1], [2])
    cluster.restart(3)
    cluster.tick_all(10 * ELECTION_TICKS)
    assert cluster.leaders() == [3]


def test_preferred_leader_that_is_far_behind_is_not_tried_and_nothing_breaks() -> None:
    """It answers; the hand-over would be refused, and a refusal in a tick would end the node."""
    cluster = led(preferred_leader=3, transfer_lag_entry_count_max=1)
    for node in cluster.nodes.values():
        node.syncs_at_once = True
    progress = cluster.state(1).progress[3]
    progress.match = cluster.state(1).log.last_index - 2
    cluster.state(1).preferred_next_tick = 0
    progress.contact_tick = cluster.state(1).now

    cluster.tick(1, HEARTBEAT_TICKS)

    assert cluster.leaders() == [1]
    assert cluster.state(1).transferee == NO_NODE


def test_preferred_leader_is_not_tried_again_at_once() -> None:
    cluster = led(preferred_leader=3, preferred_retry_ticks=50)
    cluster.cuts = {(1, 3)}
    cluster.state(1).preferred_next_tick = 0
    orders = []
    for _ in range(100):
        cluster.tick(1)
        cluster.state(1).progress[3].contact_tick = cluster.state(1).now
        cluster.deliver()
        orders += [m for m in cluster.sent if isinstance(m, CampaignNow)]
        cluster.sent.clear()
    assert 1 <= len(orders) <= 2


def test_preferred_leader_waits_while_leadership_moves_to_another_node() -> None:
    """A second hand-over would be refused, and a refusal in a tick would end the node."""
    cluster = led(preferred_leader=3)
    cluster.state(1).preferred_next_tick = 0
    cluster.cuts = {(1, 2)}
    transfer(cluster, 1, 2)

    cluster.tick(1, HEARTBEAT_TICKS)
    assert (cluster.leaders(), cluster.state(1).transferee) == ([1], 2)
    cluster.tick_all(ELECTION_TICKS)

    assert cluster.leaders() == [3]


def test_an_order_to_take_over_forgets_who_refused_an_earlier_campaign() -> None:
    """Else the next campaign asks for every vote, as if their memory were still in doubt."""
    cluster = Cluster()
    cluster.tick(1, ELECTION_TICKS + 1)
    for voter in (2, 3):
        doubt = vote_reply(
            voter, 1, 0, vote_term=1, granted=False, pre=True, refusal=Refusal.NO_STANDING
        )
        cluster.receive(1, doubt)
    assert (cluster.role(1), cluster.state(1).standing_refusals) == (Role.FOLLOWER, {2, 3})
    cluster.receive(1, append(2, 1, 1))
    cluster.receive(1, campaign_now(2, 1, 1))
    assert (cluster.role(1), cluster.state(1).term) == (Role.CANDIDATE, 2)
    cluster.drop()

    cluster.tick(1, 2 * ELECTION_TICKS)

    requests = [outgoing.message for outgoing in cluster.take(VoteRequest)]
    assert requests
    assert all(isinstance(m, VoteRequest) and m.pre and not m.recovery for m in requests)
