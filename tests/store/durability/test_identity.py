"""Who uses a directory (S17), and how the run before it ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from store.durability.identity import DirectoryLock, LastRun, RunMarker, read_kernel_boot_id
from store.errors import FileSystemError, LockedError, StoreError, SyncFailedError
from store.files import failpoints
from store.files.file_system import FileSystem

FS = FileSystem()
UNIX_MS = 1_700_000_000_000

_HOLDER = """
import sys
from store.files.file_system import FileSystem
from store.durability.identity import DirectoryLock
lock = DirectoryLock(FileSystem(), sys.argv[1], now_unix_ms=lambda: 1_700_000_000_000)
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""

_BROKER = """
import fcntl, sys
file = open(sys.argv[1] + "/lock", "w")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
file.write("lock")
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


def hold_elsewhere(path: Path, program: str) -> "subprocess.Popen[str]":
    """Start a second process that holds the directory until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    holder = hold_elsewhere(tmp_path, _HOLDER)
    try:
        lock = DirectoryLock(FS, str(tmp_path))
        with pytest.raises(LockedError) as caught:
            lock.acquire()
        assert caught.value.holder == f"process {holder.pid} since 2023-11-14T22:13:20Z"
        assert str(tmp_path / "lock") in str(caught.value)
    finally:
        kill(holder)
    lock.acquire()
    assert (tmp_path / "lock").read_text().split()[0] == str(os.getpid())
    lock.release()


def test_a_rocketmq_broker_is_refused_and_refuses(tmp_path: Path) -> None:
    """It locks byte 0 through fcntl, as Java's FileChannel does."""
    holder = hold_elsewhere(tmp_path, _BROKER)
    try:
        with pytest.raises(LockedError, match="RocketMQ broker"):
            DirectoryLock(FS, str(tmp_path)).acquire()
    finally:
        kill(holder)
    lock = DirectoryLock(FS, str(tmp_path))
    lock.acquire()
    broker = subprocess.run(
        [sys.executable, "-c", _BROKER, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert broker.returncode != 0
    assert "BlockingIOError" in broker.stderr
    lock.release()


def test_a_second_opening_in_one_process_is_refused(tmp_path: Path) -> None:
    """Closing the second descriptor must not free the first one, as plain fcntl locks would."""
    lock = DirectoryLock(FS, str(tmp_path), now_unix_ms=lambda: UNIX_MS)
    lock.acquire()
    for _ in range(2):
        with pytest.raises(LockedError, match=f"process {os.getpid()} since 2023-11-14"):
            DirectoryLock(FS, str(tmp_path)).acquire()
    lock.release()
    lock.release()
    other = DirectoryLock(FS, str(tmp_path))
    other.acquire()
    other.release()
    assert (tmp_path / "lock").exists()


def test_failures_of_the_lock_are_named_and_leave_it_free(tmp_path: Path) -> None:
    lock = DirectoryLock(FS, str(tmp_path))
    for failpoint in ("identity.lock=ENOLCK", "fs.write=EIO", "fs.open=EACCES"):
        with failpoints.armed(failpoint), pytest.raises(FileSystemError):
            lock.acquire()
    with failpoints.armed("identity.lock=EAGAIN"), pytest.raises(LockedError):
        lock.acquire()
    lock.acquire()
    lock.release()


# --- abort and boot id ---


def marker(path: Path, boot_id: str = "boot-1") -> RunMarker:
    return RunMarker(FS, str(path), read_boot_id=lambda: boot_id)


def test_a_directory_that_was_never_used_is_clean(tmp_path: Path) -> None:
    last = marker(tmp_path).last_run()
    assert last == LastRun(was_clean=True, same_boot=False, was_ever_opened=False)
    assert not last.page_cache_lost


@pytest.mark.parametrize(
    ("closed", "boot_id", "expected", "lost"),
    [
        (True, "boot-1", LastRun(was_clean=True, same_boot=True), False),
        (True, "boot-2", LastRun(was_clean=True, same_boot=False), False),
        (False, "boot-1", LastRun(was_clean=False, same_boot=True), False),
        (False, "boot-2", LastRun(was_clean=False, same_boot=False), True),
    ],
)
def test_the_next_start_knows_how_the_last_run_ended(
    tmp_path: Path, closed: bool, boot_id: str, expected: LastRun, lost: bool
) -> None:
    first = marker(tmp_path)
    first.mark_running()
    assert (tmp_path / "abort").read_text() == f"{os.getpid()}\n"
    if closed:
        first.mark_closed()
        assert not (tmp_path / "abort").exists()
    last = marker(tmp_path, boot_id).last_run()
    assert (last, last.page_cache_lost) == (expected, lost)


def test_a_crash_during_the_recovery_does_not_hide_the_lost_page_cache(tmp_path: Path) -> None:
    marker(tmp_path, "boot-1").mark_running()
    recovering = marker(tmp_path, "boot-2")
    assert recovering.last_run().page_cache_lost
    # Killed here, before mark_running; started again in the same boot.
    assert marker(tmp_path, "boot-2").last_run().page_cache_lost


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("name", ["fs.open", "fs.write", "fs.sync", "fs.rename"])
def test_a_start_that_fails_half_way_never_looks_like_a_clean_run_of_this_boot(
    tmp_path: Path, name: str, nth: int
) -> None:
    marker(tmp_path, "boot-1").mark_running()
    failed = False
    with failpoints.armed(f"{name}=EIO@{nth}"):
        try:
            marker(tmp_path, "boot-2").mark_running()
        except StoreError:
            failed = True
    assert failed == (nth <= 3 if name == "fs.open" else nth <= 2)
    assert not marker(tmp_path, "boot-2").last_run().was_clean
    marker(tmp_path, "boot-2").mark_running()
    assert marker(tmp_path, "boot-2").last_run().same_boot


def test_names_are_durable_on_return(tmp_path: Path) -> None:
    run = marker(tmp_path)
    with failpoints.census() as calls:
        run.mark_running()
    assert (calls["fs.sync"], calls["fs.sync_directory"]) == (2, 1)
    with failpoints.census() as calls:
        run.mark_closed()
    assert (calls["fs.unlink"], calls["fs.sync_directory"]) == (1, 1)
    run.mark_running()
    with failpoints.armed("fs.sync_directory=EIO"), pytest.raises(SyncFailedError):
        run.mark_closed()


def test_the_kernel_names_its_boot() -> None:
    assert len(read_kernel_boot_id()) == 36
    assert read_kernel_boot_id() == read_kernel_boot_id()
