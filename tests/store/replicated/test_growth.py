"""The first files of a log have blocks only a little ahead of what is written in them."""

from functools import partial
from pathlib import Path

import pytest

from store.files import failpoints, mapped_file
from store.replicated.ledger_store import ReplicaStore
from store.replicated.shipped_store import ShippedStore
from tests.patience import wait_for
from tests.store.crash_check import must_not_die
from tests.store.records import PAGE, batch, small_config

FILE = 64 * PAGE


@pytest.mark.parametrize("kind", [ShippedStore, ReplicaStore])
def test_room_that_was_found_is_there_whatever_the_disk_says_then(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[ShippedStore] | type[ReplicaStore],
) -> None:
    """Also behind an opening, and in the next file."""
    monkeypatch.setattr(mapped_file, "FIRST_SIZE_BYTES", PAGE)
    config = small_config(
        container="ledger" if kind is ReplicaStore else "commit_log",
        file_size_bytes=FILE,
        ledger_index_units_per_file=1024,
        preallocate_file_count=1,
        disk_reserve_bytes=0,
    )
    ends = [0]
    for _ in range(4):
        with kind.open(str(tmp_path), config, on_fatal=must_not_die) as store:
            warm_up, log = store.engine.warm_up, store.log.files
            assert warm_up is not None
            for _ in range(30):
                data = batch(len(ends), len(ends) + 2, size_bytes=100 * len(ends) % 3000)
                wait_for("room", partial(store.has_room, len(data) + 100))
                prepared = store.prepare(data)
                with failpoints.armed("fs.allocate=ENOSPC@1+"):
                    if isinstance(store, ShippedStore):
                        store.append_prepared(prepared)  # type: ignore[arg-type]
                    else:
                        store.append_prepared(prepared, 1)  # type: ignore[arg-type]
                ends.append(log.wrote_position)
                first = Path(log.files[0].path)
                assert first.stat().st_blocks * 512 <= max(4 * PAGE, 2.5 * ends[-1])
                assert first.stat().st_blocks * 512 >= min(ends[-1], FILE)
                assert ends[-1] > FILE // 4 or not warm_up.ready_count
            store.dispatch_to(ends[-1])
    assert ends[-1] > FILE
    assert first.stat().st_blocks * 512 >= FILE, "a file that is complete has all of its blocks"
