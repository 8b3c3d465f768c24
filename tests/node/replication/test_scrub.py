"""The scrubber of a node: pace, what follows damage, and what the other replicas say."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from node.errors.common import ShuttingDownError
from node.replication.fetch import EntryFetcher
from node.replication.raft.repair import LiveRepair, RepairLimits
from node.replication.scrub import RATE_BYTES_PER_S_MAX, Scrub
from store.errors import CorruptionError, FileSystemError, SyncFailedError
from store.ledger.ledger import Ledger
from store.maintenance.scrub import PIECE_SIZE_BYTES, LedgerScrubber, Piece
from store.replicated.ledger_store import ReplicaStore
from tests.node.links import nodes, run
from tests.node.replication.raft.test_repair import Asker, Server
from tests.patience import eventually
from tests.store.ledger_stores import FILE, Wreck, make_wreck, open_replica, peer

INTERVAL_MS = 40
"""Of passes of these tests, whose rounds are a millisecond apart."""


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.replication.scrub.ROUND_MS", 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Wreck:
    return make_wreck(tmp_path_factory.mktemp("scrub"), 7)


@pytest.fixture
def wreck(made: Wreck) -> Wreck:
    return made.renew()


class Thread:
    """Be the maintenance: work is done at once, until it has stopped."""

    def __init__(self) -> None:
        self.is_stopped = False

    async def on_thread(self, work: Callable[[], Piece]) -> Piece:
        if self.is_stopped:
            raise ShuttingDownError
        await asyncio.sleep(0)
        return work()


def of(
    scrubber: Any, interval_ms: int = INTERVAL_MS, **how: Any
) -> tuple[Scrub, list[BaseException]]:
    """A scrub that nobody has started."""
    fatal = list[BaseException]()
    usual: dict[str, Any] = {"on_damage": must_be_whole, "fail_stop": fatal.append}
    usual["on_thread"] = Thread().on_thread
    return Scrub(scrubber, interval_ms, **{**usual, **how}), fatal


def must_be_whole(error: CorruptionError) -> None:
    raise AssertionError(f"damage: {error}")


class Steps:
    """Be a scrubber of so many bytes, whose pieces are as long as a test likes."""

    def __init__(self, sealed_size_bytes: int, piece: Piece | Exception) -> None:
        self.sealed_size_bytes, self.piece = sealed_size_bytes, piece
        self.count = 0
        self.shares: list[float] = []

    def begin_at(self, share: float) -> None:
        self.shares.append(share)

    def step(self) -> Piece:
        self.count += 1
        if isinstance(self.piece, Exception):
            raise self.piece
        return self.piece


# --- Pace ---


def paced(
    monkeypatch: pytest.MonkeyPatch,
    steps: Steps,
    interval_ms: int,
    moves_s: list[float],
    unix_ms: int = 0,
) -> list[int]:
    """Let time move on round by round; return how many pieces each round read."""
    now_s, counts = 100.0, list[int]()
    monkeypatch.setattr("node.replication.scrub.time.monotonic", lambda: now_s)
    monkeypatch.setattr("node.replication.scrub.time.time_ns", lambda: unix_ms * 1_000_000)

    async def work() -> None:
        waiting, at = asyncio.Event(), 0

        async def pause(_: float) -> None:
            nonlocal at, now_s
            counts.append(steps.count - at)
            at = steps.count
            if len(counts) > len(moves_s):
                waiting.set()
                await asyncio.Event().wait()
            now_s += moves_s[len(counts) - 1]

        made, fatal = of(steps, interval_ms, on_thread=_at_once)
        monkeypatch.setattr("node.replication.scrub.asyncio.sleep", pause)
        made.start()
        await waiting.wait()
        await made.stop()
        assert fatal == []

    run(work())
    return counts[1:]


async def _at_once(work: Callable[[], Piece]) -> Piece:
    return work()


_MAX = RATE_BYTES_PER_S_MAX // PIECE_SIZE_BYTES
_PIECE = Piece(PIECE_SIZE_BYTES)


@pytest.mark.parametrize(
    ("steps", "interval_ms", "moves_s", "counts"),
    [
        # 1,000 pieces in 1,000 seconds, evenly, however long the rounds are.
        (
            Steps(1_000 * PIECE_SIZE_BYTES, _PIECE),
            1_000_000,
            [0.5, 0.5, 1.0, 2.0, 4.0, 0.25],
            [0, 1, 1, 2, 4, 0],
        ),
        # A restart does not read a small log at once, or it would at each of them.
        (Steps(10_000, Piece(2_500)), 10_000, [5.0, 4.0, 1.0, 2.5], [0, 0, 1, 1]),
        # Clients go first however short a pass is to be; what was slept is not caught up with.
        (Steps(1 << 40, _PIECE), 1_000, [1.0, 0.5, 3600.0], [_MAX, _MAX // 2, _MAX]),
        (Steps(0, Piece(ends_pass=True)), 1_000, [10.0, 10.0], [0, 0]),
    ],
    ids=["even", "small", "busy", "nothing-sealed"],
)
def test_a_pass_takes_the_interval(
    monkeypatch: pytest.MonkeyPatch,
    steps: Steps,
    interval_ms: int,
    moves_s: list[float],
    counts: list[int],
) -> None:
    assert paced(monkeypatch, steps, interval_ms, moves_s) == counts


def test_a_pass_begins_where_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(0, Piece(ends_pass=True))
    paced(monkeypatch, steps, 1_000, [1.0], unix_ms=7_000_250)
    assert steps.shares == [0.25]


async def test_zero_turns_it_off() -> None:
    steps = Steps(1 << 30, Piece(1))
    made, _ = of(steps, 0)
    made.start()
    for _ in range(10):
        await asyncio.sleep(0)
    await made.stop()
    assert (steps.count, steps.shares) == (0, [])


# --- What follows ---


@asynccontextmanager
async def beside(
    wreck: Wreck, other: Wreck, commit_index: int | None = None
) -> AsyncIterator[tuple[ReplicaStore, LedgerScrubber, EntryFetcher]]:
    """An open store with its scrubber, connected to a node that has the log of another wreck."""
    with peer(other.intact, other.config) as source, open_replica(wreck.root) as store:
        asker, server = Asker(2), Server(1)
        fetcher = asker.ask(1)
        server.serve(source, commit_index)
        async with nodes(asker, server):
            ledger = store.log
            assert isinstance(ledger, Ledger)
            yield store, LedgerScrubber(ledger, lambda: ledger.max_position), fetcher


async def test_the_scrubber_ends_with_the_node_and_reports_fatal_errors() -> None:
    steps, thread = Steps(1 << 30, Piece(1)), Thread()
    made, fatal = of(steps, on_thread=thread.on_thread)
    made.start()
    await eventually(lambda: steps.count)
    thread.is_stopped = True
    task = made._task
    assert task is not None
    await eventually(task.done)
    assert fatal == []
    error = SyncFailedError("path", 5)
    made, fatal = of(Steps(1 << 30, error))
    made.start()
    await eventually(lambda: fatal == [error])
    made, fatal = of(steps := Steps(1 << 30, FileSystemError("read", "path", 5)))
    made.start()
    await eventually(lambda: steps.count > 2)
    await made.stop()
    assert fatal == []


async def test_damage_is_found_and_repaired_from_a_peer_and_both_are_compared(wreck: Wreck) -> None:
    """Nobody reads what is damaged, and the log is opened, so that nothing looks at it."""

    async with beside(wreck, wreck) as (store, scrubber, fetcher):
        reports: list[Any] = []
        fatal = list[BaseException]()
        live = LiveRepair(store, fetcher, reports.append, fatal.append, RepairLimits(retry_ms=5))
        made, _ = of(scrubber, on_damage=live.on_damage, fetcher=fetcher, fail_stop=fatal.append)
        for position in (wreck.spots[5].position + 60, 2 * FILE + Random(3).randrange(FILE)):
            wreck.flip(position)
        made.start()
        await eventually(lambda: len(reports) == 2, "both repaired")
        done = made.stats().pass_count
        await eventually(lambda: made.stats().pass_count >= done + 2, "whole passes")
        await made.stop()
        stats = made.stats()
        assert stats.damage_count >= 2
        assert stats.read_size_bytes >= 2 * scrubber.sealed_size_bytes
        assert stats.compared_count >= len(scrubber.sealed())
        assert stats.differing_count == 0
        assert fatal == []
    assert wreck.find() == []


@pytest.mark.parametrize(
    ("seed", "commit_index", "differs"), [(8, None, True), (7, 0, False)], ids=["apart", "lagging"]
)
async def test_replicas_that_have_come_apart_are_told(
    wreck: Wreck, tmp_path: Path, seed: int, commit_index: int | None, differs: bool
) -> None:
    """Each log is whole, and they are not the same: only the comparison can tell. One that lags is
    not compared."""
    other = make_wreck(tmp_path, seed)
    async with beside(wreck, other, commit_index) as (_, scrubber, fetcher):
        made, fatal = of(scrubber, fetcher=fetcher)
        made.start()
        await eventually(lambda: made.stats().pass_count, "a pass")
        await made.stop()
        assert fatal == []
        stats = made.stats()
        assert (stats.differing_count > 0) == differs
        assert stats.compared_count == stats.damage_count == 0
