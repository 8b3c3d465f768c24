"""Reads that prove who is master, the mode that travels with a fence, a master that resigns."""

from node.replication.ha.core.effects import Send
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.state import HaState
from node.replication.ha.core.types import (
    AckMode,
    HaBinding,
    HaRole,
    HaSettings,
    HaStanding,
    ReplicaState,
)
from node.replication.ha.core.wire import Ack, Bind
from store.errors import Outcome
from tests.node.replication.ha.core.machines import (
    Log,
    bound,
    follower,
    frames,
    joined,
    machine,
    master,
)

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
