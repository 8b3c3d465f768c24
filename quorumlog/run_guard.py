"""Ends the processes that a run of tests or of fault injection started, when the run is gone.

A run that is killed closes nothing, and its nodes live in sessions of their own. So the run marks
its environment, which all its processes inherit, and starts a guard: a process that waits until the
run has ended, in whatever way, and then kills every process with the mark. The thread that started
a process, its depth and its language do not matter; the signal that Linux sends at the death of a
parent (PR_SET_PDEATHSIG) follows one thread and one generation.

Owns the mark and the guard; must not know the processes that it ends. A cluster that a user starts
has no mark; one of `quorumlog.testing` has its own. Works on Linux only; elsewhere it has no
effect. The guard runs this file alone, with the standard library, so that it starts fast:
`python -I -S run_guard.py PID MARK [DIRECTORY]` watches its parent, PID, and removes the directory
at the end.
"""

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from typing import Final

VARIABLE: Final = "_QUORUMLOG_RUN"
"""Begins otherwise than settings do: local nodes are started without those."""
_SCAN_EVERY_S: Final = 0.1
_QUIET_SCAN_COUNT: Final = 5
"""Count of scans that must find no process: between fork and exec the mark is not visible yet."""
_TIMEOUT_S: Final = 60.0
"""Limit of the killing: a process that hangs in the kernel cannot be ended."""
_guards: Final[dict[int, "subprocess.Popen[bytes]"]] = {}
"""Guards by the guarded process: a fork of it is another one. Kept, since they are not awaited."""


def guard_this_process() -> None:
    """Have all later processes of this one end with it; a second call has no effect."""
    run = os.getpid()
    if sys.platform != "linux" or run in _guards:
        return
    mark = new_mark()
    _guards[run] = start_guard(mark)
    os.environ[VARIABLE] = mark


def new_mark() -> str:
    """Return a mark that no other run has: the value of VARIABLE for its processes."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


def start_guard(mark: str, *directory: str) -> "subprocess.Popen[bytes]":
    """Have all processes with the mark end with this one, and a directory removed; on Linux only.

    The caller kills the guard once nothing is left to end."""
    # Without the mark of an outer run: its guard would end this one too early.
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark, *directory],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=environment,
    )


def _wait_for_end(run: int) -> None:
    try:
        end = os.pidfd_open(run)
    except ProcessLookupError:
        return
    try:
        # Otherwise the run has ended before, and the number may be another process's.
        if os.getppid() == run:
            select.select([end], [], [])
    finally:
        os.close(end)


def _end_all(mark: str) -> None:
    entry = f"{VARIABLE}={mark}".encode()
    deadline, quiet_count = time.monotonic() + _TIMEOUT_S, 0
    while quiet_count < _QUIET_SCAN_COUNT and time.monotonic() < deadline:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        ended = [pid for pid in pids if pid != os.getpid() and _end_if_marked(pid, entry)]
        quiet_count = 0 if ended else quiet_count + 1
        time.sleep(_SCAN_EVERY_S)


def _end_if_marked(pid: int, entry: bytes) -> bool:
    """Kill one process if it has the entry in its environment; return whether it has."""
    try:
        # Held while its environment is read, so that no later process of this number is hit.
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            is_marked = entry in file.read().split(b"\0")
        if is_marked:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        return is_marked
    except OSError:  # The process has ended, or is another user's.
        return False
    finally:
        os.close(process)


def _main(run: int, mark: str, *directories: str) -> None:
    # Signals to the run's group or terminal must not reach the guard.
    os.setsid()
    _wait_for_end(run)
    _end_all(mark)
    for directory in directories:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), *sys.argv[2:])
