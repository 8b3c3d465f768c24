"""The way of a replica with a new disk into the count (H11), by hand, and who counts at all."""

from __future__ import annotations

import pytest

from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.types import (
    HaBinding,
    HaRole,
    HaStanding,
    MachineNotMasterError,
    ReplicaState,
)
from node.replication.ha.core.wire import Ack, Admit, Frame, Handshake
from tests.node.replication.ha.core.machines import bound, follower, frames, joined, master

BINDING = HaBinding(5, 0, 7)
PROMISE = bound(BINDING, 5, 100)
ADMITTED = [Admit(5, 11)]


def with_a_new_disk(m: HaMachine) -> None:
    """Replica 2 dials in on link 'two' with a new disk, and streams."""
    joined(m, "two", 2)
    m.received("two", bound(BINDING, standing=HaStanding.JOINING))
    m.received("two", Handshake(2))


def admitted(m: HaMachine) -> list[Frame]:
    """Let replica 2 say that it holds all there is; return what tells it that it counts."""
    return [f for f in frames(m.received("two", Ack(100)), "two") if isinstance(f, Admit)]


def test_a_new_disk_is_admitted_once_all_others_confirmed_the_epoch_since() -> None:
    """An answer to an earlier question may come from before a promise that the disk forgot."""
    m = master(100, (1, 0))
    m.prove_master()  # The earlier question.
    with_a_new_disk(m)
    assert admitted(m) == [], "nobody was asked yet"
    m.received("one", PROMISE)
    assert admitted(m) == [], "the answer to the earlier question"
    m.received("one", PROMISE)
    assert admitted(m) == ADMITTED
    assert admitted(m) == [], "once is enough"


def test_a_replica_that_dials_later_confirms_the_epoch_for_a_new_disk_as_well() -> None:
    m = master(100, (1, 0))
    with_a_new_disk(m)
    joined(m, "again", 1)
    assert admitted(m) == []
    m.received("again", PROMISE)
    assert admitted(m) == ADMITTED


def test_a_handshake_in_the_name_of_another_replica_is_refused() -> None:
    """What it acked would count as a copy of the other one."""
    m = master(100, (1, 0))
    fx = m.received("one", Handshake(2))
    (closed,) = fx.close
    assert (closed.link, closed.reason[:27]) == ("one", "replica 1 shakes hands as 2")


def test_a_master_on_an_old_copy_serves_no_more_and_counts_for_nothing() -> None:
    m = master(100, (1, 0))
    fx = m.lose_memory(99)
    assert m.role is HaRole.SLAVE
    assert fx.state == ReplicaState(BINDING, HaStanding.JOINING, 99)
    assert [closed.link for closed in fx.close] == ["one"]
    with pytest.raises(MachineNotMasterError):
        m.check_append()


def test_only_its_own_link_proves_that_a_sender_lives() -> None:
    m = follower()
    joined(m, "down", 2)
    receiver = m.state.receiver
    assert receiver is not None
    m.tick(500)
    before = receiver.contact_ms
    m.on_contact("down")
    assert receiver.contact_ms == before
    m.on_contact("up")
    assert receiver.contact_ms == 500
