"""Forks of a process that has made a client: none of them can have one.

Owns what tells such a fork: the kernel wipes a page of it. Python's hook misses forks that C code
makes, and two processes may have the same id, each in its container. gRPC does not survive a fork,
the threads and loops of clients are those of the parent, and its connections are shared: a call in
the child would wait for ever, or write between the frames of the parent. So each client asks here
before it waits for anything. gRPC's own handlers of forks start its threads in the child, where
they crash one in ten or wait for ever, even if the child leaves gRPC alone; `quorumlog` turns them
off unless grpc was there first.
"""

import logging
import mmap
import os
import sys
from contextlib import suppress
from typing import Final

from quorumlog.errors import ClosedError

CODE = "client.forked"
HANDLERS_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
_WIPE_ON_FORK: Final = 18
"""Linux's MADV_WIPEONFORK, which `mmap` has no name for."""
_log = logging.getLogger("quorumlog")


class Forks:
    """What this process knows of its forks.

    `own[0]` is 1 in a process that has made a client, and 0 in its forks: objects of clients look
    at it for each message, without a call."""

    def __init__(self) -> None:
        self.own = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if sys.platform == "linux":
            with suppress(OSError):  # One older than 4.14: Python's hook tells of Python's forks.
                self.own.madvise(_WIPE_ON_FORK)
        self._owner, self._has_warned = 0, False
        self.is_known = False
        """Whether Python's hook has told of a fork: for what cannot afford a look at the page."""
        os.register_at_fork(before=self._on_fork, after_in_child=self._on_forked)

    @property
    def parent(self) -> int:
        """0 in a process that may have clients, else the id, as it was there, of the process whose
        clients this fork has copies of."""
        return 0 if self.own[0] else self._owner

    def use(self) -> None:
        """Note that this process has a client from now on. Raises ClosedError as `check`."""
        self.check()
        self.own[0], self._owner = 1, os.getpid()

    def check(self) -> None:
        """Raise ClosedError (`client.forked`) in a fork of a process that had made a client."""
        if self.parent:
            raise ClosedError(
                f"process {os.getpid()} is a fork of process {self.parent}, which had made a "
                f"client before: neither that client nor another one works here; fork before the "
                f"first client is made, or start the process without a fork (multiprocessing: "
                f"the start method 'spawn')",
                code=CODE,
            )

    def _on_fork(self) -> None:
        is_safe = os.environ.get(HANDLERS_VARIABLE) == "0"
        if self.own[0] and not is_safe and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "this process forks while gRPC's handlers of forks are on, with which a fork may "
                "crash or hang; import quorumlog before grpc, or set %s=0",
                HANDLERS_VARIABLE,
            )

    def _on_forked(self) -> None:
        self.own[0], self.is_known = 0, bool(self._owner)


forks = Forks()
