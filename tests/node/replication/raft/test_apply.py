"""Rules R40 and R41: an apply that fails stops the node; a slow one, or a slow disk, holds up
neither heartbeats nor commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from raft.messages import AppendReply, AppendRequest
from store.errors import CorruptionError, StoreFullError
from tests.node.drivers import accept, drivers
from tests.node.links import run
from tests.patience import eventually
from tests.raft.cluster import ELECTION_TICKS, led
from tests.store.records import batch


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("planted"),
        KeyError("planted"),
        StoreFullError("/disk", 1, 0),
        CorruptionError("/disk", 0, "body", "this", "that"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exception_in_apply_stops_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """R40: the entry is neither skipped nor taken twice, and nobody hears that it was applied.

    A full disk is no excuse either: what it postpones is showing entries, and that came before."""

    async def work() -> None:
        async with drivers(tmp_path, 1) as cluster:
            leader = await cluster.leader()
            fatal = cluster.nodes[1].fatal
            before = leader.applied_index

            def broken(lo: int, hi: int) -> None:
                raise error

            monkeypatch.setattr(leader.applier, "apply", broken)
            pending = leader.append(batch(0, 1), accept)
            await eventually(lambda: fatal, "the fatal error")
            assert fatal[0] is error
            assert (leader.applied_index, pending.done()) == (before, False)
            pending.cancel()
            leader.stop()
            fatal.clear()

    with pytest.raises(AssertionError, match="exception handler"):  # The loop hears of it, too.
        run(work())


def test_heartbeat_under_slow_apply() -> None:
    cluster = led(apply_entry_count_max=3)
    for node in (1, 2, 3):
        cluster.nodes[node].applies_at_once = False
    cluster.replicate(1, range(10))

    cluster.tick_all(5 * ELECTION_TICKS)

    assert cluster.leaders() == [1]
    assert cluster.state(1).commit == 10
    assert cluster.state(1).handed - cluster.state(1).applied == 3, "what is handed out is bounded"
    for _ in range(5):
        cluster.apply(1)
        cluster.settle(1)
    assert cluster.nodes[1].applied == list(range(10))


def test_heartbeat_under_a_hanging_disk() -> None:
    """A follower whose sync hangs answers heartbeats; a leader whose sync hangs sends them."""
    cluster = led()
    for node in (1, 2, 3):
        cluster.nodes[node].syncs_at_once = False
    cluster.replicate(1, ["a"])
    cluster.sent.clear()

    cluster.tick_all(5 * ELECTION_TICKS)

    assert cluster.leaders() == [1]
    assert cluster.state(1).commit == 0, "nothing was acked meanwhile"
    assert any(isinstance(m, AppendRequest) for m in cluster.sent)
    assert {m.match for m in cluster.sent if isinstance(m, AppendReply)} == {0}
    for node in (2, 3):
        cluster.sync(node)
    cluster.deliver()
    assert cluster.state(1).commit == 1


def test_held_promises_are_bounded() -> None:
    cluster = led(held_message_count_max=5)
    cluster.nodes[2].syncs_at_once = False
    for at in range(20):
        cluster.propose(1, at)
        cluster.deliver()

    flushes = cluster.nodes[2].replica.flushes
    assert flushes.held_count == 5
    assert flushes.held_dropped > 0
    cluster.sync(2)
    cluster.tick_all(3)
    assert cluster.state(1).progress[2].match == 20
