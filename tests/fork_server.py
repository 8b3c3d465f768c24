"""A process that has imported what a node imports, and starts nodes by forking itself.

Owns the modules that are loaded ahead, the requests, and what a fork takes over from a request so
that it is like a process that was started by name. Must not know what a node is, and must never
start a thread, a loop or gRPC: a fork has only the thread that forked. `tests.forks` asks it.

`python -m tests.fork_server FD` answers requests on a socket of packets, one after the other, and
ends when nobody holds the other end.
"""

import gc
import importlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

REQUEST_SIZE_BYTES_MAX: Final = 1 << 17
"""Arguments and environment of one process."""
MODULES: Final = (
    "node.lifecycle",
    "qlog.server.serve",
    "uvicorn.lifespan.off",
    "uvloop",
)


class Start(NamedTuple):
    """What a process is started with, as with `python -P -m module arguments`."""

    module: str
    arguments: Sequence[str]
    environment: dict[str, str]
    directory: str


def main() -> None:
    """Serve requests; in a fork, run the module that was asked for."""
    from quorumlog.cluster.grpc_engine import choose_engine

    choose_engine()  # Before anything imports grpc, as the command line does it.
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # Pages of what is loaded stay shared with the forks.
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        start = _serve(requests)
    if start is not None:
        sys.argv[1:] = start.arguments
        runpy.run_module(start.module, run_name="__main__", alter_sys=True)


def _serve(requests: socket.socket) -> Start | None:
    """Answer until nobody asks any more (None), or until this is a fork (what it has to run)."""
    while True:
        data, fds, _, _ = socket.recv_fds(requests, REQUEST_SIZE_BYTES_MAX, 1)
        if not data:
            return None
        request = json.loads(data)
        if "pid" in request:
            answer = _status_of(request["pid"])
        else:
            start = Start(**request)
            answer = os.fork()
            if answer == 0:
                _become(start, *fds)
                return start
            os.close(*fds)
        requests.send(json.dumps(answer).encode())


def _status_of(pid: int) -> int | None:
    """Return the exit code of a fork and forget it; None as long as it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(start: Start, output: int) -> None:
    """Take over session, output, environment and directory."""
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"a fork of one of several threads: {threads}"
    os.setsid()
    for fd in (1, 2):
        os.dup2(output, fd)
    os.close(output)
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.directory)


if __name__ == "__main__":
    main()
