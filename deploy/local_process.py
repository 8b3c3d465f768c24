"""Processes of a local cluster: identity, starting one detached, ending one; ports, private files.

Owns the rule that a process is known by its id and the moment it started: an id alone may belong to
another process by now, which must never get our signal. Must not know what a node is.
"""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Final

import psutil

from quorumlog.local_cluster import is_running, started_at

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""Of the files of a local cluster: settings, state and log lines are for their user alone."""
_POLL_S: Final = 0.01
_PORT_LO: Final = 20_000
_PORT_HI: Final = 32_000
"""Below the ports that systems give to outgoing connections (Linux: 32768 on): the port of a node
that is down for a while stays free."""
_PORT_TRIES_MAX: Final = 1_000
_GIVEN_COUNT_MAX: Final = 6_000
"""Ports that are remembered as given out: half of all, so that a free one is found soon."""


Poll = Callable[[], int | None]
"""Reaps a process that this one started; returns its exit code, None as long as it runs."""

_children: Final[dict[tuple[int, str], Poll]] = {}
"""Processes started by this one. Kept for ever: they outlive their starter on purpose."""


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """A process that was started here or by an earlier command."""

    pid: int
    started: str
    """Start time, in a form that no other process of this number has."""
    is_strange: bool = False
    """Whether no command of a local cluster started it."""

    @property
    def is_child(self) -> bool:
        """Whether it is a child of this process, which must then reap it."""
        return (self.pid, self.started) in _children

    @property
    def is_alive(self) -> bool:
        """Whether this very process runs, paused or not."""
        if self.is_child:
            return self.exit_code is None
        return is_running(self.pid, self.started)

    @property
    def is_paused(self) -> bool:
        """Whether a signal has paused the process."""
        try:
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None if it runs or is no child of this process."""
        return _children[self.pid, self.started]() if self.is_child else None

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return whether the process was there. Never reaches another process."""
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_end(self, timeout_ms: int) -> bool:
        """Wait until the process has ended; return whether it did in time."""
        return _wait(lambda: not self.is_alive, timeout_ms)

    def wait_paused(self, timeout_ms: int) -> bool:
        """Wait until a SIGSTOP has reached it; return whether it did in time."""
        return _wait(lambda: self.is_paused or not self.is_alive, timeout_ms)


def _wait(is_so: Callable[[], bool], timeout_ms: int) -> bool:
    deadline = time.monotonic() + timeout_ms / 1000
    while not is_so():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def start_module(
    module: str,
    arguments: Sequence[str],
    *,
    output: int,
    environment: Mapping[str, str],
    launcher: Sequence[str] = (),
) -> tuple[int, Poll]:
    """Start the process; for `spawn`. The project's tests put another way in its place."""
    child = subprocess.Popen(
        # -P: a folder of that name where the command runs must not be mistaken for ours.
        [*launcher, sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=dict(environment),
        start_new_session=True,
    )
    return child.pid, child.poll


def spawn(
    module: str,
    arguments: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    launcher: Sequence[str] = (),
) -> NodeProcess:
    """Start `python -m module` in a session of its own, so that it outlives this process.

    `launcher` are words before the command; what they name must become it, and not start it."""
    with open(log, "ab", opener=open_private) as output:
        pid, poll = start_module(
            module,
            arguments,
            output=output.fileno(),
            environment=environment,
            launcher=launcher,
        )
    process = NodeProcess(pid, started_at(pid))
    _children[pid, process.started] = poll
    return process


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a port can be listened on now."""
    return not listen_error(port, host)


def listen_error(port: int, host: str = "127.0.0.1") -> int:
    """Return the errno for which a port cannot be listened on now; 0: it can."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def free_ports(count: int, used: Iterable[int] = (), *, beside: Sequence[int] = ()) -> list[int]:
    """Return ports that are free now. Raises OSError when there are too few.

    The ports at the distances `beside` above each of them are free, too, and the caller's as well.
    Other callers of the same user get different ports for a long time: the ports of a node that is
    not started yet, or is down for a while, look free.
    """
    random, ports = SystemRandom(), list[int]()
    with contextlib.ExitStack() as held:
        given = held.enter_context(_given_out())
        taken = {*used, *given}
        for _ in range(_PORT_TRIES_MAX):
            if len(ports) == count:
                given += [port + above for port in ports for above in (0, *beside)]
                return ports
            port = random.randrange(_PORT_LO, _PORT_HI - max(beside, default=0))
            together = {port, *(port + above for above in beside)}
            if together & taken:
                continue
            taken |= together
            with contextlib.suppress(OSError):
                for one in together:
                    held.enter_context(socket.create_server(("127.0.0.1", one)))
                ports.append(port)
    raise OSError(f"only {len(ports)} free ports were found, {count} are needed")


@contextlib.contextmanager
def _given_out() -> Iterator[list[int]]:
    """Hold the list of ports that were given out last, oldest first; ports added to it are kept.

    The file outlives the clusters, since others begin meanwhile. It has at most 36 kB.
    Without a usable file the list is empty, and only chance keeps two callers apart.
    """
    given = list[int]()
    with contextlib.ExitStack() as held:
        try:
            path = Path(tempfile.gettempdir()) / f"quorumlog-ports-{os.getuid()}"
            file = held.enter_context(
                open(path, "a+", encoding="utf-8", opener=open_in_shared_directory)
            )
            if os.fstat(file.fileno()).st_uid != os.getuid():
                raise PermissionError(f"{path} belongs to another user")
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            given += [int(port) for port in file.read().split() if port.isdecimal()]
        except OSError:
            yield given
            return
        yield given
        file.truncate(0)
        file.write(" ".join(map(str, given[-_GIVEN_COUNT_MAX:])))


def make_directory(path: Path) -> None:
    """Make a directory and its parents; an existing one, of an earlier version, is made private."""
    make_missing(path)
    path.chmod(DIRECTORY_MODE)


def make_missing(path: Path) -> None:
    """Make a directory and its parents; existing ones stay as they are."""
    missing = []
    at = path
    while not at.is_dir():
        missing.append(at)
        at = at.parent
    for directory in reversed(missing):
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a private file, replacing its content."""
    with open(path, "w", encoding="utf-8", opener=open_private) as file:
        file.write(text)


def open_private(path: str, flags: int) -> int:
    """Open a private file; the `opener` of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def open_in_shared_directory(path: str, flags: int) -> int:
    """Open a file where others can put files; a link or a pipe is not followed."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
