"""The put lock: one holder at a time, a bounded wait, and its age."""

import threading
from itertools import count
from typing import Literal

import pytest

from store.errors import BusyError
from store.log.put_lock import PutLock
from tests.patience import PATIENCE_S
from tests.store.flush_fakes import Clock

Kind = Literal["blocking", "spin"]
KINDS: list[Kind] = ["blocking", "spin"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_holder_is_refused_after_the_timeout(kind: Kind) -> None:
    lock = PutLock(kind, 0)
    with lock, pytest.raises(BusyError, match="put lock is busy; nothing"):
        lock.acquire()
    with lock:
        with pytest.raises(BusyError):
            lock.acquire(timeout_ms=1)
        assert lock.timeout_count == 2
    with lock:
        pass
    assert lock.contended_count == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiter_gets_the_lock_when_it_is_released(kind: Kind) -> None:
    lock = PutLock(kind, 30_000)
    waiting, got = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        with lock:
            got.set()

    lock.acquire()
    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(PATIENCE_S)
    assert not got.is_set()
    lock.release()
    assert got.wait(PATIENCE_S)
    thread.join()


@pytest.mark.parametrize("kind", KINDS)
def test_appends_of_threads_never_overlap(kind: Kind) -> None:
    lock = PutLock(kind, 30_000)
    inside: list[int] = []
    overlaps: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            with lock:
                inside.append(number)
                overlaps.extend(n for n in inside if n != number)
                inside.remove(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_age_of_the_holder_is_known(kind: Kind) -> None:
    clock = Clock()
    lock = PutLock(kind, 0, monotonic_ns=clock)
    assert lock.held_ms() == 0, "a free lock has no age, however long ago it was taken"
    lock.acquire()
    clock.now_ms += 1000
    assert lock.held_ms() == 1000
    lock.release()
    assert (lock.held_ms(), lock.held_ms_max) == (0, 1000)


def test_only_a_holder_releases() -> None:
    with pytest.raises(AssertionError, match="not held"):
        PutLock("blocking", 0).release()


@pytest.mark.parametrize(("kind", "look_count"), [("blocking", 1), ("spin", 3)])
def test_only_a_spinning_waiter_looks_at_the_clock(kind: Kind, look_count: int) -> None:
    looks = count()
    lock = PutLock(kind, 0, monotonic_ns=lambda: next(looks))
    lock.acquire()
    with pytest.raises(BusyError):
        lock.acquire()
    assert next(looks) == look_count
