"""An opening after a crash reads what was written since the last mark, however long the log is."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from store.config import StoreConfig
from store.derived.keys.index_file import IndexFile
from store.files.file_system import FileSystem
from store.record.message import encode_message
from tests.store import fsck_stores
from tests.store.crash_check import open_store
from tests.store.crashes import abandon
from tests.store.fsck_stores import Clock
from tests.store.records import BORN, PAGE, small_config

BATCH_COUNT = 50
KEPT_COUNTS = {"sparse": 500, "dense": 1}
"""Records for each one with a key."""


def _config(container: str) -> StoreConfig:
    return small_config(
        container=container,
        file_size_bytes=16 * PAGE,
        consume_queue_units_per_file=1_000,
        index_entry_count=100_000,
        ledger_index_units_per_file=128,
    )


def _batch(lo: int, keys: str) -> bytes:
    """Records mostly of one queue, and one of a topic of its own among the first ones."""
    parts = []
    for n in range(lo, lo + BATCH_COUNT):
        properties = {} if n % KEPT_COUNTS[keys] else {"KEYS": f"key{n} other{n}"}
        topic = f"rare{n // BATCH_COUNT}" if n % BATCH_COUNT == 7 and n < 1_000 else "orders"
        parts.append(encode_message(topic, 0, b"%08d" % n, properties, born_unix_ms=BORN + n))
    return b"".join(parts)


class _CountedReads(FileSystem):
    """Counts bytes read, by the part of the store that they are of."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root, self.counts = root, Counter[str]()

    def read_at(self, fd: int, path: str, at: int, size_bytes: int) -> bytes:
        self.counts["/".join(Path(path).relative_to(self.root).parts[:-1][:2])] += size_bytes
        return super().read_at(fd, path, at, size_bytes)


def _opening(
    tmp_path: Path, config: StoreConfig, count: int, keys: str, monkeypatch: pytest.MonkeyPatch
) -> Counter[str]:
    root, killed = tmp_path / f"{count}", tmp_path / f"{count}-killed"
    store = open_store(str(root), config)
    for lo in range(0, count, BATCH_COUNT):
        store.append(_batch(lo, keys))
    store.put(_batch(count, keys))
    store.maintain()
    for lo in range(count + BATCH_COUNT, count + 3 * BATCH_COUNT, BATCH_COUNT):
        store.append(_batch(lo, keys))
    store._dispatch_all()  # Built, and not synced: what a kill leaves.
    shutil.copytree(root, killed)
    abandon(store.engine)
    fs = _CountedReads(killed)
    read = IndexFile._read

    def counted(file: IndexFile, at: int, size_bytes: int) -> bytes:
        fs.counts["index"] += size_bytes if file._map is not None else 0
        return read(file, at, size_bytes)

    with monkeypatch.context() as patched:
        patched.setattr(IndexFile, "_read", counted)
        again = open_store(str(killed), config, fs)
    call_counts = fs.counts.copy()
    assert not again.recovery.was_clean
    assert not again.recovery.derived_rebuilt
    files = again.engine.index.files
    assert [file.are_slots_proven for file in files[:1]] == [False]
    assert again.engine.guard.mend_file(0) == (again.engine.index.files[0].size_bytes, False)
    assert again.engine.index.files[0].are_slots_proven, "by the first pass, beside all other work"
    last = (count + 3 * BATCH_COUNT - 1) // KEPT_COUNTS[keys] * KEPT_COUNTS[keys]
    for n in (0, last):
        hits = again.messages_by_key("orders", f"other{n}")
        assert [message.queue_offset for message in hits] == [n - min(20, n // BATCH_COUNT)]
    assert again.queue_range("orders", 0)[1] == count + 3 * BATCH_COUNT - min(20, count // 50)
    again.close()
    return call_counts


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
@pytest.mark.parametrize("keys", ["sparse", "dense"])
def test_an_opening_after_a_kill_reads_no_more_of_a_longer_log(
    tmp_path: Path, container: str, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(container)
    short = _opening(tmp_path, config, 4_000, keys, monkeypatch)
    long = _opening(tmp_path, config, 12_000, keys, monkeypatch)
    assert {"index", "consumequeue/orders"} <= long.keys()
    for part, size_bytes in long.items():
        # The walk begins with a file of the log; elsewhere blocks and binary searches are rounded.
        slack = 2 * config.file_size_bytes if part[:9] in ("commitlog", "dledger-n") else 2 * PAGE
        assert size_bytes <= short[part] + slack, f"{part}: {short} of 4,000, {long} of 12,000"


def test_a_kill_between_an_expired_index_file_and_the_mark_rebuilds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, clock = replace(_config("ledger"), index_entry_count=200), Clock()
    root, killed = tmp_path / "store", tmp_path / "killed"
    with fsck_stores.open_store(root, config, clock) as store:
        for lo in range(0, 2_000, BATCH_COUNT):
            store.put(_batch(lo, "dense"))
            clock.unix_ms += 4 * 3_600_000
        store._dispatch_all()
        before = len(store.engine.index.files)

        def kill() -> int:
            if len(store.engine.index.files) < before and not killed.exists():
                shutil.copytree(root, killed)
            return sync()

        sync = store.engine.sync_derived
        monkeypatch.setattr(store.engine, "sync_derived", kill)
        assert store.delete_expired()
    assert killed.exists()
    with fsck_stores.open_store(killed, config, clock) as store:
        assert not store.recovery.derived_rebuilt
