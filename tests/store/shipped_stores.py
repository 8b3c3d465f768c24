"""Stores of shipped logs, and one that follows another byte for byte."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

from store.errors import StoreError
from store.files.file_system import FileSystem
from store.replicated.shipped_store import ShippedStore
from tests.patience import PATIENCE_S
from tests.store.crash_check import must_not_die
from tests.store.records import BORN, PAGE, batch, numbers, small_config

CONFIG = small_config(file_size_bytes=4 * PAGE, disk_reserve_bytes=0)
LAST = b"last"
"""Topic of the records that end a batch, where a test has such."""


def open_store(root: Path, fs: FileSystem | None = None, **changes: object) -> ShippedStore:
    config = replace(CONFIG, **changes)  # type: ignore[arg-type]
    return ShippedStore.open(
        str(root), config, fs=fs, now_unix_ms=lambda: BORN, on_fatal=must_not_die
    )


def put(store: ShippedStore, lo: int, hi: int, **how: object) -> int:
    """Append one batch; return its end."""
    prepared = store.prepare(batch(lo, hi, property_crc=store.config.property_crc, **how))
    return store.append_prepared(prepared).end_position


def filled(store: ShippedStore, hi: int, *, size_bytes: int = 400) -> list[int]:
    """Append records [0, hi) in batches of three; return where each batch ends, 0 first."""
    ends = [put(store, lo, lo + 3, size_bytes=size_bytes) for lo in range(0, hi, 3)]
    return [0, *ends]


def take_away(store: ShippedStore, lo: int, epoch: int = 1) -> str:
    """Cut as a replica does; return the path of what was set aside."""
    aside = store.set_aside(lo, store.shipped.end_position, epoch)
    store.cut(lo)
    return aside.path


def ship(source: ShippedStore, target: ShippedStore, hi: int = 0, *, limit: int = 3000) -> None:
    """Bring a target up to `hi`, by default to the end of the source."""
    log = source.shipped
    hi = hi or log.end_position
    while (lo := target.shipped.end_position) < hi:
        data = log.read_raw(lo, log.ship_end(lo, hi, limit, LAST))
        assert target.has_room(len(data))
        target.write_raw(target.shipped.check_raw(lo, data))


def log_bytes(store: ShippedStore) -> bytes:
    """All bytes of the log, from position 0 or where it begins."""
    log = store.shipped
    return b"".join(
        file.read(file.position, file.wrote_position - file.position) for file in log.files.files
    )


def on_disk(root: Path) -> bytes:
    """All bytes of the log's files."""
    return b"".join(file.read_bytes() for file in sorted((root / "commitlog").iterdir()))


def found_numbers(store: ShippedStore, queue_id: int = 0) -> list[int]:
    """What a reader of a queue sees."""
    lo, _ = store.reads.queue_range("orders", queue_id)
    pulled = store.reads.pull("orders", queue_id, lo, max_count=10_000, max_size_bytes=1 << 24)
    return numbers(pulled.data)


def sync(store: ShippedStore) -> None:
    """Make all that was written durable, here or on the flush thread if that is at it."""
    if store.sync_here():
        return
    done, errors = threading.Event(), []

    def on_done(error: StoreError | None) -> None:
        errors.append(error)
        done.set()

    store.request_sync(on_done)
    assert done.wait(PATIENCE_S)
    assert errors == [None]


def killed(root: Path, image: Path) -> Path:
    """Return a copy of a directory as SIGKILL would leave it now: the page cache is there."""
    shutil.copytree(root, image)
    return image
