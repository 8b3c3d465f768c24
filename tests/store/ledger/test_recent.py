"""The newest entries in memory: dispatch and peers get the same with and without them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.ledger import recent as ledger_recent
from store.ledger.entry import KIND_NO_OP
from store.ledger.recent import NewestEntries
from store.record.message import decode_message
from store.replicated.ledger_store import ReplicaStore
from tests.store.replicated.test_ledger_store import open_store, put


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    with open_store(tmp_path) as opened:
        yield opened


def filled(store: ReplicaStore) -> list[int]:
    """Fill several files, with blanks between them; return where entries end, 0 first."""
    ends = [0]
    for lo in range(0, 60, 3):
        ends.append(put(store, lo, lo + 3, size_bytes=4000))
        if lo % 9 == 0:
            ends.append(store.ledger.end_of(store.append_own(KIND_NO_OP, 1, b"")))
    return ends


def walk(store: ReplicaStore, lo: int, hi: int) -> list[tuple[int, bytes]]:
    return list(store.ledger.fresh_runs(lo, hi))


def test_the_walk_is_the_same_as_through_the_files(store: ReplicaStore) -> None:
    ends = filled(store)
    recent = store.ledger.recent
    assert len(recent) == 20
    by_memory = {(lo, hi): walk(store, lo, hi) for lo in ends for hi in ends if lo < hi}
    recent.clear()
    by_files = {(lo, hi): walk(store, lo, hi) for lo in ends for hi in ends if lo < hi}
    assert by_memory == by_files


def test_dispatched_entries_are_forgotten(store: ReplicaStore) -> None:
    ends = [put(store, lo, lo + 3) for lo in range(0, 12, 3)]
    store.dispatch_to(ends[1])
    store.dispatch_to(ends[2])
    assert len(store.ledger.recent) == 2, "those from where the last walk began"


def test_watched_records_come_with_their_offsets_and_bytes(store: ReplicaStore) -> None:
    """Those of entries that were stamped here, whose records nobody walks."""
    store.engine.dispatcher.watch(b"orders")
    put(store, 0, 3)
    end = put(store, 3, 7)
    assert store.ledger.stamped(0, end) is not None
    store.dispatch_to(end)
    watched = store.engine.dispatcher.take_watched()
    assert [unit.offset for unit in watched] == list(range(7))
    for unit in watched:
        assert unit.data == store.ledger.read(unit.position, unit.size_bytes)
        assert decode_message(unit.data).queue_offset == unit.offset


def test_cut_entries_are_not_dispatched(store: ReplicaStore) -> None:
    put(store, 0, 3)
    put(store, 3, 6)
    store.truncate_from(1)
    assert len(store.ledger.recent) == 0
    end = put(store, 3, 5)
    store.dispatch_to(end)
    assert store.reads.queue_range("orders", 0)[1] == 5


def test_the_oldest_go_above_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_recent, "RECENT_SIZE_BYTES_MAX", 300)
    recent = NewestEntries()
    recent.is_kept = True
    for n in range(4):
        recent.add(n, n * 148, n * 148 + 148, bytes([n]) * 148)
    assert len(recent) == 2
    assert recent.runs(0, 1000) == ([], 0)
    for hi, positions, end in ((1000, [344, 492], 592), (591, [344], 444)):
        runs, reached = recent.runs(296, hi)
        assert ([position for position, _ in runs], reached) == (positions, end)


def test_peers_get_the_bytes_of_the_files(store: ReplicaStore) -> None:
    filled(store)
    ledger, hi = store.ledger, store.ledger.last_index + 1
    ranges = [(lo, end) for lo in range(hi) for end in range(lo + 1, hi + 1)]
    by_memory = [ledger.read_entries(*each) for each in ranges]
    places = [ledger.place_of(index) for index in range(hi + 1)]
    assert ledger.read_entries(hi - 1, hi) is ledger.read_entries(hi - 1, hi), "not read"
    ledger.recent.clear()
    assert [ledger.read_entries(*each) for each in ranges] == by_memory
    assert [ledger.place_of(index) for index in range(hi + 1)] == places


@pytest.mark.parametrize("end", ["cut", "reset"])
def test_no_entry_that_is_gone_is_read(store: ReplicaStore, end: str) -> None:
    put(store, 0, 3)
    position = put(store, 3, 6)
    gone = store.ledger.read_entries(1, 2)
    if end == "cut":
        store.ledger.truncate_from(1, commit_index=0)
        put(store, 10, 13)
        assert store.ledger.read_entries(1, 2) != gone
    else:
        store.ledger.reset(2, position, 7, 1)
        assert len(store.ledger.recent) == 0
        assert store.ledger.place_of(2) == position


def test_units_are_taken_only_for_a_whole_part_of_the_log(store: ReplicaStore) -> None:
    ends = filled(store)
    ledger, newest = store.ledger, 0
    for lo in ends:
        for hi in ends:
            run = ledger.stamped(lo, hi)
            if run is not None:
                assert b"".join(entry.data for entry in run) == ledger.files.read(lo, hi - lo)
                assert [entry.position for entry in run] == ends[ends.index(lo) : ends.index(hi)]
                newest = max(newest, hi)
        assert ledger.stamped(lo, lo + 1) is None
    assert newest == ends[-1]
