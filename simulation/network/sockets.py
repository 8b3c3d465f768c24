"""Sockets of simulated machines, and the part of the module `socket` that our code uses.

Owns listening sockets and their backlog. A connected socket is one end of a stream; its bytes
belong to `simulation.network.stream`.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from typing import Any, ClassVar, Final

from simulation.kernel.modules import SimulatedModule
from simulation.kernel.process import Process, current_process
from simulation.network.links import ANY
from simulation.network.stream import End

_WITHOUT_EFFECT: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),  # Bytes leave at once.
    # Probes have the period and the patience of the stream; see `PROBE_NS`.
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
)
"""Options of sockets, with their levels, that change nothing here."""


class SimulatedSocket:
    """One socket of a process: it listens, or is one end of a stream."""

    def __init__(self, process: Process, address: tuple[str, int]) -> None:
        self.process, self.address = process, address
        self.end: End | None = None
        self.backlog: deque[SimulatedSocket] = deque()
        self.backlog_count_max = 0
        self.is_closed = False

    @property
    def is_readable(self) -> bool:
        """Whether `accept` has a connection."""
        return bool(self.backlog) and not self.is_closed

    def listen(self, backlog: int) -> None:
        """Take connections from now on, until the process ends or closes it."""
        self.backlog_count_max = backlog
        listeners = self.process.machine.network.listeners
        listeners[self.address] = self
        self.process.on_end.append(self.close)

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        if not self.backlog:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        accepted = self.backlog.popleft()
        assert accepted.end is not None
        return accepted, accepted.end.remote

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        listeners = self.process.machine.network.listeners
        if listeners.get(self.address) is self:
            del listeners[self.address]
        for one in self.backlog:
            one.close()
        self.backlog.clear()
        if self.end is not None:
            self.end.abort()

    def setblocking(self, flag: bool) -> None:
        assert not flag, "only non-blocking sockets are simulated"

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            if value and self.end is not None:
                self.end.keep_alive()
        elif (level, option) not in _WITHOUT_EFFECT:
            raise NotImplementedError(f"the option {option} of level {level} is not simulated")

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def getpeername(self) -> tuple[str, int]:
        if self.end is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self.end.remote

    def fileno(self) -> int:
        return -1


class Sockets(SimulatedModule):
    """The module `socket`, for the processes of one world. Names are those of the module."""

    real: ClassVar = socket
    real_names = frozenset(
        # Errors, and the type for isinstance.
        ("error", "gaierror", "timeout", "socket", "AddressFamily", "SocketKind")
    )

    def create_server(
        self, address: tuple[str, int], *, family: int = socket.AF_INET, backlog: int = 100
    ) -> SimulatedSocket:
        if family != socket.AF_INET:
            raise NotImplementedError(f"the family {family} is not simulated")
        process = current_process(self._hub)
        machine = process.machine
        host, port = address
        if host == ANY:
            host = machine.address
        if host != machine.address and not host.startswith("127."):
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        at = (host, port or machine.network.free_port())
        if at in machine.network.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        made = SimulatedSocket(process, at)
        made.listen(backlog)
        return made

    def getaddrinfo(
        self,
        host: Any,
        port: Any,
        family: int = 0,
        type: int = 0,  # noqa: A002 - the module's name.
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Resolve a name as the network of the world does. Raises socket.gaierror."""
        network = current_process(self._hub).machine.network
        return network.infos(host, port, family, type, proto, flags)  # type: ignore[no-any-return]

    def gethostname(self) -> str:
        return current_process(self._hub).machine.name
