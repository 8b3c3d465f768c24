"""A replica's store at its edges: room in the making, a close, a log that is replaced, cuts."""

from pathlib import Path

import pytest

from store.errors import ClosedError
from store.files import failpoints
from store.ledger.entry import KIND_NO_OP
from store.replicated.ledger_store import ReplicaStore
from tests.store.crash_check import must_not_die
from tests.store.ledger_stores import CONFIG
from tests.store.records import batch


class _WarmUp:
    """Allocates nothing ahead."""

    def __init__(self, store: ReplicaStore) -> None:
        self.asked: list[int] = []
        self._own = store.engine.warm_up

    def poll(self, position: int) -> bool:
        self.asked.append(position)
        return False


def test_room_that_is_still_being_made_is_none(tmp_path: Path) -> None:
    """Else the caller, which may not wait, would make the file itself."""
    with ReplicaStore.open(str(tmp_path), CONFIG, on_fatal=must_not_die) as store:
        store.append_own(KIND_NO_OP, 1, b"x")
        count = len(store.ledger.files.files)
        warm_up = _WarmUp(store)
        store.engine.warm_up = warm_up  # type: ignore[assignment]
        try:
            assert not store.has_room(2 * CONFIG.file_size_bytes)
            assert warm_up.asked
            assert len(store.ledger.files.files) == count
            assert store.ledger.files.reserved_count == 0
        finally:
            store.engine.warm_up = warm_up._own


def test_a_closed_store_has_neither_room_nor_records_and_says_why(tmp_path: Path) -> None:
    """Whoever hears that there is no room tries again."""
    with ReplicaStore.open(str(tmp_path), CONFIG, on_fatal=must_not_die) as store:
        store.append_own(KIND_NO_OP, 1, b"x")
    with failpoints.armed("fs.open=ENOSPC"), pytest.raises(ClosedError):
        store.has_room(8 * CONFIG.file_size_bytes)
    with pytest.raises(ClosedError):
        store.reads.pull("orders", 0, 0, max_count=1, max_size_bytes=100)
    with pytest.raises(ClosedError):
        store.prepare(batch(0, 1))


def test_a_log_that_is_replaced_beside_the_look_at_it_expires_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReplicaStore.open(str(tmp_path), CONFIG, on_fatal=must_not_die) as store:
        while len(store.ledger.files.files) < 3:
            store.append_own(KIND_NO_OP, 1, bytes(500))

        def plan(*_: object) -> tuple[int, int]:
            store.ledger.reset_count += 1
            return 1, 0

        monkeypatch.setattr(store.engine.retention, "plan", plan)
        store.find_expired()
        assert store.expired_position == 0
        monkeypatch.setattr(store.engine.retention, "plan", lambda *_: (1, 0))
        store.find_expired()
        assert store.expired_position == store.ledger.files.files[0].end_position


def test_a_cut_lowers_the_mark_to_the_entry_before_it(tmp_path: Path) -> None:
    """A mark above the end of the log would say that durable entries are missing."""
    with ReplicaStore.open(str(tmp_path), CONFIG, on_fatal=must_not_die) as store:
        for _ in range(6):
            store.append_own(KIND_NO_OP, 1, b"x")
        store.engine.flush_service.wait(store.ledger.max_position, 10_000)
        store.truncate_from(4)
        assert store.ledger.last_index == 3
        mark = store.engine.mark.mark
        assert (mark.durable_index, mark.durable_position) == (3, store.ledger.max_position)
