"""The end of this program: clients that it left open close, and producers warn of what is lost.

Owns the moment: all threads that the program waits for have ended. `atexit` has it. A worker that
was forked runs no `atexit` before Python 3.13; its library runs finalizers, which `multiprocessing`
and its copy `multiprocess` do before they wait for the worker's threads. If there are any, one more
waits for them. The steps may be made twice, and do nothing the second time.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Final

from quorumlog.cluster.forks import forks

_WAITS: Final = {"multiprocessing": True, "multiprocess": True, "billiard": False}
"""By the library of workers: whether a worker waits for its threads."""

_steps: list[Callable[[], None]] = []
_watched: set[tuple[str, int]] = set()
"""Libraries with the id of the process: a fork has those of its parent."""


def at_end(step: Callable[[], None]) -> Callable[[], None]:
    """Have a step made as the program ends, before those that were named earlier."""
    _steps.append(step)
    return step


def watch() -> None:
    """Note that this process has a client, so that its end is not missed."""
    for name, waits in _WAITS.items():
        library: Any = sys.modules.get(f"{name}.util")
        if library is None or (name, os.getpid()) in _watched:
            continue
        _watched.add((name, os.getpid()))
        if not library.is_exiting() or threading.current_thread() is threading.main_thread():
            library.Finalize(None, _end_after_threads if waits else _end, exitpriority=-1_000)
        elif waits:  # The finalizers were run before this thread, which makes its first client.
            _End(name="quorumlog-end").start()


def _end_after_threads() -> None:
    if _others():
        _End(name="quorumlog-end").start()
    else:
        _end()


def _others() -> list[threading.Thread]:
    here, main = threading.current_thread(), threading.main_thread()
    # By name: a main thread that was forked off a daemon thread counts as such.
    return [one for one in threading.enumerate() if not one.daemon and one not in (here, main)]


class _End(threading.Thread):
    """The thread that waits for all others. Python waits for it, and threads that wait for all
    others do not: both would wait for ever."""

    @property
    def daemon(self) -> bool:  # type: ignore[override]
        return self.is_alive()  # Python looks at it as the thread starts.

    def run(self) -> None:
        threading.main_thread().join()
        while others := _others():
            others[0].join()
        _end()


@atexit.register
def _end() -> None:
    # Ctrl-C ends the wait of a step, and nothing is left to be interrupted after the last one.
    with suppress(KeyboardInterrupt), ExitStack() as ending:
        for step in [] if forks.parent else _steps:  # An error of one does not keep the others out.
            ending.callback(step)
