"""Machines in states that tests begin from, and how to look at what they send."""

from __future__ import annotations

from node.replication.ha.core.effects import Effects, Send
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.machine import Machine
from node.replication.ha.core.types import (
    Binding,
    EpochStart,
    Mode,
    ReplicaState,
    Role,
    Settings,
    Standing,
)
from node.replication.ha.core.wire import Ack, Bind, Bound, Frame, Handshake, Hello

SETTINGS = Settings("g", (0, 1, 2), copies=2, waiter_count_max=3)


class Log:
    """A log whose records are of any size: every position is a boundary."""

    min_position = 0
    last_file_start = 0

    def ship_end(self, lo: int, hi: int, size_bytes_max: int) -> int:
        return min(hi, lo + size_bytes_max)


def machine(
    me: int = 0,
    end: int = 0,
    *epochs: tuple[int, int],
    bound: Binding | None = None,
    standing: Standing = Standing.FULL,
    mode: Mode | None = Mode.SYNC,
    log: Log | None = None,
) -> Machine:
    state = ReplicaState(bound or Binding(), standing, me + 10)
    entries = Epochs(EpochStart(*entry) for entry in epochs)
    return Machine(SETTINGS, me, log or Log(), state, entries, end, mode=mode)


def frames(fx: Effects, link: str) -> list[Frame]:
    """Name what went out on a link; a shipped range as its header."""
    sent = [item for item in fx.send if item.link == link]
    return [item.frame if isinstance(item, Send) else item.head for item in sent]


def joined(m: Machine, link: str, peer: int) -> Effects:
    m.accepted(link)
    return m.received(link, Hello(peer, peer + 10, "g"))


def bound(
    binding: Binding,
    epoch: int = 0,
    end: int = 0,
    known: int = 0,
    standing: Standing = Standing.FULL,
) -> Bound:
    return Bound(binding, epoch, end, 0, known, standing, 11)


def master(end: int = 0, *epochs: tuple[int, int], mode: Mode = Mode.SYNC) -> Machine:
    """A serving master of epoch 5 with a slave 1 on link 'one' that streams from its end."""
    m = machine(0, end, *epochs, mode=mode)
    joined(m, "one", 1)
    m.promote(7, 5)
    last = epochs[-1][0] if epochs else 0
    m.received("one", bound(Binding(5, 0, 7), last, end))
    assert m.role is Role.MASTER
    m.received("one", Handshake(1))
    m.received("one", Ack(end))
    return m


def follower(end: int = 0, *epochs: tuple[int, int]) -> Machine:
    """Slave 1, bound to epoch 5 of replica 0 on link 'up', its handshake out."""
    m = machine(1, end, *epochs)
    m.dialled("up", 0)
    fx = m.received("up", Bind(Binding(5, 0, 7)))
    assert fx.state == ReplicaState(Binding(5, 0, 7), Standing.FULL, 11)
    assert [type(f) for f in frames(fx, "up")] == [Bound, Handshake]
    return m
