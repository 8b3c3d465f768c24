"""The slave side by hand: cuts, acks, links, and the way of a replica with a new disk into the
count."""

from __future__ import annotations

import pytest

from node.replication.ha.core.effects import LogCut, LossReport
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.types import (
    AckMode,
    EpochStart,
    HaBinding,
    HaRole,
    HaStanding,
    MachineNotMasterError,
    ReplicaState,
)
from node.replication.ha.core.wire import (
    Ack,
    Admit,
    Bind,
    Bound,
    Frame,
    Handshake,
    HandshakeReply,
    Hello,
    Transfer,
)
from tests.node.replication.ha.core.machines import bound, follower, frames, joined, machine, master

# The slave.


def test_a_slave_acks_what_is_synced_and_reads_to_the_confirm_offset() -> None:
    m = follower()
    m.received("up", HandshakeReply(0, 5, (EpochStart(5, 0),)))
    fx = m.received("up", Transfer(0, 5, 0, 6, b"0123456789"))
    assert frames(fx, "up") == []
    assert fx.confirm == 6
    assert frames(m.durable_to(4), "up") == [Ack(4)]
    assert m.received("up", Transfer(10, 5, 0, 40)).confirm == 10  # No further than the own log.


def test_a_slave_acks_nothing_before_its_master_has_answered() -> None:
    m = follower(100, (1, 0))
    assert frames(m.durable_to(100), "up") == []
    fx = m.received("up", HandshakeReply(100, 5, (EpochStart(1, 0), EpochStart(5, 100))))
    assert frames(fx, "up") == [Ack(100)]


def test_an_epoch_is_stored_before_its_first_bytes() -> None:
    m = follower()
    m.received("up", HandshakeReply(100, 5, (EpochStart(4, 0), EpochStart(5, 50))))
    fx = m.received("up", Transfer(0, 4, 0, 0, bytes(50)))
    assert fx.epochs is not None
    assert fx.epochs.entries == ((4, 0), (5, 50))


def test_an_old_master_is_cut_and_says_what_it_lost() -> None:
    """H6, I19."""
    m = master(100, (1, 0), mode=AckMode.ASYNC)
    for end in (110, 120):
        m.appended_all([(end, end)])
        m.durable_to(end)
    m.dialled("up", 2)
    m.received("up", Bind(HaBinding(6, 2, 9)))
    fx = m.received("up", HandshakeReply(150, 6, (EpochStart(1, 0), EpochStart(6, 100))))
    assert fx.cut == LogCut(100, 120)
    assert fx.losses == [LossReport(5, 100, 120, 120, True)]
    assert fx.confirm == 100
    assert fx.epochs is not None
    assert fx.epochs.entries == ((1, 0), (6, 100))
    assert frames(fx, "up") == [Ack(100)]


def test_a_new_master_reports_what_it_knows_to_be_lost() -> None:
    m = machine(0, 100, (1, 0), mode=AckMode.ASYNC)
    joined(m, "one", 1)
    m.promote(7, 5)
    fx = m.received("one", bound(HaBinding(5, 0, 7), 1, 90, known=140))
    assert fx.losses == [LossReport(1, 100, 140, 140, False)]


def test_a_log_without_a_common_epoch_goes_aside_as_a_whole() -> None:
    m = follower(30)
    fx = m.received("up", HandshakeReply(10, 5, (EpochStart(5, 0),)))
    assert fx.cut == LogCut(0, 30)
    assert frames(fx, "up") == [Ack(0)]


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(5, 4, 0, 0, b"x"),  # A gap.
        Transfer(0, 3, 0, 0, b"x"),  # Another epoch.
        Transfer(0, 4, 1, 0, b"x"),  # Another start.
        Transfer(0, 4, 0, 0, bytes(60)),  # Spans the start of epoch 5.
    ],
)
def test_bytes_that_do_not_fit_close_the_link(transfer: Transfer) -> None:
    m = follower()
    m.received("up", HandshakeReply(100, 5, (EpochStart(4, 0), EpochStart(5, 50))))
    m.received("up", Transfer(0, 4, 0, 0, b""))
    state_end = m.state.end
    if transfer.position == 5:
        m.received("up", Transfer(0, 4, 0, 0, b"a"))
        state_end = 1
    fx = m.received("up", transfer)
    assert [close.link for close in fx.close] == ["up"]
    assert (fx.write, m.state.end) == ([], state_end)


@pytest.mark.parametrize(
    "reply",
    [
        HandshakeReply(100, 6, (EpochStart(5, 0),)),
        # Nobody who is followed is ahead of his fence.
        HandshakeReply(100, 6, (EpochStart(6, 0),)),
        HandshakeReply(100, 5, (EpochStart(6, 0), EpochStart(5, 9))),
        HandshakeReply(100, 6, (EpochStart(5, 9), EpochStart(6, 9))),
        HandshakeReply(8, 5, (EpochStart(5, 9),)),
    ],
)
def test_a_reply_that_cannot_be_closes_the_link(reply: HandshakeReply) -> None:
    fx = follower(30, (1, 0)).received("up", reply)
    assert [close.link for close in fx.close] == ["up"]
    assert fx.cut is None


def left_behind() -> HaMachine:
    """A slave that ends at 30, below the first byte of a master of its own history."""
    m = follower(30, (5, 0))
    fx = m.received("up", HandshakeReply(100, 5, (EpochStart(5, 0),)))
    assert (fx.cut, frames(fx, "up")) == (None, [Ack(30)])
    return m


def test_a_slave_behind_what_its_master_keeps_stays_as_it_is_until_there_is_an_image() -> None:
    m = left_behind()
    assert m.is_behind("up", 60)
    assert not m.is_behind("up", 30)
    m.dialled("other", 2)
    assert not m.is_behind("other", 60), "this log follows another one"
    m.tick(19_000)
    fx = m.received("up", Transfer(60, 5, 0, 80, bytes(10)))
    assert (fx.write, fx.cut, fx.close, fx.confirm) == ([], None, [], 30)
    assert m.state.end == 30
    assert m.tick(38_000).close == [], "it was heard"


def test_a_gap_within_a_session_is_a_breach() -> None:
    m = left_behind()
    m.received("up", Transfer(30, 5, 0, 0, bytes(10)))
    assert not m.is_behind("up", 60)
    assert m.received("up", Transfer(60, 5, 0, 0, bytes(10))).close
    m = left_behind()
    assert m.received("up", Transfer(60, 4, 0, 0, bytes(10))).close, "nor of another epoch"


def test_a_former_master_leaves_no_replica_behind() -> None:
    m = left_behind()
    m.dialled("new", 2)
    m.received("new", Bind(HaBinding(6, 2, 9)))
    assert not m.is_behind("up", 60)


# Links.


def test_strangers_are_refused() -> None:
    for hello in (Hello(1, 11, "other"), Hello(9, 11, "g"), Hello(0, 11, "g")):
        m = machine(0)
        m.accepted("x")
        assert [c.link for c in m.received("x", hello).close] == ["x"]
    m = machine(0)
    m.accepted("x")
    assert [c.link for c in m.received("x", Ack(1 << 40)).close] == ["x"]  # HELLO comes first.


def test_frames_of_the_other_direction_are_refused() -> None:
    assert follower().received("up", Ack(0)).close
    assert master().received("one", Bind(HaBinding(9, 1, 1))).close


def test_heartbeats_and_silence() -> None:
    m = master()
    assert frames(m.tick(1000), "one") == [Transfer(0, 5, 0, 0)]
    assert m.tick(19_999).close == []
    assert [close.link for close in m.tick(20_000).close] == ["one"]
    s = follower()
    s.received("up", HandshakeReply(0, 5, (EpochStart(5, 0),)))
    assert frames(s.tick(1000), "up") == [Ack(0)]
    assert [close.link for close in s.tick(20_000).close] == ["up"]


# A replica with a new disk.


def test_a_new_disk_counts_after_all_others_confirmed_and_it_holds_everything() -> None:
    """H11."""
    m = master()
    m.appended_all([(10, "a")])
    m.durable_to(10)
    fx = joined(m, "two", 2)
    assert frames(fx, "two") == [Bind(HaBinding(5, 0, 7))]
    joining = Bound(HaBinding(5, 0, 7), 0, 0, 0, 0, HaStanding.JOINING, 99)
    fx = m.received("two", joining)
    assert frames(fx, "one") == [Bind(HaBinding(5, 0, 7))]  # Asked again, now that the disk is new.
    m.received("two", Handshake(2))
    m.received("two", Ack(0))
    fx = m.received("two", Ack(10))
    assert fx.resolved == []  # It does not count,
    assert Admit(5, 99) not in frames(fx, "two")  # and nobody has confirmed yet.
    m.received("one", bound(HaBinding(5, 0, 7)))
    fx = m.received("two", Ack(10))
    assert Admit(5, 99) in frames(fx, "two")
    m.received("two", joining._replace(standing=HaStanding.FULL, end=10, last_epoch=5))
    assert [r.waiter for r in m.received("two", Ack(10)).resolved] == ["a"]


def test_a_new_disk_is_not_admitted_below_the_limit_of_readers() -> None:
    m = master()
    m.appended_all([(10, "a")])
    m.durable_to(10)
    assert m.received("one", Ack(10)).confirm == 10
    joined(m, "two", 2)
    m.received("two", Bound(HaBinding(5, 0, 7), 0, 0, 0, 0, HaStanding.JOINING, 99))
    m.received("one", bound(HaBinding(5, 0, 7)))
    m.received("two", Handshake(2))
    for position, is_admitted in ((0, False), (9, False), (10, True)):
        assert (Admit(5, 99) in frames(m.received("two", Ack(position)), "two")) is is_admitted


def test_a_replica_is_admitted_by_its_master_for_this_disk_only() -> None:
    m = machine(1, standing=HaStanding.JOINING)
    m.dialled("up", 0)
    m.received("up", Bind(HaBinding(5, 0, 7)))
    assert m.received("up", Admit(5, 12)).state is None
    assert m.received("up", Admit(4, 11)).state is None
    m.dialled("other", 2)
    assert m.received("other", Admit(5, 11)).state is None, "it is not of the master"
    fx = m.received("up", Admit(5, 11))
    assert fx.state is not None
    assert fx.state.standing is HaStanding.FULL


def test_a_restarted_master_does_not_go_on_in_its_epoch() -> None:
    m = machine(0, 50, (5, 0), (6, 60), bound=HaBinding(6, 0, 7))
    assert m.role is HaRole.SLAVE
    assert m.state.epochs.entries == ((5, 0),)  # Its start was lost with the bytes before it.
    with pytest.raises(MachineNotMasterError):
        m.check_append()


# --- A new disk (H11) ---


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
