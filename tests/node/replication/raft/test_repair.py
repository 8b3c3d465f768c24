"""Repair from peers over real links: byte for byte as it was, at start and while the node runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from node.peers.frames import FrameKind
from node.replication.fetch import EntryFetcher, EntryServer, FetchError, FetchLimits
from node.replication.raft.repair import (
    ClosedRepair,
    LiveRepair,
    OnProgress,
    RepairLimits,
    RepairProgress,
    open_repaired,
)
from quorumlog.pb import peer_pb2 as pb
from raft.errors import PeerProtocolError
from raft.messages import NodeId
from store.errors import CorruptionError, LockedError
from store.ledger.ledger import Ledger
from store.ledger.mending.fetched import RepairReport
from store.replicated.ledger_store import ReplicaStore
from tests.node.links import Node, nodes
from tests.patience import eventually
from tests.store.ledger_stores import (
    COMMON_COUNT,
    FILE,
    Wreck,
    make_branch,
    make_wreck,
    open_replica,
    peer,
)

_QUICK = RepairLimits(retry_ms=5)
_FETCH = FetchLimits(answer_size_bytes_max=3000, answer_ms_max=2000)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Wreck:
    return make_wreck(tmp_path_factory.mktemp("repair"))


@pytest.fixture
def wreck(made: Wreck) -> Wreck:
    return made.renew()


class Server(Node):
    """A node that has the entries of a ledger."""

    def serve(self, ledger: Ledger, commit_index: int | None = None) -> EntryServer:
        commit = ledger.last_index if commit_index is None else commit_index
        self.commit_index = commit
        self.server = EntryServer(self.link, ledger.read_range, lambda: self.commit_index, _FETCH)
        self.take_frame = self.server.on_frame
        return self.server


class Asker(Node):
    """A node that fetches from all it is connected to."""

    def ask(self, *peers: NodeId) -> EntryFetcher:
        self.fetcher = EntryFetcher(self.link, lambda: peers, _FETCH)
        self.take_frame = self.fetcher.on_frame
        self.on_disconnected = self.fetcher.on_disconnected  # type: ignore[method-assign]
        return self.fetcher


@asynccontextmanager
async def two(wreck: Wreck) -> AsyncIterator[tuple[Asker, Server, Ledger]]:
    """Node 2 is damaged, node 1 has all entries."""
    with peer(wreck.intact, wreck.config) as source:
        asker, server = Asker(2), Server(1)
        asker.ask(1)
        server.serve(source)
        async with nodes(asker, server):
            yield asker, server, source


def closed(
    wreck: Wreck, fetcher: EntryFetcher, on_progress: OnProgress = lambda _: None, **options: Any
) -> ClosedRepair:
    root, config = str(wreck.root), wreck.config
    options.setdefault("before_cut", must_not_cut)
    return ClosedRepair(root, config, fetcher, on_progress, limits=_QUICK, **options)


def must_not_cut(term: int, last_index: int) -> None:
    raise AssertionError(f"a cut of {term}, {last_index}")


def _wipe_a_file(wreck: Wreck) -> None:
    wreck.data(FILE).write_bytes(bytes(FILE))


def _flip_far_apart(wreck: Wreck) -> None:
    for spot in (wreck.spots[3], wreck.spots[len(wreck.spots) // 2], wreck.spots[-9]):
        wreck.flip(spot.position + 20)


def _lose_the_tail(wreck: Wreck) -> None:
    """Nothing good is behind the damage: how many entries are missing is not known."""
    spot = next(each for each in wreck.spots if each.position >= wreck.end_position // FILE * FILE)
    wreck.write(spot.position, bytes(wreck.end_position - spot.position))


_DAMAGE: dict[str, Callable[[Wreck], None]] = {
    "file": _wipe_a_file,
    "flips": _flip_far_apart,
    "tail": _lose_the_tail,
}


@pytest.mark.parametrize("damage", _DAMAGE)
async def test_a_damaged_log_is_repaired_before_it_is_opened(wreck: Wreck, damage: str) -> None:
    _DAMAGE[damage](wreck)
    seen: list[RepairProgress] = []
    async with two(wreck) as (asker, server, _):
        repair = closed(wreck, asker.fetcher, seen.append)
        if damage == "flips":  # The opening reads the last file only.
            reports = await repair.run()
        else:
            store, reports = await open_repaired(lambda: open_replica(wreck.root), repair.run)
            store.close()
        assert len(reports) == (3 if damage == "flips" else 1)
        assert server.server.answered_count >= len(reports)
    assert seen[-1].range_count == 0
    assert seen[-1].waiting_for == ""
    assert any(0 < each.fetched_size_bytes <= each.size_bytes for each in seen)
    with peer(wreck.intact, wreck.config) as intact, peer(wreck.root, wreck.config) as repaired:
        last = intact.last_index
        assert repaired.last_index == last
        assert repaired.read_entries(0, last + 1) == intact.read_entries(0, last + 1)


async def test_a_good_log_is_opened_and_nobody_is_asked(wreck: Wreck) -> None:
    async with two(wreck) as (asker, server, _):
        store, reports = await open_repaired(
            lambda: open_replica(wreck.root), closed(wreck, asker.fetcher).run
        )
        store.close()
        assert (reports, server.server.answered_count) == ([], 0)


async def test_a_repair_waits_for_a_peer_and_says_for_what(wreck: Wreck) -> None:
    _wipe_a_file(wreck)
    seen: list[RepairProgress] = []
    with peer(wreck.intact, wreck.config) as source:
        asker, server = Asker(2), Server(1)
        asker.ask(1)
        server.serve(source, commit_index=0)
        async with nodes(asker, server, acquainted=False):
            repair = asyncio.ensure_future(closed(wreck, asker.fetcher, seen.append).run())
            await eventually(lambda: seen and seen[-1].waiting_for == "no peer is connected")
            asker.link.set_peers({1: ("127.0.0.1", server.port)})
            server.link.set_peers({2: ("127.0.0.1", asker.port)})
            # Only committed entries are given away.
            await eventually(lambda: "only up to 0" in seen[-1].waiting_for)
            assert "has no committed entry" in str(seen[-1])
            server.commit_index = source.last_index
            await repair
    assert wreck.find() == []


async def test_a_peer_with_other_or_damaged_entries_is_passed_over(
    wreck: Wreck, tmp_path: Path
) -> None:
    _wipe_a_file(wreck)
    other = make_wreck(tmp_path, seed=2)
    with peer(wreck.intact, wreck.config) as good, peer(other.intact, other.config) as foreign:
        asker, server1, server3 = Asker(2), Server(1), Server(3)
        asker.ask(1, 3)
        server1.serve(foreign)
        server3.serve(good)
        async with nodes(asker, server1, server3):
            await closed(wreck, asker.fetcher).run()
        assert server1.server.answered_count > 0
    assert wreck.find() == []


async def test_a_peer_that_has_the_same_damage_says_so(wreck: Wreck) -> None:
    _wipe_a_file(wreck)
    seen: list[RepairProgress] = []

    def damaged(lo: int, hi: int, size_bytes: int) -> bytes:
        raise CorruptionError("data/0", 7, "body CRC", "1", "2")

    async with two(wreck) as (asker, server, source):
        server.server._read_range = damaged
        repair = asyncio.ensure_future(closed(wreck, asker.fetcher, seen.append).run())
        await eventually(
            lambda: seen and "it says: store.corruption: data/0" in seen[-1].waiting_for
        )
        server.server._read_range = source.read_range
        await repair
        assert server.server.failed_count >= 1
    assert wreck.find() == []


async def test_a_peer_that_goes_away_on_the_way(wreck: Wreck) -> None:
    _wipe_a_file(wreck)
    async with two(wreck) as (asker, server, _):
        answer, answers = server.server.on_frame, 0

        def breaking(node: int, kind: FrameKind, header: bytes, payload: memoryview) -> None:
            nonlocal answers
            answers += 1
            if answers % 2:
                raise PeerProtocolError(node, "a bad day")
            answer(node, kind, header, payload)

        server.take_frame = breaking
        await closed(wreck, asker.fetcher).run()
        assert answers >= 3
    assert wreck.find() == []


async def test_cancelling_a_repair_frees_the_directory_and_changes_nothing(wreck: Wreck) -> None:
    _wipe_a_file(wreck)
    before = wreck.find()
    seen: list[RepairProgress] = []
    async with nodes(Asker(2)) as (asker,):
        assert isinstance(asker, Asker)
        fetcher = asker.ask()
        task = asyncio.ensure_future(closed(wreck, fetcher, seen.append).run())
        await eventually(lambda: seen)
        with pytest.raises(LockedError):
            wreck.find()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert wreck.find() == before


def test_progress_is_for_people() -> None:
    progress = RepairProgress(3, 1_258_291, 4 << 20, "")
    assert str(progress) == "repairing: 3 ranges, 1.2 MiB of 4.0 MiB"
    assert str(progress._replace(range_count=1, waiting_for="no peer is connected")) == (
        "repairing: 1 range, 1.2 MiB of 4.0 MiB (no peer is connected)"
    )


# --- While the node runs ---


def live_repair(
    store: ReplicaStore, fetcher: EntryFetcher, limits: RepairLimits = _QUICK
) -> tuple[LiveRepair, list[RepairReport], list[BaseException]]:
    reports: list[RepairReport] = []
    fatal: list[BaseException] = []
    return LiveRepair(store, fetcher, reports.append, fatal.append, limits), reports, fatal


def _read(store: ReplicaStore, index: int) -> CorruptionError:
    ledger = store.log
    assert isinstance(ledger, Ledger)
    with pytest.raises(CorruptionError) as found:
        ledger.read_entries(index, index + 1)
    return found.value


async def test_damage_that_a_read_meets_is_repaired_while_the_store_is_open(wreck: Wreck) -> None:
    async with two(wreck) as (asker, _, source):
        with open_replica(wreck.root) as store:
            live, reports, fatal = live_repair(store, asker.fetcher)
            spot = wreck.spots[4]
            wreck.flip(spot.position + 50)
            error = _read(store, spot.index)
            for _ in range(5):
                live.on_damage(error)
            assert live.waiting_count == 1
            await eventually(lambda: reports and live.waiting_count == 0)
            ledger = store.log
            assert isinstance(ledger, Ledger)
            assert ledger.read_entries(4, 5) == source.read_entries(4, 5)
            assert live.repaired_entry_count == 1
            live.on_damage(error)  # It is good by now.
            await eventually(lambda: live.waiting_count == 0)
            assert (len(reports), fatal) == (1, [])


async def test_live_repair_gives_up_for_now_without_peers(wreck: Wreck) -> None:
    async with two(wreck) as (asker, server, _):
        server.commit_index = 0
        with open_replica(wreck.root) as store:
            limits = RepairLimits(retry_ms=1, live_attempt_count_max=2)
            live, reports, fatal = live_repair(store, asker.fetcher, limits)
            wreck.flip(wreck.spots[4].position + 50)
            error = _read(store, 4)
            live.on_damage(error)
            await eventually(lambda: live.given_up_count == 1)
            assert "has no committed entry 4" in live.last_trouble
            assert error.retryable
            await eventually(lambda: live.waiting_count == 0)
            error = _read(store, 4)
            server.commit_index = 10_000
            live.on_damage(error)
            assert not error.retryable, "the last repair was given up"
            await eventually(lambda: reports)
            assert fatal == []


async def test_a_range_that_no_peer_has_stops_none_behind_it(wreck: Wreck) -> None:
    async with two(wreck) as (asker, server, source):
        with open_replica(wreck.root) as store:
            live, reports, _ = live_repair(store, asker.fetcher)

            def damaged(lo: int, hi: int, max_size_bytes: int) -> bytes:
                if lo == 2:
                    raise CorruptionError("data/0", 9, "body CRC", "a", "b")
                return source.read_range(lo, hi, max_size_bytes)

            server.server._read_range = damaged
            for index in (2, 4):
                wreck.flip(wreck.spots[index].position + 50)
            live.on_damage(_read(store, 4))
            await eventually(lambda: reports)
            assert [report.damaged.lo_index for report in reports] == [4]
            await live.stop()


# --- Fetching ---


@pytest.mark.parametrize(
    ("lo", "hi", "payload", "text"),
    [
        (1, 6, b"x", r"1 bytes of entries \[1, 6\), asked for \[0, 6\)"),
        (0, 7, b"x", r"1 bytes of entries \[0, 7\), asked for \[0, 6\)"),
        (0, 0, b"x", r"1 bytes of entries \[0, 0\), asked for \[0, 6\)"),
        (0, 6, b"", r"0 bytes of entries \[0, 6\), asked for \[0, 6\)"),
        (1, 1, b"", r"0 bytes of entries \[1, 1\), asked for \[0, 6\)"),
    ],
)
async def test_an_answer_to_another_question_is_a_violation(
    lo: int, hi: int, payload: bytes, text: str
) -> None:
    asker = Asker(2)
    fetcher = asker.ask(1)
    sent: list[bytes] = []
    fetcher._link = cast(Any, _Wire(sent))
    task = asyncio.ensure_future(fetcher.fetch(1, 0, 6))
    await eventually(lambda: sent)
    request_id = pb.FetchEntries.FromString(sent[0]).request_id
    answer = pb.FetchedEntries(request_id=request_id, lo=lo, hi=hi)
    with pytest.raises(PeerProtocolError, match=text):
        fetcher.on_frame(
            1, FrameKind.FETCHED_ENTRIES, answer.SerializeToString(), memoryview(payload)
        )
    # From another node, late or unknown: not for anybody here.
    good = pb.FetchedEntries(request_id=request_id, lo=0, hi=6).SerializeToString()
    fetcher.on_frame(3, FrameKind.FETCHED_ENTRIES, good, memoryview(b"x"))
    late = pb.FetchedEntries(request_id=99, lo=0, hi=6).SerializeToString()
    fetcher.on_frame(1, FrameKind.FETCHED_ENTRIES, late, memoryview(b"x"))
    assert not task.done()
    fetcher.on_frame(1, FrameKind.FETCHED_ENTRIES, good, memoryview(b"x"))
    # What comes before the caller has its answer changes it no more.
    fetcher.on_frame(1, FrameKind.FETCHED_ENTRIES, good, memoryview(b"y"))
    fetcher.on_disconnected(1)
    assert (await task).raw_entries == b"x"
    with pytest.raises(PeerProtocolError, match="header of fetched entries"):
        fetcher.on_frame(1, FrameKind.FETCHED_ENTRIES, b"\xff", memoryview(b""))


class _Wire:
    def __init__(self, sent: list[bytes]) -> None:
        self._sent = sent

    def send(self, node: NodeId, kind: FrameKind, header: bytes, payload: bytes = b"") -> bool:
        self._sent.append(header)
        return True

    def is_connected(self, node: NodeId) -> bool:
        return True


async def test_a_peer_that_never_answers_is_given_up() -> None:
    fetcher = EntryFetcher(cast(Any, _Wire([])), lambda: [1], FetchLimits(answer_ms_max=10))
    with pytest.raises(FetchError, match="no answer within 10 ms"):
        await fetcher.fetch(1, 0, 5)
    assert fetcher._requests == {}


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (pb.FetchEntries(lo=5, hi=5), r"a fetch of \[5, 5\)"),
        (pb.FetchEntries(lo=-1, hi=5), r"a fetch of \[-1, 5\)"),
    ],
)
def test_an_impossible_request_is_a_violation(request_: pb.FetchEntries, text: str) -> None:
    server = EntryServer(cast(Any, _Wire([])), lambda lo, hi, size: b"", lambda: 10)
    with pytest.raises(PeerProtocolError, match=text):
        server.on_frame(2, FrameKind.FETCH_ENTRIES, request_.SerializeToString(), memoryview(b""))
    with pytest.raises(PeerProtocolError, match="header of a fetch"):
        server.on_frame(2, FrameKind.FETCH_ENTRIES, b"\xff", memoryview(b""))


@pytest.mark.parametrize("commit_index", [None, COMMON_COUNT])
async def test_a_branch_that_was_never_committed_is_cut(
    tmp_path: Path, commit_index: int | None
) -> None:
    """A leader lost its term with entries of its own, and one of them is damaged."""
    branch = make_branch(tmp_path)
    branch.data(2 * FILE).unlink()
    damaged = branch.find()[0]
    asker, server = Asker(2), Server(1)
    asker.ask(1)
    with peer(branch.intact, branch.config) as source:
        server.serve(source, commit_index)
        async with nodes(asker, server):
            seen: list[RepairProgress] = []
            attempt = closed(branch, asker.fetcher, seen.append, committed_index=damaged.lo_index)
            refused = asyncio.ensure_future(attempt.run())
            await eventually(lambda: seen and "committed another entry" in seen[-1].waiting_for)
            refused.cancel()
            await asyncio.gather(refused, return_exceptions=True)
            assert branch.find()[0] == damaged
            ends: list[tuple[int, int]] = []
            repair = closed(
                branch,
                asker.fetcher,
                committed_index=COMMON_COUNT - 1,
                before_cut=lambda *held: ends.append(held),
            )
            store, reports = await open_repaired(lambda: open_replica(branch.root), repair.run)
    with store:
        assert [report.is_cut for report in reports] == [True]
        assert ends == [(branch.spots[-1].term, branch.spots[-1].index)], "told before the cut"
        assert store.ledger.last_index == damaged.lo_index - 1
