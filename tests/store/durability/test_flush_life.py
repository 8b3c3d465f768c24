"""The flush thread: truncation, stopping, timed flush and commit."""

import errno
import itertools
import threading

import pytest

from store.config import StoreConfig
from store.durability.flush import FlushService
from store.durability.flush_schedule import FlushSchedule
from store.errors import (
    ClosedError,
    PositionRangeError,
    SyncFailedError,
)
from tests.patience import PATIENCE_S
from tests.store.flush_fakes import (
    RULES,
    Answers,
    Clock,
    FakeLog,
    Fatal,
    Sink,
    in_thread,
    never,
)

# --- Truncation ---


def test_a_truncation_waits_for_the_round_and_refuses_what_was_cut() -> None:
    log = FakeLog()
    service = FlushService(log, RULES, on_fatal=never, on_synced=Sink(log.events).on_synced)
    answers = Answers()
    service.start()
    service.request(log.append(), answers.callback(10))
    log.await_sync()
    service.request(log.append(), answers.callback(20))
    inside = threading.Event()

    def cut() -> None:
        with service.truncation(15):
            inside.set()
            log.events.append("cut")
            log.max_position = 15
            log.flushed_position = min(15, log.flushed_position)

    thread, _ = in_thread(cut)
    assert not inside.is_set(), "a sync is running"
    log.may_end.release(2)
    thread.join(PATIENCE_S)
    got = dict(answers.await_count(2))
    service.stop()
    assert got[10] is None
    if got[20] is not None:  # Else the second round began before the cut.
        assert isinstance(got[20], PositionRangeError)
    cut_at = log.events.index("cut")
    assert log.events[cut_at - 1] in ("mark 10", "mark 20", "settled"), "never inside of a round"


def test_a_cut_waiter_is_told_at_once_during_a_sync(log: FakeLog, service: FlushService) -> None:
    """A round that waited for the cut answered nobody, and the refused heard at the next timed one.

    Found as a test that hung once in six runs.
    """
    answers = Answers()
    service.request(log.append(), answers.callback(10))
    with service.truncation(5):
        log.max_position = 5
    service._sync_wanted = False  # As that round leaves it.
    thread, _ = in_thread(service._wait_for_work)
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the thread sleeps although somebody has to be told"
    assert service.run_round()
    assert isinstance(dict(answers.got)[10], PositionRangeError)


def test_waits_for_cut_positions_fail_and_the_rest_stay(
    log: FakeLog, service: FlushService
) -> None:
    answers = Answers()
    for position in (log.append(), log.append(), log.append()):
        service.request(position, answers.callback(position))
    with service.truncation(20):
        log.max_position = 20
    assert service.run_round()
    got = dict(answers.got)
    assert (got[10], got[20], type(got[30])) == (None, None, PositionRangeError)
    assert service.wait(log.max_position, 0) == 20
    with service.truncation(5):
        log.max_position = log.flushed_position = 5
    assert service.durable_position == 5
    with pytest.raises(PositionRangeError):
        service.wait(15, 0)


def test_a_truncation_that_fails_refuses_nobody(log: FakeLog, service: FlushService) -> None:
    answers = Answers()
    service.request(log.append(), answers.callback(10))
    with pytest.raises(OSError, match="no"), service.truncation(5):
        raise OSError("no")
    service.run_round()
    assert answers.got == [(10, None)]


# --- Stopping ---


def test_stop_syncs_the_rest_and_loses_no_waiter(log: FakeLog, service: FlushService) -> None:
    log.is_free = False
    answers = Answers()
    service.start()
    service.request(log.append(), answers.callback(10))
    log.await_sync()
    service.request(log.append(), answers.callback(20))
    log.append()
    thread, results = in_thread(service.stop)
    log.may_end.release(3)
    thread.join(PATIENCE_S)
    assert results == [None]
    assert answers.got == [(10, None), (20, None)]
    assert log.flushed_position == log.max_position == 30
    for call in (lambda: service.wait(log.append(), 0), service.check_room):
        with pytest.raises(ClosedError):
            call()
    service.stop()


def test_stop_without_start_syncs_too(log: FakeLog, service: FlushService) -> None:
    log.append()
    service.stop()
    service.stop()
    assert (log.flushed_position, log.sync_count) == (10, 1)


def test_a_failing_final_sync_is_reported_by_stop() -> None:
    log, fatal = FakeLog(is_free=True), Fatal()
    log.errors[1] = SyncFailedError("log", errno.ENOSPC)
    service = FlushService(log, RULES, on_fatal=fatal)
    service.start()
    log.append()
    with pytest.raises(SyncFailedError, match="No space left"):
        service.stop()
    assert len(fatal.causes) == 1


def test_the_age_of_a_hanging_sync_is_visible() -> None:
    log, clock = FakeLog(), Clock()
    service = FlushService(log, RULES, on_fatal=never, monotonic_ns=clock)
    assert service.sync_running_ms() == 0
    service.start()
    service.request(log.append(), Answers().callback(10))
    log.await_sync()
    clock.now_ms += 30_000
    assert service.sync_running_ms() == 30_000
    log.may_end.release()
    service.stop()
    assert service.sync_running_ms() == 0


# --- Timed flush and commit ---


class FakeCommitter:
    def __init__(self, log: FakeLog) -> None:
        self.log, self.wrote_position, self.commit_count = log, 0, 0

    def commit(self) -> int:
        self.commit_count += 1
        self.log.max_position = self.wrote_position
        return self.wrote_position


ASYNC = StoreConfig(file_size_bytes=1 << 20, flush="async", commit_thorough_interval_ms=600)


def test_the_thread_begins_a_round_by_itself_when_the_timer_is_due() -> None:
    """With flush=async nobody asks: without it nothing would be durable before the store closes."""
    log, clock = FakeLog(is_free=True), Clock()
    looks = itertools.count()

    def monotonic_ns() -> int:
        assert next(looks) < 100, "the thread waits on although a flush is due"
        return clock()

    service = FlushService(log, ASYNC, on_fatal=never, monotonic_ns=monotonic_ns)
    log.append(4 * 4096)
    clock.now_ms += 500
    assert service._wait_for_work()
    assert service.run_round()
    assert log.flushed_position == 4 * 4096


def test_a_request_commits_the_write_buffers_first() -> None:
    log, clock = FakeLog(is_free=True), Clock()
    committer = FakeCommitter(log)
    service = FlushService(log, ASYNC, on_fatal=never, committer=committer, monotonic_ns=clock)
    committer.wrote_position = 7
    answers = Answers()
    service.request(7, answers.callback(7))
    service.run_round()
    assert (answers.got, log.flushed_position) == ([(7, None)], 7)
    committer.wrote_position = 20_000
    service.run_round()
    assert log.max_position == 7, "the commit is not due yet"
    clock.now_ms += 200
    service.run_round()
    assert (log.max_position, log.flushed_position) == (20_000, 7), "committed, not flushed"
    committer.wrote_position = 20_001
    service.stop()
    assert log.flushed_position == 20_001


def test_least_pages_wait_for_the_thorough_flush() -> None:
    schedule = FlushSchedule(ASYNC, 0)
    assert not schedule.is_flush_due(499, 1 << 19, 0)
    assert schedule.is_flush_due(500, 4 * 4096, 0)
    assert not schedule.is_flush_due(999, 8 * 4096, 0), "the interval began again"
    assert not schedule.is_flush_due(1000, 4 * 4096 - 1, 0)
    assert not schedule.is_flush_due(9999, 1, 0)
    assert schedule.is_flush_due(10_499, 1, 0), "thorough"
    assert not schedule.is_flush_due(10_999, 1, 0)
    assert not schedule.is_flush_due(20_499, 5, 5), "nothing to flush"


def test_a_full_file_is_enough_whatever_the_pages() -> None:
    schedule = FlushSchedule(ASYNC, 0)
    assert not schedule.is_flush_due(500, (1 << 20) - 1, (1 << 20) - 2)
    assert schedule.is_flush_due(1000, 1 << 20, (1 << 20) - 2)
    assert schedule.is_commit_due(1000, 1 << 20, (1 << 20) - 2)


def test_commits_have_their_own_intervals() -> None:
    schedule = FlushSchedule(ASYNC, 0)
    assert not schedule.is_commit_due(199, 1 << 19, 0)
    assert not schedule.is_commit_due(200, 4 * 4096 - 1, 0)
    assert schedule.is_commit_due(400, 4 * 4096, 0)
    assert schedule.is_commit_due(600, 1, 0), "thorough"


def test_the_thread_sleeps_until_the_next_thing_is_due() -> None:
    schedule = FlushSchedule(ASYNC, 0)
    assert (schedule.wait_ms(0, False), schedule.wait_ms(0, True)) == (500, 200)
    schedule.is_commit_due(200, 0, 0)
    assert schedule.wait_ms(200, True) == 200
    schedule.is_flush_due(500, 0, 0)
    assert schedule.wait_ms(500, False) == 500
    schedule.is_flush_due(900, 0, 0)
    assert schedule.wait_ms(950, False) == 50, "the sink is due at 1000"
    schedule.settled(1000)
    assert schedule.wait_ms(1000, False) == 0
