"""A header of the key index with a wrong time: the seconds of its entries count from the right one.

All of it on stores that were killed, so that the header of the last file has no checksum.
"""

import shutil
from pathlib import Path

import pytest

from store import format as fmt
from store.config import StoreConfig
from store.record.message import encode_message
from store.store import Store
from tests.store.fsck_stores import Clock, findings, fsck_config, open_store
from tests.store.overwrites import overwrite
from tests.store.records import BORN

COUNT = 700
"""Two blocks of entries are full, the third one is growing."""
BATCH = 20


@pytest.fixture(params=["commit_log", "ledger"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return fsck_config(
        request.param,
        index_entry_count=4_000,
        index_slot_count=1_000,
        file_size_bytes=1 << 18,
        consume_queue_units_per_file=1_000,
    )


def fill(store: Store, clock: Clock, lo: int, hi: int) -> None:
    """Records with a key each, a batch every two seconds."""
    for first in range(lo, hi, BATCH):
        clock.unix_ms += 2_000
        numbers = range(first, first + BATCH)
        store.put(
            b"".join(
                encode_message("orders", 0, b"%d" % n, {"KEYS": f"key{n}"}, born_unix_ms=BORN)
                for n in numbers
            )
        )


def killed(root: Path, config: StoreConfig, clock: Clock) -> tuple[Path, Path]:
    """Return the directory as a killed process leaves it, and its one index file."""
    with open_store(root / "run", config, clock) as store:
        fill(store, clock, 0, COUNT)
        store.maintain()
        left = Path(shutil.copytree(root / "run", root / "left"))
    (path,) = (left / "index").iterdir()
    return left, path


def header(path: Path) -> list[int]:
    return list(fmt.INDEX_HEADER.unpack(path.read_bytes()[: fmt.INDEX_HEADER_SIZE_BYTES]))


def set_header(path: Path, at: int, value: int) -> None:
    numbers = header(path)
    numbers[at] = value
    overwrite(path, 0, fmt.INDEX_HEADER.pack(*numbers))


@pytest.mark.parametrize("bit", [None, 0, 15, 17, 30, 62])
def test_a_begin_time_that_flipped_moves_no_entry(
    tmp_path: Path, config: StoreConfig, bit: int | None
) -> None:
    """The last block was mended against the wrong time, and then the time was put right."""
    clock = Clock()
    left, path = killed(tmp_path, config, clock)
    if bit is not None:
        set_header(path, 0, header(path)[0] ^ 1 << bit)
    with open_store(left, config, clock) as store:
        fill(store, clock, COUNT, COUNT + 2 * BATCH)
        for n in range(0, COUNT + 2 * BATCH, 37):
            unix_ms = BORN + 2_000 * (n // BATCH + 1)
            messages = store.messages_by_key(
                "orders", f"key{n}", lo_unix_ms=unix_ms, hi_unix_ms=unix_ms + 1
            )
            assert [one.queue_offset for one in messages] == [n]
    assert findings(left) == []


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("too_low_ms", [1, 256, 699])
def test_an_end_time_that_flipped_within_its_second_hides_no_key(
    tmp_path: Path, config: StoreConfig, is_closed: bool, too_low_ms: int
) -> None:
    """Entries know seconds only: they do not tell that the last one came later than that."""
    clock, root = Clock(), tmp_path / "run"
    with open_store(root, config, clock) as store:
        fill(store, clock, 0, COUNT - BATCH)
        clock.unix_ms -= 1_300  # 700 ms behind the batch before.
        fill(store, clock, COUNT - BATCH, COUNT)
        store.maintain()
        left = Path(shutil.copytree(root, tmp_path / "left"))
    left = root if is_closed else left
    last_unix_ms = clock.unix_ms
    (path,) = (left / "index").iterdir()
    assert header(path)[1] == last_unix_ms
    set_header(path, 1, last_unix_ms - too_low_ms)
    with open_store(left, config, clock) as store:
        messages = store.messages_by_key(
            "orders", f"key{COUNT - 1}", lo_unix_ms=last_unix_ms, hi_unix_ms=last_unix_ms + 1
        )
        assert [one.queue_offset for one in messages] == [COUNT - 1]
    assert last_unix_ms <= header(path)[1] < last_unix_ms + 1_000
    assert findings(left) == []
