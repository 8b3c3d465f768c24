"""Nodes that measure themselves between two signals: both halves of the talk with them.

Owns the signals and the socket over which a node answers. Handlers run on the thread of the node's
event loop, between two turns of it. Must not know what is measured.
"""

import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from deploy.local import LocalCluster
from node.__main__ import run

BEGIN: Final = signal.SIGUSR1
END: Final = signal.SIGUSR2
_SOCKET_VARIABLE: Final = "BENCH_SIGNAL_SOCKET"
_ANSWER_TIMEOUT_S: Final = 60.0

Ask = Callable[[int, signal.Signals], dict[str, Any]]
"""Signals a node and returns its answer. Raises MeasuredNodeError."""


class MeasuredNodeError(Exception):
    """A node cannot be measured; the text says why and what to do."""


def run_node(begin: Callable[[], None], end: Callable[[], dict[str, Any]]) -> None:
    """Run the node of `python -m node` until it gets a signal to stop."""
    path = os.environ[_SOCKET_VARIABLE]

    def answer(document: dict[str, Any]) -> None:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            link.sendall(json.dumps({"pid": os.getpid(), **document}).encode())

    def on_begin(_number: int, _frame: Any) -> None:
        answer({})
        begin()

    def on_end(_number: int, _frame: Any) -> None:
        answer(end())

    signal.signal(BEGIN, on_begin)
    signal.signal(END, on_end)
    run()


@contextmanager
def signalled(nodes: LocalCluster, module: str) -> Iterator[Ask]:
    """Run nodes by a module that calls `run_node`, until they are ready and to the block's end."""
    # Not below the data: the path of such a socket has at most 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as links,
        socket.socket(socket.AF_UNIX) as server,
    ):
        server.bind(f"{links}/socket")
        server.listen()
        server.settimeout(_ANSWER_TIMEOUT_S)

        def ask(node_id: int, number: signal.Signals) -> dict[str, Any]:
            process, log = nodes.process(node_id), nodes.log_path(node_id)
            if process is None or not process.send(number):
                raise MeasuredNodeError(f"node {node_id} has ended; read {log}")
            try:
                link, _ = server.accept()
            except TimeoutError as error:
                what = f"node {node_id} did not answer within {_ANSWER_TIMEOUT_S:g} s"
                raise MeasuredNodeError(f"{what}; read {log}") from error
            with link, link.makefile("rb") as file:
                answer: dict[str, Any] = json.load(file)
            assert answer.pop("pid") == process.pid, f"not node {node_id} answers"
            return answer

        try:
            nodes.start(environment={_SOCKET_VARIABLE: f"{links}/socket"}, module=module)
            nodes.wait_ready()
            yield ask
        finally:
            nodes.stop()
