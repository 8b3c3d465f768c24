"""Machines in states that tests begin from, and how to look at what they send."""

from __future__ import annotations

from node.replication.ha.core.effects import HaEffects, Send
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.state import HaState
from node.replication.ha.core.types import (
    AckMode,
    EpochStart,
    HaBinding,
    HaRole,
    HaSettings,
    HaStanding,
    ReplicaState,
)
from node.replication.ha.core.wire import Ack, Bind, Bound, Frame, Handshake, HandshakeReply, Hello

SETTINGS = HaSettings("g", (0, 1, 2), copies=2, waiter_count_max=3)


class Log:
    """A log whose records are of any size: every position is a boundary."""

    min_position = 0

    def ship_end(self, lo: int, hi: int, size_bytes_max: int) -> int:
        return min(hi, lo + size_bytes_max)


def machine(
    me: int = 0,
    end: int = 0,
    *epochs: tuple[int, int],
    bound: HaBinding | None = None,
    standing: HaStanding = HaStanding.FULL,
    mode: AckMode | None = AckMode.SYNC,
    log: Log | None = None,
) -> HaMachine:
    state = ReplicaState(bound or HaBinding(), standing, me + 10)
    entries = Epochs(EpochStart(*entry) for entry in epochs)
    return HaMachine(HaState(SETTINGS, me, log or Log(), state, entries, end, mode=mode))


def frames(fx: HaEffects, link: str) -> list[Frame]:
    """Name what went out on a link; a shipped range as its header."""
    sent = [item for item in fx.send if item.link == link]
    return [item.frame if isinstance(item, Send) else item.head for item in sent]


def joined(m: HaMachine, link: str, peer: int) -> HaEffects:
    m.accepted(link)
    return m.received(link, Hello(peer, peer + 10, "g"))


def bound(
    binding: HaBinding,
    epoch: int = 0,
    end: int = 0,
    known: int = 0,
    standing: HaStanding = HaStanding.FULL,
) -> Bound:
    return Bound(binding, epoch, end, 0, known, standing, 11)


def promoted(m: HaMachine, promise: Bound | None = None) -> HaMachine:
    """Make it master of epoch 5; slave 1 on link 'one' promised it and shook hands."""
    joined(m, "one", 1)
    m.promote(7, 5)
    fx = m.received("one", promise or bound(HaBinding(5, 0, 7)))
    assert m.role is HaRole.MASTER
    assert not any(isinstance(frame, HandshakeReply) for frame in frames(fx, "one"))
    reply = frames(m.received("one", Handshake(1)), "one")[0]
    assert isinstance(reply, HandshakeReply), "not before it is asked"
    return m


def master(end: int = 0, *epochs: tuple[int, int], mode: AckMode = AckMode.SYNC) -> HaMachine:
    """A serving master of epoch 5 with a slave 1 on link 'one' that streams from its end."""
    last = epochs[-1][0] if epochs else 0
    m = promoted(machine(0, end, *epochs, mode=mode), bound(HaBinding(5, 0, 7), last, end))
    m.received("one", Ack(end))
    return m


def follower(end: int = 0, *epochs: tuple[int, int]) -> HaMachine:
    """Slave 1, bound to epoch 5 of replica 0 on link 'up', its handshake out."""
    m = machine(1, end, *epochs)
    m.dialled("up", 0)
    fx = m.received("up", Bind(HaBinding(5, 0, 7)))
    assert fx.state == ReplicaState(HaBinding(5, 0, 7), HaStanding.FULL, 11)
    assert [type(f) for f in frames(fx, "up")] == [Bound, Handshake]
    return m
