"""Units that are wrong where a cut or an expiry looks, and nobody can vouch for: what is intact
stays, and keeps its offsets."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from store import format as fmt
from store.errors import CorruptionError, PositionRangeError
from store.replicated.shipped_store import ShippedStore
from store.store import Store
from tests.store.fakes import queue_of
from tests.store.fsck_stores import forget_sums
from tests.store.overwrites import overwrite
from tests.store.records import PAGE, batch, numbers
from tests.store.shipped_stores import (
    filled,
    found_numbers,
    open_store,
    put,
    sync,
    take_away,
)

FILE = 4 * PAGE
COUNT = 300
MIDDLE = 150
"""Of the queue: where a search looks first. Queue files have 50 units."""
UNIT = fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES


def opened(root: Path) -> ShippedStore:
    return open_store(
        root, retention_interval_ms=0, retention_size_bytes=2 * FILE, index_entry_count=1_000
    )


def left(root: Path, *, has_sums: bool) -> list[int]:
    """Leave a store that all readers see, with checksums or without; return where batches end."""
    with opened(root) as store:
        ends = filled(store, COUNT)
        store.dispatch_to(ends[-1])
        sync(store)
    if not has_sums:
        forget_sums(root)
    return ends


def change_log(root: Path, position: int, data: bytes) -> None:
    """Change bytes of the log where a plain one has no checksum, or one that fails."""
    overwrite(root / f"commitlog/{position // FILE * FILE:020d}", position % FILE, data)


def place(store: Store | ShippedStore, offset: int) -> tuple[int, int]:
    """Return position and size of a record of queue 0."""
    return queue_of(store.engine.queues).unit(offset)[:2]


def offsets_of(store: ShippedStore, number: int) -> list[int]:
    """Return the offsets of the records with the key of a record."""
    return [m.queue_offset for m in store.reads.messages_by_key("orders", f"key{number:04d}")]


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
            store.engine.guard.units.at_once_size_bytes_max = 10
        kept = MIDDLE + 30 if position else MIDDLE - 30
        set_position(tmp_path, MIDDLE, position)
        take_away(store, ends[kept // 3])
        assert store.reads.queue_range("orders", 0) == (0, kept)
        assert store.prepare(batch(0, 1)).queue_offsets == [kept]
        assert found_numbers(store) == list(range(kept))
        assert (store.engine.guard.units.at_once_size_bytes_max == 10) == is_on_loop


def test_a_cut_is_made_beside_a_damaged_record(tmp_path: Path) -> None:
    """Near the cut units cannot be compared with it: then they are believed."""
    ends = left(tmp_path, has_sums=False)
    with opened(tmp_path) as store:
        at, _ = place(store, 170)
        change_log(tmp_path, at + fmt.QUEUE_OFFSET_AT, b"\xff")
    forget_sums(tmp_path)
    with opened(tmp_path) as store:
        take_away(store, ends[60])
        assert store.reads.queue_range("orders", 0) == (0, 180)


def test_an_expiry_hides_and_deletes_nothing_that_is_there(tmp_path: Path) -> None:
    left(tmp_path, has_sums=False)
    with opened(tmp_path) as store:
        store.maintain()
        work = store.detach_expired(3 * FILE)
        assert work is not None
        set_position(tmp_path, MIDDLE, 0)
        work()
        pulled = store.reads.pull("orders", 0, 100, max_count=COUNT, max_size_bytes=1 << 20)
        assert numbers(pulled.data) == list(range(100, COUNT))
        store.engine.guard.compare(3 * FILE, store.log.max_position)  # As the pass does.
        work = store.detach_expired(3 * FILE)
        store.delete_expired_derived()
        lo, hi = store.reads.queue_range("orders", 0)
        assert (50 < lo < 100, hi) == (True, COUNT)
        assert found_numbers(store) == list(range(lo, COUNT))
        assert len(list((tmp_path / "consumequeue/orders/0").iterdir())) == 5


# --- Which side is wrong ---


def test_keys_with_their_checksums_do_not_follow_a_damaged_record(tmp_path: Path) -> None:
    """A bit of the name of a property: one key less, and all behind it would move by one."""
    with opened(tmp_path) as store:
        store.dispatch_to(filled(store, COUNT)[-1])
        lines: list[str] = []
        store.engine.guard.listen(lines.append)
        position, size_bytes = place(store, 5)
        name_at = position + store.log.read(position, size_bytes).index(b"KEYS\x01")
        change_log(tmp_path, name_at, b"KEYR\x01")
        scrub = store.derived_scrubber()
        while not scrub.step().ends_pass:
            pass
        for n in (6, 20, COUNT - 1):
            assert offsets_of(store, n) == [n]
        assert any("damaged" in line for line in lines)


def test_units_with_their_checksums_do_not_follow_a_damaged_record(tmp_path: Path) -> None:
    """A bit of its queue id: it says that it is a record of the other queue."""
    with opened(tmp_path) as store:
        for n in range(0, 30, 3):
            put(store, n, n + 3, size_bytes=3_000)
            end = put(store, n + 100, n + 103, queue_id=1, size_bytes=3_000)
        store.dispatch_to(end)
        lines: list[str] = []
        store.engine.guard.listen(lines.append)
        at, size_bytes = place(store, 4)
        change_log(tmp_path, at + fmt.QUEUE_ID_AT, b"\0\0\0\1")
        assert store.engine.guard.compare(at, at + size_bytes) == (at + size_bytes, 0)
        pulled = store.reads.pull("orders", 1, 4, max_count=1)
        assert numbers(pulled.data) == [104]
        assert any("damaged" in line for line in lines)


# --- Pieces of a plain log ---


@pytest.mark.parametrize("piece_size_bytes", [1, 7, 8, 600, 5_000, 3 * FILE + 4])
def test_a_pass_reads_all_of_a_log_that_is_larger_than_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_size_bytes: int
) -> None:
    """A piece ends anywhere: within a record, within a blank, or behind one."""
    monkeypatch.setattr("store.derived.guard.PIECE_SIZE_BYTES", piece_size_bytes)
    monkeypatch.setattr("store.derived.guard._REACH_SIZE_BYTES", 2 * FILE)
    with opened(tmp_path) as store:
        filled(store, COUNT)
        end = put(store, COUNT, COUNT + 3, size_bytes=4_000)
        store.dispatch_to(end)
        for path in sorted((tmp_path / "consumequeue/orders/0").iterdir()):
            overwrite(path, UNIT - 1, b"\x55")
        scrub, read_size_bytes, wrong = store.derived_scrubber(), 0, 0
        while not (piece := scrub.step()).ends_pass:
            wrong += piece.wrong_count
            read_size_bytes += piece.size_bytes
        assert wrong == 7, "one of each file"
        assert read_size_bytes >= end


def test_a_pass_meets_a_damaged_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads out of the piece, and on."""
    monkeypatch.setattr("store.derived.guard.PIECE_SIZE_BYTES", 1_000)
    monkeypatch.setattr("store.derived.guard._REACH_SIZE_BYTES", 2 * FILE)
    with opened(tmp_path) as store:
        store.dispatch_to(filled(store, COUNT)[-1])
    with opened(tmp_path) as store:
        change_log(tmp_path, 2, b"\x20")
        with pytest.raises(CorruptionError):
            store.derived_scrubber().step()


# --- A cut beside a thread that mends ---


def test_a_cut_beside_the_mending_of_an_index_file_hides_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains were followed behind the cut already: the last keys of slots are gone since."""
    monkeypatch.setattr("store.derived.key_mend._ENTRIES_AT_ONCE", 50)
    with opened(tmp_path) as store:
        ends = filled(store, COUNT)
        store.dispatch_to(ends[-1])
        keys, (file,) = store.engine.guard.keys, store.engine.index.files
        chain, calls = keys._chain, 0

        def cutting(*rest: Any) -> int:
            nonlocal calls
            calls += 1
            if calls == 4:
                store.engine.dispatcher.truncate(ends[40])  # The log itself is cut a moment later.
            return chain(*rest)

        monkeypatch.setattr(keys, "_chain", cutting)
        overwrite(file.path, 40 + 64 * 4 + 20 * 30, b"\x55")
        with suppress(PositionRangeError):  # Or what it does is right.
            keys.mend(file)
        for n in range(0, 120, 7):
            assert offsets_of(store, n) == [n]
        store.cut(ends[40])
        put(store, 120, 150)
        store.dispatch_to(store.shipped.end_position)
        for n in range(0, 150, 7):
            assert offsets_of(store, n) == [n]


@pytest.mark.parametrize("has_sums", [True, False])
def test_offsets_for_another_replica_are_found_beside_damage(
    tmp_path: Path, has_sums: bool
) -> None:
    """Nobody else would be told of it, and the replica could not begin before the next pass."""
    ends = left(tmp_path, has_sums=has_sums)
    with opened(tmp_path) as store:
        store.engine.guard.units.at_once_size_bytes_max = 10
        for offset in (MIDDLE, 180):
            set_position(tmp_path, offset, 1 << 40)
        assert store.next_offsets_at(ends[60]) == {(b"orders", 0): 180}
        assert store.engine.guard.units.at_once_size_bytes_max == 10
