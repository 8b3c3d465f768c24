"""Syncs that do not end: who is told when, what ends the process, and what does not."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from node.runtime import sync_watch
from node.runtime.fail_stop import FailStop
from node.runtime.sync_watch import (
    LOOK_MS,
    SLOW_SYNC_MS,
    RunningSync,
    SyncHangsError,
    SyncWatch,
    WatchedFileSystem,
)
from store.durability.fatal import EXIT_SYNC_FAILED
from store.errors import FileSystemError, SyncFailedError
from store.files import failpoints
from tests.patience import PATIENCE_S

LIMIT_MS = 60_000


class Syncs(WatchedFileSystem):
    """A disk whose syncs the test begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.now: list[RunningSync] = []

    def running(self) -> list[RunningSync]:
        return list(self.now)


class World:
    def __init__(self) -> None:
        self.fs = Syncs()
        self.fatal: list[BaseException] = []
        self.watch = SyncWatch(self.fs, LIMIT_MS, self.fatal.append)

    def look_for(self, passed_ms: int) -> list[str]:
        """Look as often as it does in that time; return what is logged."""
        with capture_logs() as lines:
            for _ in range(passed_ms // LOOK_MS):
                self.watch.look()
        assert all(line["log_level"] == "warning" for line in lines)
        return [line["event"] for line in lines]


def test_a_slow_sync_is_told_once_and_so_is_its_end() -> None:
    world = World()
    world.fs.now = [RunningSync("data/0")]
    assert world.look_for(SLOW_SYNC_MS) == []
    assert world.watch.warnings() == ()
    assert world.look_for(LOOK_MS) == ["a sync hangs or is slow"]
    assert world.look_for(20_000) == []
    (warning,) = world.watch.warnings()
    assert "25 s" in warning
    assert "60 s" in warning
    world.fs.now = []
    assert world.look_for(LOOK_MS) == ["a slow sync has ended"]
    assert world.watch.warnings() == ()
    assert world.look_for(20_000) == []
    assert not world.fatal


def test_a_sync_beyond_the_limit_ends_the_process() -> None:
    world = World()
    world.fs.now = [RunningSync("data/0")]
    world.look_for(LIMIT_MS)
    assert not world.fatal
    world.look_for(LOOK_MS)
    (error,) = world.fatal
    assert isinstance(error, SyncHangsError)
    assert (error.path, error.running_ms) == ("data/0", LIMIT_MS)
    assert "60 s; look at the disk" in str(error)


def test_many_syncs_that_all_end_are_no_hang() -> None:
    """A disk may be busy for as long as it likes."""
    world = World()
    other = RunningSync("marks")
    for number in range(3 * LIMIT_MS // LOOK_MS):
        other = other if number % 9 else RunningSync("marks")
        world.fs.now = [RunningSync("data/0"), other]
        assert world.look_for(LOOK_MS) == []
    assert not world.fatal


def test_each_sync_has_its_own_age() -> None:
    world = World()
    first, second = RunningSync("data/0"), RunningSync("index/0")
    world.fs.now = [first]
    world.look_for(LIMIT_MS - LOOK_MS)
    world.fs.now = [first, second]
    world.look_for(LOOK_MS)
    world.fs.now = [second]
    assert world.look_for(SLOW_SYNC_MS) == ["a slow sync has ended", "a sync hangs or is slow"]
    assert not world.fatal


# --- What runs ---


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Syncs do not return before the fixture is called."""
    goes_on = threading.Event()

    def wait(_fd: int) -> None:
        assert goes_on.wait(PATIENCE_S)

    monkeypatch.setattr(os, "fdatasync", wait)
    monkeypatch.setattr(os, "fsync", wait)
    yield goes_on.set
    goes_on.set()


def test_all_syncs_that_run_are_known_and_no_other(
    tmp_path: Path, held: Callable[[], None]
) -> None:
    fs = WatchedFileSystem()
    threads = [
        threading.Thread(target=fs.sync, args=(0, "one")),
        threading.Thread(target=fs.sync, args=(0, "two")),
        threading.Thread(target=fs.sync_directory, args=(str(tmp_path),)),
    ]
    for thread in threads:
        thread.start()
    deadline = threading.Event()
    while len(fs.running()) < 3:
        assert not deadline.wait(0.001)
    assert {one.path for one in fs.running()} == {"one", "two", str(tmp_path)}
    assert len(set(fs.running())) == 3
    held()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert fs.running() == []


def test_a_sync_that_fails_does_not_run_any_more(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    with failpoints.armed("fs.sync=EIO;fs.sync_directory=EIO"):
        with pytest.raises(SyncFailedError):
            fs.sync(0, "one")
        with pytest.raises(SyncFailedError):
            fs.sync_directory(str(tmp_path))
    assert fs.running() == []


def test_the_thread_looks_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_watch, "LOOK_MS", 1)
    is_fatal = threading.Event()
    fs = Syncs()
    fs.now = [RunningSync("data/0")]
    watch = SyncWatch(fs, 20, lambda _error: is_fatal.set())
    watch.start()
    assert is_fatal.wait(PATIENCE_S)
    watch.stop()
    watch.stop()
    SyncWatch(fs, 20, lambda _error: None).stop()


# --- The end of a process ---


class EndedError(Exception):
    """Stands for the end of the process."""


def end(code: int) -> None:
    raise EndedError(code)


@pytest.mark.parametrize(
    ("error", "reason", "path"),
    [
        (SyncHangsError("data/0", 60_000), "because a sync hangs", "data/0"),
        (FileSystemError("write", "marks", 5), "because its disk failed", "marks"),
    ],
)
def test_a_disk_that_hangs_or_fails_ends_with_74_and_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, reason: str, path: str
) -> None:
    """Not as a broken invariant: an operator looks at the disk then, and reports no defect."""
    with pytest.raises(EndedError, match=str(EXIT_SYNC_FAILED)):
        FailStop(tmp_path, end)(error)  # type: ignore[arg-type]
    assert reason in capsys.readouterr().err
    (dump,) = tmp_path.glob("dump-*.txt")
    assert path in dump.read_text()


def test_the_end_does_not_wait_for_a_dump_that_hangs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is asked for the dump, or the disk it is written to, may be what hangs."""
    goes_on = threading.Event()
    fail_stop = FailStop(tmp_path, end, dump_timeout_s=0.05)  # type: ignore[arg-type]
    fail_stop.describe = lambda: {"waited": goes_on.wait(PATIENCE_S)}
    try:
        with pytest.raises(EndedError, match=str(EXIT_SYNC_FAILED)):
            fail_stop(SyncHangsError("data/0", 60_000))
    finally:
        goes_on.set()
    assert "No dump was written within 0.05 s" in capsys.readouterr().err
