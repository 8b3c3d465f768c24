"""Bits that flip in queues and key index: every reader gets everything, and it is counted."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from store.config import StoreConfig
from store.derived.keys.index_file import IndexFile
from store.derived.queues.pull import PullStatus
from store.errors import DerivedDamageError
from store.record.message import encode_message, tags_code
from store.store import Store
from tests.store.fakes import queue_of
from tests.store.fsck_stores import Clock, findings, flip, forget_sums, fsck_config, open_store
from tests.store.records import BORN, messages

COUNT = 900
TAGS = ("a", "b", "c")
_SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))]
CHANGES = {"consume_queue_units_per_file": 700, "index_entry_count": 500, "index_slot_count": 64}


@pytest.fixture(params=["commit_log", "ledger"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return replace(fsck_config(request.param, **CHANGES), file_size_bytes=1 << 16)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, config: StoreConfig, clock: Clock) -> Iterator[Store]:
    """A filled store that is open."""
    with open_store(tmp_path, config, clock) as opened:
        fill(opened, clock)
        yield opened


def leave(root: Path, config: StoreConfig, clock: Clock) -> None:
    """Leave a filled store that was closed well."""
    with open_store(root, config, clock) as store:
        fill(store, clock)


def fill(store: Store, clock: Clock, lo: int = 0, hi: int = COUNT) -> None:
    """Records of three tags in one queue, each with a key of its own and one of the ten."""
    for first in range(lo, hi, 20):
        clock.unix_ms += 500
        store.put(
            b"".join(
                encode_message(
                    "orders",
                    0,
                    b"%08d" % n,
                    {"TAGS": TAGS[n % 3], "KEYS": f"key{n} decade{n // 10}"},
                    born_unix_ms=BORN,
                )
                for n in range(first, first + 20)
            )
        )
        if first % 100 == 0:
            store.maintain()


def read(store: Store, tag: str | None, offset: int = 0) -> list[bytes]:
    """Read the queue to its end, with a filter or without."""
    codes = None if tag is None else frozenset({tags_code(tag)})
    bodies: list[bytes] = []
    while True:
        pulled = store.pull("orders", 0, offset, max_count=100, max_size_bytes=1 << 20, tags=codes)
        if pulled.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE):
            assert pulled.status is PullStatus.OFFSET_OVERFLOW_ONE
            return bodies
        bodies += [message.body for message in messages(pulled.data)]
        offset = pulled.next_offset


def check_all(store: Store, count: int = COUNT, *, step: int = 7) -> None:
    """Every message, with and without filters, by key, and by time."""
    for number, tag in enumerate(TAGS):
        assert read(store, tag) == [b"%08d" % n for n in range(number, count, 3)]
    assert read(store, None) == [b"%08d" % n for n in range(count)]
    for n in range(0, count, step):
        assert [m.queue_offset for m in store.messages_by_key("orders", f"key{n}")] == [n]
    for n in range(0, count, 10 * step):
        by_key = store.messages_by_key("orders", f"decade{n // 10}")
        assert [m.queue_offset for m in by_key] == list(range(n, n + 10))
        by_time = store.offset_by_time("orders", 0, BORN + 500 * (n // 20 + 1))
        assert by_time == n // 20 * 20
    assert store.queue_range("orders", 0) == (0, count)


def derived(root: Path) -> list[Path]:
    paths = [*root.glob("consumequeue/*/*/*"), *root.glob("index/*")]
    return sorted(path for path in paths if path.is_file())


def flip_used_bits(path: Path, random: Random, count: int) -> None:
    """Flip bits of units, headers, slots and entries: none of the zeros behind them."""
    used_size_bytes = len(path.read_bytes().rstrip(b"\0"))
    for _ in range(count):
        flip(path, random.randrange(used_size_bytes * 8))


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_running_store_shows_everything(
    tmp_path: Path, config: StoreConfig, clock: Clock, seed: int
) -> None:
    random = Random(seed)
    with open_store(tmp_path, config, clock) as store:
        fill(store, clock)
        store.maintain()
        for path in derived(tmp_path):
            flip_used_bits(path, random, 1 + seed % 3)
            check_all(store)
        counters = store.counters
        assert counters.derived_damage_count > 0
        assert counters.derived_mended_unit_count + counters.derived_mended_key_count > 0
    with open_store(tmp_path, config, clock) as store:
        check_all(store)
    # Bits of slots that are in memory were written again when the file was closed, or not at all.
    assert [f for f in findings(tmp_path) if f.path.startswith("consumequeue")] == []


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("has_sums", [True, False])
def test_a_store_that_is_opened_shows_everything(
    tmp_path: Path, config: StoreConfig, clock: Clock, seed: int, has_sums: bool
) -> None:
    random = Random(seed)
    leave(tmp_path, config, clock)
    for number in range(len(derived(tmp_path))):
        path = derived(tmp_path)[number]  # A rebuild gives new names to index files.
        is_queue = "consumequeue" in path.parts
        if not has_sums:
            forget_sums(tmp_path)
        if is_queue or has_sums:
            flip_used_bits(path, random, 1 + (seed + number) % 3)
        with open_store(tmp_path, config, clock) as store:
            check_all(store, step=31)
    assert findings(tmp_path) == []


@pytest.mark.parametrize("field", ["position", "size", "tags code"])
def test_each_field_of_a_unit_is_put_right(tmp_path: Path, store: Store, field: str) -> None:
    at = {"position": 7, "size": 11, "tags code": 19}[field]
    path = tmp_path / "consumequeue/orders/0" / f"{0:020d}"
    whole = path.read_bytes()
    flip(path, (20 * 300 + at) * 8)
    assert read(store, "a") == [b"%08d" % n for n in range(0, COUNT, 3)]
    assert path.read_bytes() == whole
    assert store.counters.derived_damage_count == 1
    assert store.counters.derived_mended_unit_count == 1


def test_a_queue_of_another_maker_is_believed_once_it_fits(
    tmp_path: Path, config: StoreConfig, clock: Clock
) -> None:
    """RocketMQ wrote to the directory: the checksums are those of before."""
    leave(tmp_path, config, clock)
    for sums in (tmp_path / "checksums").rglob("*"):
        if sums.is_file():
            sums.write_bytes(Random(7).randbytes(sums.stat().st_size))
    with open_store(tmp_path, config, clock) as store:
        check_all(store)
        assert store.counters.derived_mended_unit_count == 0
        assert store.counters.derived_mended_key_count == 0
    with open_store(tmp_path, config, clock) as store:
        check_all(store)
        assert store.counters.derived_damage_count == 0


def test_a_reader_on_a_loop_is_not_kept(tmp_path: Path, store: Store) -> None:
    """What needs more of the log than a moment is an error to be tried again, then put right."""
    flip(tmp_path / "consumequeue/orders/0" / f"{0:020d}", 20 * 300 * 8 + 60)
    store.engine.guard.units.at_once_size_bytes_max = 10
    with pytest.raises(DerivedDamageError, match="offsets 300 to 300") as caught:
        read(store, "a")
    assert caught.value.retryable
    store.engine.guard.mend(caught.value)
    check_all(store)
    flip(sorted(tmp_path.glob("index/*"))[0], (40 + 64 * 4 + 20 * 30) * 8)
    store.engine.guard.units.at_once_size_bytes_max = 10
    with pytest.raises(DerivedDamageError) as caught:
        check_all(store)
    store.engine.guard.mend(caught.value)
    check_all(store)


def test_an_opening_puts_the_header_of_an_index_file_right(
    tmp_path: Path, config: StoreConfig, clock: Clock
) -> None:
    """By its times a search leaves out whole files: nobody would look into it."""
    leave(tmp_path, config, clock)
    index = sorted(tmp_path.glob("index/*"))[0]
    whole = index.read_bytes()
    flip(index, 8 * 6)
    with open_store(tmp_path, config, clock) as store:
        assert store.counters.derived_damage_count == 1
        assert index.read_bytes()[:8] == whole[:8], "when its first record came"
        assert not store.recovery.derived_rebuilt


@pytest.mark.parametrize("damaged", [None, 0, 1])
def test_an_index_file_that_expires_beside_a_pass_ends_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, damaged: int | None
) -> None:
    """The pass reads the file, or the last entries of it for the sake of the next one."""
    index, reading = store.engine.index, IndexFile.raw_entries
    first, second = index.files[:2]
    whole = Path(second.path).read_bytes()
    if damaged is not None:
        flip(Path(index.files[damaged].path), (40 + 64 * 4 + 20 * 30) * 8)

    def expiring(file: IndexFile, lo: int, hi: int) -> bytes:
        if file is first and (lo < 30 or lo > 256) and first in index.files:
            index.delete_expired(first.end_position + 1)
        return reading(file, lo, hi)

    monkeypatch.setattr(IndexFile, "raw_entries", expiring)
    if damaged is None:
        assert store.engine.guard.compare(0, first.end_position)[1] == 0
    else:
        assert store.engine.guard.keys.mend(index.files[damaged]) == (damaged == 1)
    assert first not in index.files
    assert Path(second.path).read_bytes() == whole


@pytest.mark.parametrize(("name", "nth"), [("_reference", 1), ("_stream", 1), ("_stream", 2)])
def test_keys_that_expire_beside_their_comparison_are_not_counted(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, name: str, nth: int
) -> None:
    """An entry is told its key by counting from the start of the log: the start may move."""
    fill(store, clock, COUNT, 3 * COUNT)
    keys, (_, file, *_) = store.engine.guard.keys, store.engine.index.files
    while store.log.min_position <= file.begin_position:
        store.log.delete_first()
    path = Path(file.path)
    flip(path, (40 + 64 * 4 + 20 * (file.count - 5)) * 8)
    # As of another maker: all of it has to be compared.
    monkeypatch.setattr(IndexFile, "doubtful_blocks", lambda file: [(0, file.count)])
    own, calls = getattr(keys, name), list[int]()

    def expiring(*args: Any) -> object:
        calls.append(0)
        if len(calls) == nth and name == "_stream":
            store.log.delete_first()
        reference: object = own(*args)
        if len(calls) == nth and name == "_reference":
            store.log.delete_first()
        return reference

    monkeypatch.setattr(keys, name, expiring)
    damaged = path.read_bytes()
    assert not keys.mend(file)
    assert len(calls) >= nth
    assert path.read_bytes() == damaged, "no entry was given the key of another one"


def test_appends_wait_for_the_end_of_an_index_file_only(
    tmp_path: Path, config: StoreConfig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has 400 MB of entries: who mends it must not read them all while it holds the lock."""
    monkeypatch.setattr("store.derived.key_mend._ENTRIES_AT_ONCE", 300)
    held = list[int]()
    with open_store(tmp_path, replace(config, index_entry_count=4_000), clock) as store:
        fill(store, clock)
        (file,) = store.engine.index.files
        lock, reading = store.engine.dispatcher.lock, IndexFile.raw_entries
        for entry in range(30, file.count, 256):
            flip(Path(file.path), (40 + 64 * 4 + 20 * entry) * 8)

        def counting(file: IndexFile, lo: int, hi: int) -> bytes:
            if lock._is_owned():  # type: ignore[attr-defined]
                held.append(hi - lo)
            return reading(file, lo, hi)

        monkeypatch.setattr(IndexFile, "raw_entries", counting)
        assert store.engine.guard.keys.mend(file)
        assert file.doubtful_blocks() == []
        assert sum(held) < 300 + 3 * 256, f"{held} of {file.count} entries"
        check_all(store)


def test_large_records_of_a_block_are_not_read_on_a_loop(
    tmp_path: Path, config: StoreConfig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power loss nobody knows the checksum of a block, and its records have 256 MB."""
    monkeypatch.setattr("store.derived.unit_mend.PROOF_SIZE_BYTES_MAX", 10_000)
    leave(tmp_path, config, clock)
    forget_sums(tmp_path)
    with open_store(tmp_path, config, clock) as store:
        units = store.engine.guard.units
        units.at_once_size_bytes_max = 1_000
        errors: list[DerivedDamageError] = []
        while len(errors) < 10:
            try:
                assert read(store, "a") == [b"%08d" % n for n in range(0, COUNT, 3)]
                break
            except DerivedDamageError as error:
                errors.append(error)
                store.engine.guard.mend(error)
        assert [error.span for error in errors] == [(0, 256), (256, 512), (512, 700), (700, 900)]
        assert store.counters.derived_damage_count == 0


def test_a_last_block_that_grows_beside_a_comparison_is_known(
    tmp_path: Path, config: StoreConfig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the readers of a busy queue would wait until it is full."""
    leave(tmp_path, config, clock)
    forget_sums(tmp_path)
    with open_store(tmp_path, config, clock) as store:
        units = store.engine.guard.units
        queue = queue_of(store.engine.queues)
        looking = units._first_wrong

        def growing(*rest: Any) -> int | None:
            looked_up = looking(*rest)
            if queue.max_offset == COUNT:
                fill(store, clock, COUNT, COUNT + 20)
                store.queues()
            return looked_up

        monkeypatch.setattr(units, "_first_wrong", growing)
        units.mend(b"orders", 0, COUNT - 1, COUNT)
        lo = queue.sums.block_lo(COUNT)
        assert queue.sums.expected(lo, queue.sums.tail) == queue.sums.sum_of(
            lo, queue.raw_units(lo, COUNT + 20)
        )


def test_a_block_that_could_not_be_put_right_is_not_read(tmp_path: Path, store: Store) -> None:
    """The log was cut or lost its first file beside the reader: its filter would hide a message."""
    assert len(read(store, "a")) == COUNT // 3
    flip(tmp_path / "consumequeue/orders/0" / f"{0:020d}", (20 * 300 + 19) * 8)
    store.log.changes.begin()
    with pytest.raises(DerivedDamageError, match="offsets 256 to 511"):
        read(store, "a")
    store.log.changes.end()
    check_all(store)
