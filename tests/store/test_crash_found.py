"""What the crash tests found, each reduced to the smallest case that shows it."""

import dataclasses
import threading
from pathlib import Path

import pytest

from store.file_system import FileSystem
from store.flush import FlushService
from store.mapped_file_queue import MappedFileQueue
from store.store import Store
from tests.store.crash_check import crash_config, must_not_die
from tests.store.flush_fakes import DEADLINE_S, RULES, Clock, FakeLog, never
from tests.store.records import PAGE, record


@pytest.mark.parametrize("has_pool", [False, True])
def test_a_round_with_nothing_to_flush_restarts_the_interval(has_pool: bool) -> None:
    """An idle store had its flush thread spinning, which took a whole core."""
    clock = Clock()
    rules = dataclasses.replace(RULES, interval_ms=500)
    service = FlushService(FakeLog(is_free=True), rules, on_fatal=never, monotonic_ns=clock)
    clock.now_ms += 500
    assert service._schedule.wait_ms(clock.now_ms, has_pool) <= 0, "the interval has passed"
    service.run_round()
    assert service._schedule.wait_ms(clock.now_ms, has_pool) == 500


def test_the_log_ends_before_the_first_uncommitted_byte(tmp_path: Path) -> None:
    """A complete file between a buffered one and the last one hid that bytes were missing."""
    queue = MappedFileQueue(FileSystem(), str(tmp_path), PAGE)
    queue.load()
    first = queue.roll()
    first.give_buffer(memoryview(bytearray(PAGE)))
    for _ in range(3):  # The first file is in its buffer, the pool has none for the others.
        queue.files[-1].append(b"x" * PAGE)
        queue.roll()
    assert queue.max_position == 0
    first.commit()
    assert queue.max_position == 3 * PAGE
    queue.sync()
    assert queue.max_position == queue.flushed_position == 3 * PAGE
    queue.close()


def test_a_close_waits_for_a_running_round_of_maintenance(tmp_path: Path) -> None:
    """The round found the store closed, took that for a broken invariant and ended the process."""
    fatal: list[BaseException] = []
    store = Store.open(
        str(tmp_path), crash_config(derived_flush_interval_ms=1), on_fatal=fatal.append
    )
    in_round, may_go_on = threading.Event(), threading.Event()
    delete_expired = store.delete_expired

    def wait_in_the_middle() -> int:
        in_round.set()
        assert may_go_on.wait(DEADLINE_S), "the test forgot this round"
        return delete_expired()

    store._retention_ran_ms = -1 << 40  # Due at once.
    store.delete_expired = wait_in_the_middle  # type: ignore[method-assign]
    store.put(record(0))
    assert in_round.wait(DEADLINE_S), "no round began"
    stopping = store._maintenance.stop

    def stop() -> None:
        may_go_on.set()
        stopping()

    store._maintenance.stop = stop  # type: ignore[method-assign]
    store.close()
    assert fatal == []
    Store.open(str(tmp_path), crash_config(), on_fatal=must_not_die).close()
