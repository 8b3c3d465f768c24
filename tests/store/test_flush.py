"""The flush thread: group commit, timed flush, final failures. The log is a fake whose syncs wait
for the test, so nothing here depends on time."""

import errno
import threading
from collections.abc import Callable

import pytest

from store.errors import (
    BusyError,
    ClosedError,
    FlushTimeoutError,
    PositionRangeError,
    StoreError,
    SyncFailedError,
)
from store.flush import FlushService
from store.flush_schedule import FlushRules, FlushSchedule
from store.stats import StoreCounters

DEADLINE_S = 30  # Only a broken flush thread waits that long.
FOREVER_MS = 1000 * DEADLINE_S
RULES = FlushRules(
    file_size_bytes=1 << 20,
    interval_ms=1_000_000,
    least_pages=0,
    thorough_interval_ms=1_000_000,
    settle_interval_ms=1_000_000,
    commit_interval_ms=1_000_000,
    commit_least_pages=4,
    commit_thorough_interval_ms=1_000_000,
)


class FakeLog:
    """Appends are instant; a sync blocks until the test lets it go on, unless `is_free`."""

    def __init__(self, *, is_free: bool = False) -> None:
        self.max_position = 0
        self.flushed_position = 0
        self.is_free = is_free
        self.sync_count = 0
        self.events: list[str] = []
        self.errors: dict[int, BaseException] = {}  # By number of the sync, from 1.
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def append(self, size_bytes: int = 10) -> int:
        self.max_position += size_bytes
        return self.max_position

    def sync(self) -> int:
        self.sync_count += 1
        end = self.max_position
        self.events.append(f"sync to {end} began")
        self.began.release()
        if not self.is_free:
            assert self.may_end.acquire(timeout=DEADLINE_S), "the test forgot this sync"
        if self.sync_count in self.errors:
            self.events.append("sync failed")
            raise self.errors[self.sync_count]
        self.events.append(f"sync to {end} ended")
        self.flushed_position = end
        return end

    def await_sync(self) -> None:
        assert self.began.acquire(timeout=DEADLINE_S), "no sync began"


class Answers:
    """Collects what callbacks are told, and by which thread."""

    def __init__(self, log: FakeLog | None = None) -> None:
        self.log = log
        self.got: list[tuple[int, StoreError | None]] = []
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def callback(self, position: int) -> Callable[[StoreError | None], None]:
        def tell(error: StoreError | None) -> None:
            with self._changed:
                self.got.append((position, error))
                self.threads.add(threading.current_thread().name)
                if self.log is not None:
                    self.log.events.append(f"told {position}")
                self._changed.notify_all()

        return tell

    def await_count(self, count: int) -> list[tuple[int, StoreError | None]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, DEADLINE_S), self.got
            return list(self.got)


class Fatal:
    def __init__(self) -> None:
        self.causes: list[BaseException] = []
        self.called = threading.Event()

    def __call__(self, cause: BaseException) -> None:
        self.causes.append(cause)
        self.called.set()


class Clock:
    def __init__(self) -> None:
        self.now_ms = 5_000_000

    def __call__(self) -> int:
        return self.now_ms * 1_000_000


def never(cause: BaseException) -> None:
    raise AssertionError(f"fatal: {cause!r}")


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run `work` on a thread; its result, or what it raised, is appended to the list."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except StoreError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


# --- Group commit ---


def test_ack_never_precedes_sync() -> None:
    log = FakeLog()
    service = FlushService(log, RULES, on_fatal=never)
    answers = Answers(log)
    service.start()
    service.request(log.append(), answers.callback(10))
    log.await_sync()
    assert answers.got == [], "told while the sync was running"
    service.request(log.append(), answers.callback(20))
    log.may_end.release()
    answers.await_count(1)
    log.await_sync()
    assert answers.got == [(10, None)], "20 was appended after the first sync began"
    log.may_end.release()
    answers.await_count(2)
    service.stop()
    assert log.events == [
        "sync to 10 began",
        "sync to 10 ended",
        "told 10",
        "sync to 20 began",
        "sync to 20 ended",
        "told 20",
    ]
    assert answers.threads == {"store-flush"}


def test_acks_of_many_threads_never_precede_their_sync() -> None:
    log = FakeLog(is_free=True)
    counters = StoreCounters()
    service = FlushService(log, RULES, on_fatal=never, counters=counters)
    service.start()
    append_lock = threading.Lock()
    early: list[tuple[int, int]] = []

    def work() -> None:
        for _ in range(100):
            with append_lock:
                position = log.append()
            durable = service.wait(position, FOREVER_MS)
            if not position <= durable <= log.flushed_position:
                early.append((position, durable))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service.stop()
    assert early == []
    assert log.flushed_position == log.max_position == 4000
    assert counters.sync_bytes == 4000
    assert 1 <= log.sync_count <= 400


def test_one_sync_serves_all_that_arrived_during_the_one_before() -> None:
    log = FakeLog()
    service = FlushService(log, RULES, on_fatal=never)
    answers = Answers()
    service.start()
    service.request(log.append(), answers.callback(0))
    log.await_sync()
    for number in range(1, 6):
        service.request(log.append(), answers.callback(number))
    log.may_end.release(2)
    assert answers.await_count(6) == [(n, None) for n in range(6)], "in order, none lost"
    service.stop()
    assert log.sync_count == 2


def test_what_is_durable_already_needs_no_sync() -> None:
    log = FakeLog(is_free=True)
    service = FlushService(log, RULES, on_fatal=never)
    service.start()
    position = log.append()
    assert service.wait(position, FOREVER_MS) == position
    assert service.wait(position, 0) == position
    answers = Answers()
    service.request(position, answers.callback(1))
    assert answers.await_count(1) == [(1, None)]
    service.stop()
    assert log.sync_count == 1


def test_wake_syncs_although_nobody_waits() -> None:
    log = FakeLog(is_free=True)
    service = FlushService(log, RULES, on_fatal=never)
    service.start()
    log.append()
    service.wake()
    log.await_sync()
    service.stop()
    assert log.flushed_position == 10


def test_a_timeout_leaves_the_outcome_unknown_and_nothing_behind() -> None:
    log = FakeLog()
    counters = StoreCounters()
    service = FlushService(log, RULES, on_fatal=never, counters=counters)
    service.start()
    position = log.append()
    with pytest.raises(
        FlushTimeoutError, match=r"position 10 was not synced within 1 ms"
    ) as caught:
        service.wait(position, 1)
    assert caught.value.outcome.value == "unknown"
    assert (service.pending_count, counters.flush_timeout_count) == (0, 1)
    log.await_sync()
    log.may_end.release()
    assert service.wait(position, FOREVER_MS) == 10, "asking again is allowed"
    service.stop()


def test_positions_that_were_never_appended_are_refused() -> None:
    log = FakeLog()
    service = FlushService(log, RULES, on_fatal=never)
    with pytest.raises(PositionRangeError, match=r"position 11 is outside of \[0, 11\)"):
        service.wait(log.append() + 1, 0)
    assert service.pending_count == 0


def test_the_number_of_waiters_is_bounded() -> None:
    log = FakeLog()
    service = FlushService(log, RULES, on_fatal=never, request_count_max=2)
    answers = Answers()
    position = log.append()
    service.check_room()
    service.request(position, answers.callback(1))
    service.request(position, answers.callback(2))
    for ask in (service.check_room, lambda: service.request(position, answers.callback(3))):
        with pytest.raises(BusyError, match=r"flush queue \(2 wait\)"):
            ask()
    log.is_free = True
    assert service.run_round()
    service.check_room()
    assert answers.got == [(1, None), (2, None)]


# --- Failure ---


def test_sync_error_is_final() -> None:
    """S02: EIO once, success after; no ack, no second try, the watermark stays."""
    log, fatal, answers = FakeLog(), Fatal(), Answers()
    log.errors[2] = SyncFailedError("log", errno.EIO)
    service = FlushService(log, RULES, on_fatal=fatal)
    service.start()
    service.request(log.append(), answers.callback(10))
    log.await_sync()
    log.may_end.release()
    answers.await_count(1)
    service.request(log.append(), answers.callback(20))
    log.await_sync()
    thread, results = in_thread(lambda: service.wait(log.max_position, FOREVER_MS))
    while service.pending_count < 2:
        assert thread.is_alive()
    service.request(log.append(), answers.callback(30))
    log.may_end.release()
    got = answers.await_count(3)
    thread.join(DEADLINE_S)
    assert fatal.called.wait(DEADLINE_S)
    assert got[0] == (10, None)
    for _, told in got[1:]:
        assert isinstance(told, SyncFailedError)
    assert isinstance(results[0], SyncFailedError)
    log.is_free = True
    for call in (
        lambda: service.wait(5, FOREVER_MS),
        lambda: service.request(30, answers.callback(31)),
        service.check_room,
        service.stop,
        service.stop,
    ):
        with pytest.raises(SyncFailedError, match="Input/output error"):
            call()
    assert not service.run_round(thorough=True)
    assert (log.sync_count, log.flushed_position, service.durable_position) == (2, 10, 10)
    assert fatal.causes == [log.errors[2]], "called once"
    assert len(answers.got) == 3


@pytest.mark.parametrize("cause", [AssertionError("broken"), ValueError("bug"), OSError(5, "io")])
def test_any_error_on_the_thread_is_fatal(cause: BaseException) -> None:
    log, fatal, answers = FakeLog(is_free=True), Fatal(), Answers()
    log.errors[1] = cause
    service = FlushService(log, RULES, on_fatal=fatal)
    service.start()
    service.request(log.append(), answers.callback(10))
    told = answers.await_count(1)[0][1]
    assert fatal.called.wait(DEADLINE_S)
    assert fatal.causes == [cause]
    assert isinstance(told, SyncFailedError)
    assert told.__cause__ is cause
    with pytest.raises(SyncFailedError):
        service.stop()


def test_a_callback_that_raises_is_fatal_and_the_others_hear_it_all_the_same() -> None:
    log, fatal, answers = FakeLog(is_free=True), Fatal(), Answers()
    service = FlushService(log, RULES, on_fatal=fatal)

    def bad(error: StoreError | None) -> None:
        raise ValueError("the loop is closed")

    position = log.append()
    service.request(position, answers.callback(1))
    service.request(position, bad)
    service.request(position, answers.callback(2))
    assert not service.run_round()
    assert answers.got == [(1, None), (2, None)]
    assert [str(cause) for cause in fatal.causes] == ["the loop is closed"]


def test_a_failing_sync_with_a_callback_that_raises_still_reaches_the_owner() -> None:
    log, fatal = FakeLog(is_free=True), Fatal()
    log.errors[1] = SyncFailedError("log", errno.EIO)
    service = FlushService(log, RULES, on_fatal=fatal)

    def bad(error: StoreError | None) -> None:
        raise ValueError("the loop is closed")

    service.request(log.append(), bad)
    assert not service.run_round()
    assert fatal.causes == [log.errors[1]]
    assert "the loop is closed" in fatal.causes[0].__notes__[0]


# --- The durable mark's place ---


class Sink:
    """Records the order of things; may check what is true when it is told."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.error: BaseException | None = None

    def on_synced(self, flushed_position: int) -> None:
        self.events.append(f"mark {flushed_position}")
        if self.error is not None:
            raise self.error

    def on_settled(self, now_ms: int) -> None:
        self.events.append("settled")


def test_the_mark_is_written_after_the_sync_and_before_anybody_is_told() -> None:
    log = FakeLog(is_free=True)
    service = FlushService(log, RULES, on_fatal=never, sink=Sink(log.events))
    answers = Answers(log)
    service.request(log.append(), answers.callback(10))
    service.run_round()
    order = ["sync to 10 began", "sync to 10 ended", "mark 10", "told 10", "settled"]
    assert log.events == order
    service.run_round()
    assert log.events == [*order, "settled"], "nothing new: no sync, no mark"


def test_no_waiter_passes_between_the_sync_and_the_mark() -> None:
    log = FakeLog(is_free=True)
    sink = Sink(log.events)
    service = FlushService(log, RULES, on_fatal=never, sink=sink)
    seen: list[object] = []

    def on_synced(flushed_position: int) -> None:
        assert log.flushed_position == 10, "the log is durable, the mark is not written yet"
        thread, results = in_thread(lambda: service.wait(10, 0))
        thread.join(DEADLINE_S)
        seen.append(results[0])

    sink.on_synced = on_synced  # type: ignore[method-assign]
    log.append()
    service.wake()
    assert service.run_round()
    assert isinstance(seen[0], FlushTimeoutError)
    assert service.wait(10, 0) == 10


def test_a_mark_that_cannot_be_written_is_fatal() -> None:
    log, fatal, answers = FakeLog(is_free=True), Fatal(), Answers()
    sink = Sink(log.events)
    sink.error = SyncFailedError("marks", errno.EIO)
    service = FlushService(log, RULES, on_fatal=fatal, sink=sink)
    service.request(log.append(), answers.callback(10))
    assert not service.run_round()
    assert isinstance(answers.got[0][1], SyncFailedError)
    assert service.durable_position == 0


# --- Truncation ---


def test_a_truncation_waits_for_the_round_and_refuses_what_was_cut() -> None:
    log = FakeLog()
    service = FlushService(log, RULES, on_fatal=never, sink=Sink(log.events))
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
    thread.join(DEADLINE_S)
    got = dict(answers.await_count(2))
    service.stop()
    assert got[10] is None
    if got[20] is not None:  # Else the second round began before the cut.
        assert isinstance(got[20], PositionRangeError)
    cut_at = log.events.index("cut")
    assert log.events[cut_at - 1] in ("mark 10", "mark 20", "settled"), "never inside of a round"


def test_what_was_cut_is_refused_and_the_rest_stays() -> None:
    log = FakeLog(is_free=True)
    service = FlushService(log, RULES, on_fatal=never)
    answers = Answers()
    for position in (log.append(), log.append(), log.append()):
        service.request(position, answers.callback(position))
    with service.truncation(15):
        log.max_position = 15
    assert service.run_round()
    got = dict(answers.got)
    assert got[10] is None
    assert [type(got[p]) for p in (20, 30)] == [PositionRangeError] * 2
    assert service.wait(log.max_position, 0) == 15
    with service.truncation(5):
        log.max_position = log.flushed_position = 5
    assert service.durable_position == 5
    with pytest.raises(PositionRangeError):
        service.wait(15, 0)


def test_a_truncation_that_fails_refuses_nobody() -> None:
    log = FakeLog(is_free=True)
    service = FlushService(log, RULES, on_fatal=never)
    answers = Answers()
    service.request(log.append(), answers.callback(10))
    with pytest.raises(OSError, match="no"), service.truncation(5):
        raise OSError("no")
    service.run_round()
    assert answers.got == [(10, None)]


def test_a_waiter_whose_bytes_are_cut_is_told_at_its_timeout_at_the_latest() -> None:
    log = FakeLog()
    service = FlushService(log, RULES, on_fatal=never)
    request = service._enqueue(log.append(), Answers().callback(10))
    with service.truncation(5):  # No flush thread runs that could tell it.
        log.max_position = 5
    with pytest.raises(PositionRangeError):
        service._withdraw(request, 1)
    service._withdraw(request, 1)  # Somebody else resolves it: no error of its own.


# --- Stopping ---


def test_stop_syncs_the_rest_and_loses_no_waiter() -> None:
    log = FakeLog()
    service = FlushService(log, RULES, on_fatal=never)
    answers = Answers()
    service.start()
    service.request(log.append(), answers.callback(10))
    log.await_sync()
    service.request(log.append(), answers.callback(20))
    log.append()
    thread, results = in_thread(service.stop)
    log.may_end.release(3)
    thread.join(DEADLINE_S)
    assert results == [None]
    assert answers.got == [(10, None), (20, None)]
    assert log.flushed_position == log.max_position == 30
    for call in (lambda: service.wait(log.append(), 0), service.check_room):
        with pytest.raises(ClosedError):
            call()
    service.stop()


def test_stop_without_start_syncs_too() -> None:
    log = FakeLog(is_free=True)
    service = FlushService(log, RULES, on_fatal=never)
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


ASYNC = FlushRules(
    file_size_bytes=1 << 20,
    interval_ms=500,
    least_pages=4,
    thorough_interval_ms=10_000,
    settle_interval_ms=1_000,
    commit_interval_ms=200,
    commit_least_pages=4,
    commit_thorough_interval_ms=600,
)


def test_the_timer_flushes_what_nobody_asked_for() -> None:
    log, clock = FakeLog(is_free=True), Clock()
    service = FlushService(log, ASYNC, on_fatal=never, monotonic_ns=clock)
    log.append(4 * 4096)
    service.run_round()
    assert log.sync_count == 0, "not before the interval"
    clock.now_ms += 500
    service.run_round()
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
