"""Fails a test module that leaves descriptors, threads or processes of this process behind.

Owns what counts as left behind; must not know any test. Hundreds of modules share one process, so
what each leaves open adds up until some other test has no descriptors left. The unit is the module:
its fixtures may keep things open from test to test. gRPC and event loops close beside us or with
the collector, so a difference is looked at again for a while before it is one.
"""

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Final

import grpc.aio
import psutil
import pytest
import uvloop

from store.files.spare_descriptors import SPARE
from tests.forks import FORK_SERVERS
from tests.patience import PATIENCE_S

_POLL_S: Final = 0.05
_POLLER: Final = "_poll_wrapper"
_SOCKETS: Final = "descriptor of socket:"
_SHARED: Final = frozenset({"shared_nodes"})
"""Fixtures of the whole session."""
_ALWAYS: Final = ("thread", "process")
_CACHED_FONTS: Final = "/matplotlib/mpl-data/fonts/"
"""matplotlib keeps a few fonts open for the life of the process."""


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds at one moment, by what it is and then by what names it."""

    by_kind: dict[str, dict[object, str]]
    poller_socket_count: int = 0
    """How many of the sockets are of gRPC's poller."""

    def beyond(self, before: "Held") -> list[str]:
        """Name new threads and processes, and what is new of descriptors of each kind of which
        there are more than before: libraries open some of their own anew."""
        lines = []
        for kind, now in self.by_kind.items():
            then = before.by_kind.get(kind, {})
            more_count = len(now) - len(then)
            if kind == _SOCKETS:
                more_count -= self.poller_socket_count - before.poller_socket_count
            if more_count > 0 or kind in _ALWAYS:
                lines += [f"{kind} {text}" for key, text in now.items() if key not in then]
        return sorted(lines)


def held() -> Held:
    """Look at what this process holds now.

    gRPC's poller, a thread and a pair of sockets, is there while anything of grpc.aio is, and stays
    when a loop is stopped before it fetched its last event. There is one in a process at most.
    """
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    pollers = [ident for ident, name in threads.items() if _POLLER in name]
    by_kind: dict[str, dict[object, str]] = {
        "thread": {ident: name for ident, name in threads.items() if ident not in pollers},
        "process": _processes(),
    }
    for fd, target in _descriptors().items():
        # Of sockets, pipes and the like the text has a number that says nothing.
        kind = target if target.startswith("/") else target.partition("[")[0]
        by_kind.setdefault(f"descriptor of {kind}", {})[fd, target] = f"({fd})"
    return Held(by_kind, 2 * len(pollers))


def _descriptors() -> dict[int, str]:
    targets = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # That of the listing itself.
            target = os.readlink(f"/proc/self/fd/{name}")
            if _CACHED_FONTS not in target and int(name) not in FORK_SERVERS.fds:
                targets[int(name)] = target
    return targets


def _processes() -> dict[object, str]:
    commands: dict[object, str] = {}
    for child in psutil.Process().children(recursive=True):
        if child.pid in FORK_SERVERS.pids:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            commands[child.pid, child.create_time()] = f"{child.pid}: {' '.join(child.cmdline())}"
    return commands


def left_since(before: Held, patience_s: float) -> list[str]:
    """Name what is still held beyond `before` when the patience is at an end."""
    deadline, never = time.monotonic() + patience_s, threading.Event()
    while left := held().beyond(before):
        gc.collect()
        if time.monotonic() >= deadline:
            return left
        never.wait(_POLL_S)
    return []


@pytest.fixture(scope="session")
def libraries_in_use() -> None:
    """Let gRPC, uvloop, multiprocessing and the store open what they keep for the life of the
    process."""
    SPARE.fill()
    resource_tracker.ensure_running()
    uvloop.run(_stop_a_server())


async def _stop_a_server() -> None:
    """Stopped before it was started, it leaves gRPC's own descriptors open for good."""
    await grpc.aio.server().stop(None)


@pytest.fixture(scope="module")
def shared_with_others(request: pytest.FixtureRequest) -> None:
    """Start what a module shares with others before the look: it stays behind on purpose."""
    module = request.node
    used = {
        name
        for item in request.session.items
        if item.getparent(pytest.Module) is module and isinstance(item, pytest.Function)
        for name in item.fixturenames
    }
    for name in _SHARED & used:
        request.getfixturevalue(name)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind(libraries_in_use: None, shared_with_others: None) -> Iterator[None]:
    """Compare what is held before and after each module."""
    before = held()
    yield
    gc.collect()  # What is not closed is told in the module that made it, and not in a later one.
    left = left_since(before, PATIENCE_S)
    if left:
        pytest.fail("left behind by tests of this module:\n  " + "\n  ".join(left), pytrace=False)
