"""A sync that hangs: the pump stays bounded, and no promise leaves before its writes are
durable."""

from __future__ import annotations

from raft.messages import AppendReply, Message
from raft.pump.flush_queue import FLUSH_COUNT_MAX, FlushQueue
from raft.ready import HardState
from tests.raft.builders import append, append_reply, send, vote_reply
from tests.raft.cluster import Cluster, config_of

COUNT = 3 * FLUSH_COUNT_MAX


def follower_with_a_hanging_sync(count: int = COUNT, **settings: int) -> Cluster:
    """Return a cluster whose node 2 got one entry a turn and has no sync ended."""
    cluster = Cluster(**settings)  # type: ignore[arg-type]
    cluster.receive(2, append(1, 2, 1))
    cluster.nodes[2].syncs_at_once = False
    for index in range(count):
        send(cluster, append(1, 2, 1, prev=(index - 1, 1 if index else 0), terms=[1]))
    cluster.sent.clear()
    return cluster


def acks(cluster: Cluster) -> list[int]:
    return [m.match for m in cluster.sent if isinstance(m, AppendReply)]


def test_a_hanging_sync_costs_bounded_memory() -> None:
    cluster = follower_with_a_hanging_sync()
    flushes = cluster.nodes[2].replica.flushes
    assert (len(flushes), flushes.held_count) == (FLUSH_COUNT_MAX, FLUSH_COUNT_MAX)
    assert flushes.held_dropped == 0
    assert len(cluster.nodes[2].tickets) == COUNT, "the shell still learns of each"


def test_folded_promises_wait_for_their_own_writes() -> None:
    """A sync that covers all but the last write releases what that sync covers and no more."""
    cluster = follower_with_a_hanging_sync()
    cluster.sync(2, through=cluster.nodes[2].tickets[-2])
    assert max(acks(cluster)) < COUNT - 1
    assert cluster.state(2).synced < COUNT - 1

    cluster.sync(2)

    assert acks(cluster)[-1] == COUNT - 1
    assert cluster.state(2).synced == COUNT - 1
    flushes = cluster.nodes[2].replica.flushes
    assert (len(flushes), flushes.held_count) == (0, 0)


def test_truncation_moves_a_folded_ticket_back() -> None:
    """What a folded sync covers was replaced: its end says nothing about the new entries."""
    cluster = follower_with_a_hanging_sync()
    send(cluster, append(3, 2, 5, prev=(1, 1), terms=[5]))
    cluster.sync(2, through=cluster.nodes[2].tickets[-2])
    assert cluster.state(2).synced <= 1
    cluster.sync(2)
    assert cluster.state(2).synced == 2


def test_promises_of_a_core_that_is_no_more_are_never_sent() -> None:
    """Those of this turn and those that wait for a sync."""
    flushes = FlushQueue(config_of(2))
    flushes.hold(append_reply(2, 1, 1, match=0))
    ticket = flushes.open(0, 1, HardState(1, 0))
    flushes.hold(append_reply(2, 3, 1, match=1))

    flushes.forget_promises()

    later = flushes.open(1, 1, HardState(1, 0))
    assert flushes.take(ticket)[1] == []
    assert flushes.take(later)[1] == []
    assert flushes.held_count == 0


def test_an_ack_stands_for_nothing_but_an_ack_to_the_same_node() -> None:
    flushes = FlushQueue(config_of(2))
    held: list[Message] = [
        append_reply(2, 1, 1, match=0),
        append_reply(2, 3, 1, match=1),
        vote_reply(2, 3, 1),
        append_reply(2, 3, 1, match=2),
    ]
    for message in held:
        flushes.hold(message)
    assert flushes.held == held


def test_a_promise_joins_a_ticket_that_had_none() -> None:
    flushes = FlushQueue(config_of(2))
    for index in range(FLUSH_COUNT_MAX):
        flushes.open(index, 1, HardState(1, 0))
    ack = append_reply(2, 1, 1, match=FLUSH_COUNT_MAX)
    flushes.hold(ack)

    ticket = flushes.open(FLUSH_COUNT_MAX, 1, HardState(1, 0))

    assert flushes.take(ticket - 1)[1] == []
    assert flushes.take(ticket)[1] == [ack]


def test_an_ack_of_another_memory_does_not_stand_for_the_one_before() -> None:
    flushes = FlushQueue(config_of(2))
    acks = [append_reply(2, 1, 1, match=at, incarnation=at // 2) for at in range(4)]
    for ack in acks:
        flushes.hold(ack)
    assert flushes.held == [acks[1], acks[3]], "each ack includes those of its memory before it"
