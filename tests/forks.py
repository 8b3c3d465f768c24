"""Starts nodes of tests as forks of a process that has their modules loaded: `tests.fork_server`.

Importing takes four fifths of the work of a node's start, and the tests start more than a
thousand of them. A fork is a process as any other: its own memory, session, signals and exit code.
What it shares with its server is the order of its sets of texts, so there are several
servers, and neighbouring nodes are of different ones. What a process must have from its first
instruction on (variables of Python and of the loader, other modules than `node`) is started by
name, as outside of tests; so are all nodes of a test with `nodes_started_by_name`.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

import pytest

import deploy.local_process
from deploy.local_process import Poll, start_module
from quorumlog.cluster.grpc_engine import OLDER_ENGINE, VARIABLE
from tests.fork_server import REQUEST_SIZE_BYTES_MAX, Start

SERVER_COUNT: Final = 3
"""One for each node of the usual cluster."""
_MODULE: Final = "node"
_END_TIMEOUT_S: Final = 10
_EARLY: Final = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "GRPC_", "OPENSSL_", "LANG", "LC_", "TZ")
"""Beginnings of variables that have their effect before a server could fork."""


class ForkServer:
    """One server process, and the questions to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.early: Final = _early(os.environ)
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process: Final = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> Any:
        """Send a request and return the answer."""
        with self._lock:
            socket.send_fds(self.requests, [json.dumps(request).encode()], fds)
            answer = self.requests.recv(REQUEST_SIZE_BYTES_MAX)
        assert answer, f"the fork server ended with {self.process.poll()}"
        return json.loads(answer)

    def stop(self) -> None:
        """Let it end. Its forks live on."""
        self.requests.close()
        try:
            self.process.wait(_END_TIMEOUT_S)
        finally:
            self.process.kill()


class Fork:
    """A process that a server has forked."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._pid: Final = pid
        self._server: Final = server
        self._lock: Final = threading.Lock()
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None as long as it runs."""
        with self._lock:
            if self._exit_code is None:
                self._exit_code = self._server.ask({"pid": self._pid})
            return self._exit_code


class ForkServers:
    """The servers of this process, made when they are first needed."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._owner_pid = os.getpid()
        self._servers: list[ForkServer] = []
        self._turns = count()

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        output: int,
        environment: Mapping[str, str],
        launcher: Sequence[str] = (),
    ) -> tuple[int, Poll]:
        """Start a node as a fork if it can be one, else as `deploy.local_process` does it."""

        def by_name() -> tuple[int, Poll]:
            return start_module(
                module, arguments, output=output, environment=environment, launcher=launcher
            )

        if module != _MODULE or launcher or self._owner_pid != os.getpid():
            return by_name()
        server = self._next()
        if _early(environment) != server.early:
            return by_name()
        start = Start(module, list(arguments), dict(environment), os.getcwd())
        pid = server.ask(start._asdict(), [output])
        return pid, Fork(server, pid).poll

    def _next(self) -> ForkServer:
        with self._lock:
            turn = next(self._turns) % SERVER_COUNT
            if turn == len(self._servers):
                self._servers.append(ForkServer())
            return self._servers[turn]

    @property
    def pids(self) -> set[int]:
        """The servers themselves: for looks at what a test left behind."""
        return {server.process.pid for server in self._servers}

    @property
    def fds(self) -> set[int]:
        """The sockets to them."""
        return {server.requests.fileno() for server in self._servers}

    def stop(self) -> None:
        """End all servers."""
        for server in self._servers:
            server.stop()
        self._servers.clear()


FORK_SERVERS: Final = ForkServers()


def fork_nodes() -> None:
    """Let all nodes that this process starts from now on be forks, where the system can do it."""
    if sys.platform == "linux":
        _start_with(FORK_SERVERS.start)


@contextlib.contextmanager
def started_by_name() -> Iterator[None]:
    """Let nodes be started by name for the length of a `with`."""
    before = deploy.local_process.start_module
    _start_with(start_module)
    try:
        yield
    finally:
        _start_with(before)


@pytest.fixture
def nodes_started_by_name() -> Iterator[None]:
    """Start the nodes of this test as users do."""
    with started_by_name():
        yield


def _start_with(start: Any) -> None:
    deploy.local_process.start_module = start


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    chosen = {VARIABLE: OLDER_ENGINE}  # By each node, and by tests of commands for their process.
    return chosen | {n: value for n, value in environment.items() if n.startswith(_EARLY)}
