"""The end of this program: clients that it left open close, and producers warn of what is lost.

Owns the moment: all threads that the program waits for have ended. `atexit` has it, but a worker of
multiprocessing that was forked never runs `atexit`, and runs its finalizers before its threads have
ended. So in a worker a thread waits for the others.
"""

import atexit
import multiprocessing
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack

from quorumlog.cluster.forks import forks

_steps: list[Callable[[], None]] = []
_waiting: dict[int, threading.Thread] = {}
"""By the id of the worker: a fork has that of its parent."""


def at_end(step: Callable[[], None]) -> Callable[[], None]:
    """Have a step made as the program ends, before those that were named earlier."""
    _steps.append(step)
    return step


def watch() -> None:
    """Note that this process has a client, so that its end is not missed."""
    if multiprocessing.parent_process() is not None:
        thread = threading.Thread(target=_wait, name="quorumlog-end", daemon=False)
        if _waiting.setdefault(os.getpid(), thread) is thread:
            thread.start()


def _wait() -> None:
    here, main = threading.current_thread(), threading.main_thread()
    main.join()  # By name: one that was forked off a daemon thread counts as such.
    while others := [t for t in threading.enumerate() if not t.daemon and t not in (here, main)]:
        others[0].join()
    _end()


@atexit.register
def _end() -> None:
    with ExitStack() as ending:  # An error of one step does not keep the others from being made.
        for step in [] if forks.parent else _steps:  # In a fork all is the parent's.
            ending.callback(step)
