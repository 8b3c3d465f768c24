"""Units that are wrong where a cut or an expiry looks, and nobody can vouch for: what is intact
stays, and keeps its offsets."""

import os
from pathlib import Path

import pytest

from store import format as fmt
from store.shipped_store import ShippedStore
from tests.store.records import PAGE, batch, numbers
from tests.store.shipped_stores import (
    filled,
    found_numbers,
    open_store,
    sync,
    take_away,
)

FILE = 4 * PAGE
COUNT = 300
MIDDLE = 150
"""Of the queue: where a search looks first. Queue files have 50 units."""
UNIT = fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES


def opened(root: Path) -> ShippedStore:
    return open_store(root, retention_interval_ms=0, retention_size_bytes=2 * FILE)


def left(root: Path, *, has_sums: bool) -> list[int]:
    """Leave a store that all readers see, with checksums or without; return where batches end."""
    with opened(root) as store:
        ends = filled(store, COUNT)
        store.dispatch_to(ends[-1])
        sync(store)
    for sums in (root / "checksums").rglob("*"):
        if sums.is_file() and not has_sums:
            sums.unlink()
    return ends


def overwrite(path: Path, at: int, data: bytes) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, data, at)
    finally:
        os.close(fd)


def set_position(root: Path, offset: int, position: int) -> None:
    first = offset // 50 * 50
    path = root / f"consumequeue/orders/0/{first * UNIT:020d}"
    overwrite(path, (offset - first) * UNIT, position.to_bytes(8, "big"))


@pytest.mark.parametrize("has_sums", [True, False])
@pytest.mark.parametrize("is_on_loop", [True, False])
@pytest.mark.parametrize("position", [1 << 40, 0])
def test_a_cut_takes_no_units_of_records_that_stay(
    tmp_path: Path, has_sums: bool, is_on_loop: bool, position: int
) -> None:
    """And ends no process: it is made whatever has to be read of the log."""
    ends = left(tmp_path, has_sums=has_sums)
    with opened(tmp_path) as store:
        if is_on_loop:
            store._guard.units.at_once_size_bytes_max = 10
        kept = MIDDLE + 30 if position else MIDDLE - 30
        set_position(tmp_path, MIDDLE, position)
        take_away(store, ends[kept // 3])
        assert store.queue_range("orders", 0) == (0, kept)
        assert store.prepare(batch(0, 1)).queue_offsets == [kept]
        assert found_numbers(store) == list(range(kept))
        assert (store._guard.units.at_once_size_bytes_max == 10) == is_on_loop


def test_a_cut_is_made_beside_a_damaged_record(tmp_path: Path) -> None:
    """Near the cut units cannot be compared with it: then they are believed."""
    ends = left(tmp_path, has_sums=False)
    with opened(tmp_path) as store:
        at = store._queues.get(b"orders", 0).unit(170)[0]  # type: ignore[union-attr]
        overwrite(
            tmp_path / f"commitlog/{at // FILE * FILE:020d}",
            at % FILE + fmt.QUEUE_OFFSET_AT,
            b"\xff",
        )
    for sums in (tmp_path / "checksums").rglob("*"):
        if sums.is_file():
            sums.unlink()
    with opened(tmp_path) as store:
        take_away(store, ends[60])
        assert store.queue_range("orders", 0) == (0, 180)


def test_an_expiry_hides_and_deletes_nothing_that_is_there(tmp_path: Path) -> None:
    left(tmp_path, has_sums=False)
    with opened(tmp_path) as store:
        store.maintain()
        work = store.detach_expired(3 * FILE)
        assert work is not None
        set_position(tmp_path, MIDDLE, 0)
        work()
        found = store.pull("orders", 0, 100, max_count=COUNT, max_size_bytes=1 << 20)
        assert numbers(found.data) == list(range(100, COUNT))
        store._guard.compare(3 * FILE, store.log.max_position)  # As the pass does.
        work = store.detach_expired(3 * FILE)
        store.delete_expired_derived()
        lo, hi = store.queue_range("orders", 0)
        assert (50 < lo < 100, hi) == (True, COUNT)
        assert found_numbers(store) == list(range(lo, COUNT))
        assert len(list((tmp_path / "consumequeue/orders/0").iterdir())) == 5
