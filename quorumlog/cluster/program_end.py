"""The end of this program: clients that it left open close, and producers warn of what is lost.

Owns the moment: all threads that the program waits for have ended. `atexit` has it. A worker that
was forked runs no `atexit` before Python 3.13; its library runs finalizers, which `multiprocessing`
and its copy `multiprocess` do before they wait for the worker's threads. If there are any, one more
waits for them. The steps may be made twice, and do nothing the second time.

`atexit` takes no handler once its handlers run, so `import quorumlog` loads this module. A client
that would be left open where nothing is to come is refused: only a block closes it.
"""

import atexit
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Final

from quorumlog.cluster.forks import forks
from quorumlog.errors import ClosedError

_WAITS: Final = {"multiprocessing": True, "multiprocess": True, "billiard": False}
"""By the library of workers: whether a worker waits for its threads."""

_STARTERS: Final = "runpy.", "importlib.", "_frozen_importlib."
"""Modules that run a program, unless its own code is the first that runs."""

_log: Final = logging.getLogger("quorumlog")
_steps: list[Callable[[], None]] = []
_watched: set[str] = set()
"""Libraries that make the steps, too. A fork that inherits one cannot have clients."""
_over = threading.Event()
"""The steps were made, or are not going to be."""


def at_end(step: Callable[[], None]) -> Callable[[], None]:
    """Have a step made as the program ends, before those that were named earlier."""
    _steps.append(step)
    return step


def watch() -> None:
    """Note that this process has a client, so that its end is not missed."""
    for name, waits in _WAITS.items():
        library: Any = sys.modules.get(f"{name}.util")
        if library is None or name in _watched:
            continue
        _watched.add(name)
        if not library.is_exiting():
            library.Finalize(None, _end_after_threads if waits else _end, exitpriority=-1_000)
        elif not _is_at_exit():  # A finalizer of a worker, or a thread after them, is the first.
            if waits:
                _End(name="quorumlog-end").start()
            else:
                _over.set()


def check() -> None:
    """Raise ClosedError where nothing closes a client any more that the program leaves open."""
    if _over.is_set():
        raise ClosedError(
            "the program is ending, and would not close this client; use 'with', or import "
            "quorumlog before what makes it is registered with atexit or the like"
        )


def _is_at_exit() -> bool:
    """Whether handlers of `atexit` run, or did: the main thread has ended, and waits for no other
    thread any more."""
    return not threading.main_thread().is_alive() and "threading._shutdown" not in _main_calls()


def _is_loaded_at_exit() -> bool:
    """Whether this module is loaded by a handler of `atexit`, as far as that is certain."""
    names = list(sys.modules)
    if names.index("threading") < names.index("quorumlog"):
        return _is_at_exit()
    # `threading` was not told of an end that began before it was loaded: no program runs then, or
    # one that is part of another one.
    outermost = ".".join(_main_calls()[-1:])
    if outermost and not outermost.startswith(_STARTERS) and outermost[-1] != ">":
        _log.warning(
            "quorumlog is imported by %s; if the program is ending, clients that it leaves open "
            "are not closed: use 'with', or import quorumlog before",
            outermost,
        )
    return False


def _main_calls() -> list[str]:
    """Return the functions that the main thread is in, from the innermost one on."""
    frame, calls = sys._current_frames().get(threading.main_thread().ident or 0), []
    while frame is not None:
        calls.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")
        frame = frame.f_back
    return calls


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
    _over.set()
    # Ctrl-C ends the wait of a step, and nothing is left to be interrupted after the last one.
    with suppress(KeyboardInterrupt), ExitStack() as ending:
        for step in [] if forks.parent else _steps:  # An error of one does not keep the others out.
            ending.callback(step)


if _is_loaded_at_exit():
    _over.set()
