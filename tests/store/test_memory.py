"""A large log costs little memory: files that are mapped and not touched cost none."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.config import GIB, MIB
from store.files.file_system import FileSystem
from store.ledger.entry import file_end
from store.log.commit_log import CommitLog
from store.record.message import encode_message
from tests.store.crash_check import open_store, temporary_parent
from tests.store.memory_probe import TOUCHED_SIZE_BYTES, probe_config
from tests.store.records import batch
from tests.two_processes import run_module

FILE_COUNT = 10
PRIVATE_SIZE_BYTES_MAX = 200 * MIB
LAST_SIZE_BYTES = 96 * MIB  # Real records that an opening reads and dispatches.


class SparseFileSystem(FileSystem):
    """Makes files of holes: the log is 10 GiB long and takes a few MiB."""

    def allocate(self, fd: int, path: str, size_bytes: int, position: int = 0) -> None:
        os.ftruncate(fd, position + size_bytes)


@pytest.fixture
def root() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="quorumlog-memory-", dir=temporary_parent()))
    yield directory / "store"
    shutil.rmtree(directory)


def build(root: Path, container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten files with a few records and a large blank each, and a last one with many records."""
    with open_store(str(root), probe_config(container), SparseFileSystem()) as store:
        for number in range(FILE_COUNT - 1):
            store.append(batch(5 * number, 5 * number + 5))
            if isinstance(store.log, CommitLog):
                store.log._roll()
            else:
                with monkeypatch.context() as patch:
                    # As if the next entry did not fit.
                    ledger = "store.ledger.ledger"
                    patch.setattr(f"{ledger}.Ledger.has_room_at_hand", lambda _log, _size: False)
                    patch.setattr(f"{ledger}.place_entry", lambda e, s, f: file_end(e, f))
                    store.append(batch(0, 1, queue_id=1))
        large = encode_message("orders", 0, bytes(range(256)) * 4096)
        while store.log.max_position < (FILE_COUNT - 1) * GIB + LAST_SIZE_BYTES:
            store.append(large)


@pytest.mark.long
@pytest.mark.parametrize("how", ["closed", "killed"])
@pytest.mark.parametrize("container", ["commit_log", "ledger"])
def test_ten_gibibytes_open_in_200_mebibytes(
    root: Path, container: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(root, container, monkeypatch)
    assert sum(path.stat().st_blocks * 512 for path in root.rglob("*")) < GIB // 2, "no holes"
    if how == "killed":  # The queues are gone, too: all that can be read is read.
        (root / "abort").write_text("1\n")
        shutil.rmtree(root / "consumequeue")
    done = run_module("tests.store.memory_probe", root, container)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    print({name: f"{value / MIB:.1f} MiB" for name, value in counts.items() if "bytes" in name})
    assert counts["file_count"] == FILE_COUNT
    assert counts["log_size_bytes"] > (FILE_COUNT - 1) * GIB
    assert counts["scanned_size_bytes"] >= LAST_SIZE_BYTES, "nothing was read"
    assert counts["private_opened_bytes"] < PRIVATE_SIZE_BYTES_MAX
    assert counts["resident_peak_bytes"] < PRIVATE_SIZE_BYTES_MAX, "also while it opened"
    grown = counts["resident_mapped_bytes"] - counts["resident_unmapped_bytes"]
    assert grown < MIB, f"{FILE_COUNT} GiB of maps took {grown} bytes"
    touched = counts["resident_touched_bytes"] - counts["resident_mapped_bytes"]
    assert touched > TOUCHED_SIZE_BYTES // 2, "the meter does not see what is touched"
