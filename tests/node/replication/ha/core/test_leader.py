"""The master side by hand: fence, longest log, copies, streams, proven reads, the end of its
office."""

from __future__ import annotations

import pytest

from node.config.limits import EPOCH_END
from node.replication.ha.core.effects import LogCut, LogWrite, Send, Ship
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.state import HaState
from node.replication.ha.core.types import (
    AckMode,
    EpochStart,
    HaBinding,
    HaBusyError,
    HaRole,
    HaSettings,
    HaStanding,
    MachineNotMasterError,
    PromotionError,
    ReplicaState,
)
from node.replication.ha.core.wire import (
    Ack,
    Bind,
    Bound,
    Handshake,
    HandshakeReply,
    Hello,
    Transfer,
)
from store.errors import Outcome
from tests.node.replication.ha.core.machines import (
    SETTINGS,
    Log,
    bound,
    follower,
    frames,
    joined,
    machine,
    master,
    promoted,
)

# The fence.


def test_fence_before_serving() -> None:
    m = machine(0, 100, (1, 0))
    joined(m, "one", 1)
    fx = m.promote(7)
    binding = HaBinding(1, 0, 7)  # Above all that is bound, which is nothing.
    assert fx.state is not None
    assert fx.state.bound == binding
    assert frames(fx, "one") == [Bind(binding)]
    assert m.role is HaRole.CANDIDATE
    with pytest.raises(MachineNotMasterError):
        m.check_append()


def test_a_fence_of_replicas_with_new_disks_does_not_stand() -> None:
    m = machine(0)
    joined(m, "one", 1)
    m.promote(7, 5)
    m.received("one", bound(HaBinding(5, 0, 7), standing=HaStanding.JOINING))
    assert m.role is HaRole.CANDIDATE


def test_a_replica_with_a_new_disk_is_never_promoted() -> None:
    with pytest.raises(PromotionError, match="new disk"):
        machine(0, standing=HaStanding.JOINING).promote(7)


def test_two_controller_leaders_lose_nothing() -> None:
    """H7: one number for two masters; the slave takes the first, the other gets no promise."""
    m = machine(2)
    m.dialled("a", 0)
    m.dialled("b", 1)
    assert m.received("a", Bind(HaBinding(5, 0, 7))).state is not None
    fx = m.received("b", Bind(HaBinding(5, 1, 8)))
    assert fx.state is None
    reply = frames(fx, "b")
    assert isinstance(reply[0], Bound)
    assert reply[0].binding == HaBinding(5, 0, 7)
    other = machine(1)
    joined(other, "two", 2)
    other.promote(8, 5)
    other.received("two", reply[0])
    assert other.role is HaRole.CANDIDATE
    assert other.stats()["promises_refused"] == 1
    assert not m.surpass(9).state, "a slave surpasses no epoch"
    # The same number of the same master with another nonce is another epoch, too.
    assert m.received("a", Bind(HaBinding(5, 0, 9))).state is None
    assert m.received("a", Bind(HaBinding(4, 0, 7))).state is None


def test_a_master_surpasses_an_epoch_that_another_master_has_too() -> None:
    """A replica never leaves the pair of a number: it follows once the number is higher."""
    m = promoted(machine(0))
    loser = machine(2)
    loser.promote(8, 5)
    loser.dialled("up", 0)
    refusal = frames(loser.received("up", Bind(m.state.bound)), "up")[0]
    joined(m, "two", 2)
    fx = m.received("two", refusal)
    assert (m.role, fx.is_contested) == (HaRole.MASTER, True)
    fx = m.surpass(9)
    assert m.state.bound == HaBinding(6, 0, 9)
    follow = loser.received("up", frames(fx, "two")[0])
    assert loser.role is HaRole.SLAVE
    fx = m.received("two", frames(follow, "up")[0])
    assert (m.role, fx.is_contested) == (HaRole.MASTER, False)


def test_of_two_candidates_of_a_number_the_one_with_the_higher_id_surpasses_it() -> None:
    for me, rival, is_contested in ((1, 0, True), (1, 2, False)):
        m = machine(me)
        joined(m, "rival", rival)
        m.promote(7, 5)
        fx = m.received("rival", bound(HaBinding(5, rival, 8)))
        assert (m.role, fx.is_contested) == (HaRole.CANDIDATE, is_contested)
        assert not m.received("rival", bound(HaBinding(4, rival, 8))).is_contested, "an old answer"
        joined(m, "voter", 3 - me - rival)
        fx = m.received("voter", bound(HaBinding(5, me, 7)))
        assert (m.role, frames(fx, "rival")) == (HaRole.MASTER, [Bind(HaBinding(5, me, 7))])
    far = machine(1, bound=HaBinding(EPOCH_END - 2, 0, 7))
    far.promote(7)
    assert far.surpass(9).state is None, "there is no higher number"


def test_advice_is_only_advice() -> None:
    m = machine(0, bound=HaBinding(5, 1, 8))
    assert m.advise(5, 0, 7).state is None
    assert m.advise(9, 1, 7).state is None  # For somebody else.
    assert m.stats()["advice_refused"] == 1
    assert m.advise(6, 0, 7).state is not None
    with pytest.raises(PromotionError, match="not above"):
        m.promote(7, 6)


def test_a_candidate_takes_the_longest_log_first() -> None:
    m = machine(0, 100, (1, 0))
    joined(m, "one", 1)
    m.dialled("up", 1)
    m.promote(7, 5)
    fx = m.received("one", bound(HaBinding(5, 0, 7), 1, 150))
    assert frames(fx, "up") == [Handshake(0)]
    fx = m.received("up", HandshakeReply(150, 1, (EpochStart(1, 0),)))
    assert frames(fx, "up") == [Ack(100)]
    fx = m.received("up", Transfer(100, 1, 0, 0, bytes(50)))
    assert fx.write == [LogWrite(100, bytes(50))]
    assert fx.role_changes == []  # Not before it is synced.
    fx = m.durable_to(150)
    assert [change.role for change in fx.role_changes] == [HaRole.MASTER]
    assert fx.epochs is not None
    assert fx.epochs.entries == ((1, 0), (5, 150))


def test_a_later_epoch_beats_a_longer_log() -> None:
    m = machine(0, 500, (1, 0))
    joined(m, "one", 1)
    m.dialled("up", 1)
    m.promote(7, 5)
    m.received("one", bound(HaBinding(5, 0, 7), 2, 150))
    assert m.role is HaRole.CANDIDATE
    fx = m.received("up", HandshakeReply(150, 2, (EpochStart(1, 0), EpochStart(2, 120))))
    assert fx.cut == LogCut(120, 500)
    assert fx.epochs is not None
    assert fx.epochs.entries == ((1, 0), (2, 120))


def test_a_donor_is_asked_on_a_fresh_link() -> None:
    m = follower()
    joined(m, "zero", 0)
    m.promote(8, 6)
    fx = m.received("zero", bound(HaBinding(6, 1, 8), 5, 10))
    assert [close.link for close in fx.close] == ["up"]
    assert frames(m.dialled("again", 0), "again") == [Hello(1, 11, "g"), Handshake(1)]


def test_a_donor_ships_to_the_candidate_it_is_bound_to_and_to_nobody_else() -> None:
    m = follower(100, (1, 0))
    joined(m, "zero", 0)
    joined(m, "two", 2)
    assert frames(m.received("two", Handshake(2)), "two") == []
    reply = frames(m.received("zero", Handshake(0)), "zero")
    assert reply == [HandshakeReply(100, 1, (EpochStart(1, 0),))]
    assert frames(m.received("zero", Ack(40)), "zero") == [Transfer(40, 1, 0, 0)]
    fx = m.received("up", Bind(HaBinding(6, 0, 9)))  # Bound anew: what it ships may change now.
    assert [close.link for close in fx.close] == ["zero"]


def test_an_answer_waits_for_the_sync_of_the_log() -> None:
    m = master(100, (1, 0))
    m.appended_all([(120, "a")])
    m.dialled("up", 2)
    fx = m.received("up", Bind(HaBinding(6, 2, 9)))
    assert m.role is HaRole.SLAVE
    assert frames(fx, "up") == []
    reply = frames(m.durable_to(120), "up")
    assert isinstance(reply[0], Bound)
    assert (reply[0].last_epoch, reply[0].end) == (5, 120)


# Copies.


def test_sync_mode_acks_with_k_copies_and_readers_stop_there() -> None:
    m = master()
    m.appended_all([(10, "a")])
    fx = m.durable_to(10)
    assert (fx.resolved, fx.confirm) == ([], None)
    fx = m.received("one", Ack(10))
    assert [(r.waiter, r.outcome) for r in fx.resolved] == [("a", Outcome.APPLIED)]
    assert fx.confirm == 10
    # The new limit goes out at once.
    assert frames(fx, "one") == [Transfer(10, 5, 0, 10)]


def test_async_mode_acks_what_the_master_has_synced() -> None:
    m = master(0, mode=AckMode.ASYNC)
    assert m.appended_all([(10, "a"), (20, "b")]).resolved == []
    fx = m.durable_to(10)
    assert ([append.waiter for append in fx.resolved], fx.confirm) == (["a"], 10)


def test_a_transfer_ends_with_its_epoch() -> None:
    m = promoted(machine(0, 100, (1, 0)), bound(HaBinding(5, 0, 7), 1, 50))
    m.appended_all([(110, "a")])
    fx = m.received("one", Ack(50))
    assert [(ship.lo, ship.hi) for ship in fx.send if isinstance(ship, Ship)] == [
        (50, 100),
        (100, 110),
    ]


def test_the_master_counts_itself_only_when_synced() -> None:
    m = master()
    m.appended_all([(10, "a")])
    assert m.received("one", Ack(10)).resolved == []
    assert [r.waiter for r in m.durable_to(10).resolved] == ["a"]


def test_acks_count_per_replica_and_not_per_link() -> None:
    """H10, with k = 3: two links of one slave are one copy."""
    settings = SETTINGS._replace(copies=3)
    state = ReplicaState(HaBinding(), HaStanding.FULL, 10)
    m = promoted(HaMachine(HaState(settings, 0, Log(), state, Epochs(), 0)))
    m.received("one", Ack(0))
    m.appended_all([(10, "x")])
    m.durable_to(10)
    m.received("one", Ack(10))
    fx = joined(m, "b", 1)
    assert [close.link for close in fx.close] == ["one"]
    m.received("b", bound(HaBinding(5, 0, 7), 5, 10))
    m.received("b", Handshake(1))
    assert m.received("b", Ack(10)).resolved == []
    assert m.received("one", Ack(10)).resolved == []
    joined(m, "c", 2)
    m.received("c", bound(HaBinding(5, 0, 7)))
    m.received("c", Handshake(2))
    m.received("c", Ack(0))
    assert [r.waiter for r in m.received("c", Ack(10)).resolved] == ["x"]


def test_an_ack_below_the_epoch_start_is_no_copy() -> None:
    m = master(100, (1, 0))
    m.durable_to(100)
    assert m.state.confirm == 100  # The slave holds all of it, and so knows the epoch.
    m = promoted(machine(0, 100, (1, 0)), bound(HaBinding(5, 0, 7), 1, 50))
    m.received("one", Ack(50))
    assert m.received("one", Ack(99)).confirm is None
    assert m.received("one", Ack(100)).confirm == 100


def test_a_fenced_master_tells_its_callers_unknown() -> None:
    m = master()
    m.appended_all([(10, "a")])
    fx = m.received("one", bound(HaBinding(6, 2, 9)))
    assert [(r.waiter, r.outcome) for r in fx.resolved] == [("a", Outcome.UNKNOWN)]
    with pytest.raises(MachineNotMasterError):
        m.check_append()
    assert (m.received("one", Ack(10)).resolved, m.stats()["waiters"]) == ([], 0)


def test_waiting_appends_are_limited() -> None:
    m = master()
    for n in range(3):
        m.check_append()
        m.appended_all([(n + 1, n)])
    with pytest.raises(HaBusyError, match="3 appends wait"):
        m.check_append()


def test_later_acks_are_checked_too() -> None:
    for position in (9, 11):  # Going back, and more than was shipped.
        m = master(10)
        assert [c.link for c in m.received("one", Ack(position)).close] == ["one"]


@pytest.mark.parametrize("position", [0, 59])
def test_a_slave_below_the_first_file_gets_it_and_is_no_copy_before_it_has_it(
    position: int,
) -> None:
    log = Log()
    log.min_position = 60
    m = promoted(machine(0, 100, (1, 0), log=log))
    fx = m.received("one", Ack(position))
    assert [(item.lo, item.hi) for item in fx.send if isinstance(item, Ship)] == [(60, 100)]
    assert m.received("one", Ack(position)).close == [], "it says so again until it begins anew"
    assert (m.state.confirm, m.state.copies.acked(1)) == (0, None)
    assert m.received("one", Ack(100)).confirm == 100


def test_a_window_bounds_what_is_under_way() -> None:
    settings = SETTINGS._replace(window_size_bytes=30, transfer_size_bytes=20)
    state = ReplicaState(HaBinding(), HaStanding.FULL, 10)
    m = promoted(HaMachine(HaState(settings, 0, Log(), state, Epochs(), 100)))
    fx = m.received("one", Ack(0))
    assert [(s.lo, s.hi) for s in fx.send if isinstance(s, Ship)] == [(0, 20), (20, 40)]
    fx = m.received("one", Ack(20))
    assert [(s.lo, s.hi) for s in fx.send if isinstance(s, Ship)] == [(40, 60)]


def test_a_master_does_not_ship_to_a_slave_that_claims_more_than_there_is() -> None:
    for position in (101, 1 << 60, -1):
        m = promoted(machine(0, 100, (1, 0)))
        fx = m.received("one", Ack(position))
        assert ([close.link for close in fx.close], fx.send) == (["one"], [])
        assert m.state.confirm == 0


def test_a_new_master_proves_no_read_before_its_epoch_is_confirmed() -> None:
    """Its readers' limit may still be below what the master before it acked."""
    m = machine(0, 100, (1, 0))
    joined(m, "one", 1)
    m.promote(7, 5)
    promise = bound(HaBinding(5, 0, 7), 1, 100)
    m.received("one", promise)
    assert (m.role, m.state.confirm) == (HaRole.MASTER, 0)
    m.prove_master()
    assert not m.received("one", promise).is_proven
    m.received("one", Handshake(1))
    fx = m.received("one", Ack(100))
    assert (fx.confirm, fx.is_proven) == (100, True)


class StoredLog(Log):
    """Ships nothing that is not in it."""

    end = 0

    def ship_end(self, lo: int, hi: int, size_bytes_max: int) -> int:
        assert hi <= self.end, f"asked up to {hi} of a log that ends at {self.end}"
        return super().ship_end(lo, hi, size_bytes_max)


def test_a_donor_ships_what_it_receives_only_once_it_is_in_the_log() -> None:
    log = StoredLog()
    log.end = 100
    m = machine(1, 100, (1, 0), log=log)
    m.dialled("up", 0)
    joined(m, "down", 0)
    m.received("up", Bind(HaBinding(5, 0, 7)))
    m.received("down", Handshake(0))
    m.received("down", Ack(100))  # The candidate has all of it, and serves now.
    m.received("up", HandshakeReply(100, 5, (EpochStart(1, 0), EpochStart(5, 100))))
    assert m.received("up", Transfer(100, 5, 100, 0, bytes(10))).write == [LogWrite(100, bytes(10))]
    log.end = 110
    assert any(isinstance(item, Ship) for item in m.durable_to(110).send)


def test_a_donor_whose_log_is_cut_ends_what_it_was_sending() -> None:
    m = machine(1, 100, (1, 0))
    m.dialled("up", 0)
    joined(m, "down", 0)
    m.received("up", Bind(HaBinding(5, 0, 7)))
    m.received("down", Handshake(0))
    fx = m.received("up", HandshakeReply(60, 5, (EpochStart(1, 0), EpochStart(5, 50))))
    assert fx.cut == LogCut(50, 100)
    assert [close.link for close in fx.close] == ["down"]


# --- Reads that prove who is master, the mode that travels with a fence, a master that resigns ---


HERE = HaBinding(5, 0, 7)


def test_a_proof_needs_an_answer_that_was_asked_for_after_it_began() -> None:
    """The one that is on its way when it begins may have been sent before another fence."""
    m = master(0)
    joined(m, "two", 2)  # Asked at its HELLO, not answered yet.
    fx = m.prove_master()
    assert (fx.is_proven, frames(fx, "one")) == (False, [Bind(HERE)])
    assert not m.received("two", bound(HERE)).is_proven
    assert not m.received("one", bound(HERE, standing=HaStanding.JOINING)).is_proven, "a new disk"
    assert m.received("two", bound(HERE)).is_proven
    assert not m.received("two", bound(HERE)).is_proven, "once is enough"
    assert not m.prove_master().is_proven, "each has its own question"


def test_the_only_replica_of_a_group_proves_at_once_that_it_is_the_master() -> None:
    settings = HaSettings("g", (0,), copies=1, waiter_count_max=3)
    state = ReplicaState(HaBinding(), HaStanding.FULL, 10)
    m = HaMachine(HaState(settings, 0, Log(), state, Epochs(()), 0))
    m.promote(7)
    m.durable_to(0)
    assert m.role is HaRole.MASTER
    assert m.prove_master().is_proven


def test_a_replica_that_comes_back_is_asked_for_the_proof_under_way() -> None:
    m = master(0)
    m.disconnected("one")
    assert not m.prove_master().is_proven
    fx = joined(m, "again", 1)
    assert frames(fx, "again") == [Bind(HERE)]
    assert m.received("again", bound(HERE)).is_proven


def test_a_deposed_master_proves_nothing() -> None:
    m = master(0)
    m.prove_master()
    m.received("one", bound(HaBinding(6, 2, 1)))
    assert (m.role, m.state.proof) == (HaRole.SLAVE, None)


def test_a_slave_goes_on_as_the_group_was_served() -> None:
    m = machine(1, mode=None)
    assert {m.state.mode} == {AckMode.SYNC}
    m.dialled("up", 0)
    fx = m.received("up", Bind(HERE, AckMode.ASYNC))
    assert fx.state is not None
    assert {fx.state.mode, m.state.mode} == {AckMode.ASYNC}
    joined(m, "down", 2)
    fx = m.promote(9, 6)
    assert frames(fx, "down") == [Bind(HaBinding(6, 1, 9), AckMode.ASYNC)]
    configured = follower()
    configured.received("up", Bind(HaBinding(6, 0, 7), AckMode.ASYNC))
    assert configured.state.mode is AckMode.SYNC, "it has a mode of its own"


def test_a_master_that_resigns_lets_its_slaves_know() -> None:
    m = master(0)
    m.appended_all([(10, "waiter")])
    fx = m.resign("enough")
    assert [(r.waiter, r.outcome) for r in fx.resolved] == [("waiter", Outcome.UNKNOWN)]
    assert [(close.link, close.reason) for close in fx.close] == [("one", "enough")]
    assert m.role is HaRole.SLAVE
    fx = joined(m, "later", 1)
    assert not [item for item in fx.send if isinstance(item, Send)], "it binds nobody any more"
    assert not m.resign("again").close, "a slave keeps its links"


def test_appends_that_are_told_together_share_a_transfer() -> None:
    m = master(0)
    fx = m.appended_all([(10, "a"), (25, "b"), (30, "c")])
    assert [(item.lo, item.hi) for item in fx.send if not isinstance(item, Send)] == [(0, 30)]
    m.durable_to(30)
    fx = m.received("one", Ack(25))
    assert [found.waiter for found in fx.resolved] == ["a", "b"]
    assert m.state.copies.holders(25) == [1]
    assert m.state.copies.holders(26) == []
