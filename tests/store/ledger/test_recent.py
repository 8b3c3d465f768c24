"""Bodies of the newest entries: the walk over records is the same with and without them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.ledger import recent as ledger_recent
from store.ledger.entry import KIND_NO_OP
from store.ledger.recent import RecentBodies
from store.replicated.ledger_store import ReplicaStore
from tests.store.replicated.test_ledger_store import open_store, put


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    with open_store(tmp_path) as opened:
        yield opened


def walk(store: ReplicaStore, lo: int, hi: int) -> list[tuple[int, bytes]]:
    return list(store.ledger.fresh_runs(lo, hi))


def test_the_walk_is_the_same_as_through_the_files(store: ReplicaStore) -> None:
    ends = [0]
    for lo in range(0, 60, 3):
        ends.append(put(store, lo, lo + 3, size_bytes=4000))  # Several files.
        if lo % 9 == 0:
            ends.append(store.ledger.end_of(store.append_own(KIND_NO_OP, 1, b"")))
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


def test_cut_entries_are_not_dispatched(store: ReplicaStore) -> None:
    put(store, 0, 3)
    put(store, 3, 6)
    store.truncate_from(1)
    assert len(store.ledger.recent) == 0
    end = put(store, 3, 5)
    store.dispatch_to(end)
    assert store.reads.queue_range("orders", 0)[1] == 5


def test_the_oldest_go_above_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_recent, "RECENT_SIZE_BYTES_MAX", 250)
    recent = RecentBodies()
    recent.is_kept = True
    for n in range(4):
        recent.add(n * 148, bytes([n]) * 100)
    assert len(recent) == 2
    assert list(recent.runs(0, 1000)) == []
    assert [position for position, _ in recent.runs(296, 1000)] == [344, 492]
    assert [position for position, _ in recent.runs(296, 591)] == [344]
