"""Accepting: connections of strangers, until each has proved that it is a peer or is closed.

Owns the socket that a link listens on and the limits on unfinished handshakes; must not know what a
connection carries. Bytes before a good handshake are untrusted: a stranger costs 4 KiB, has limited
time, and the number of strangers at a time is limited. Both links accept with it: the server of
asyncio does not name a socket that it has accepted and not yet handed over, so such a socket
outlived the stop of a link.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from node.peers.dialler import Handshakes
from node.peers.handshake import CloseCode
from node.peers.stream import Stream
from node.peers.types import LinkLimits
from node.runtime.background import BackgroundTasks
from node.runtime.busiest import of_busiest
from node.runtime.logs.rate_limited_log import RateLimitedLog

_BACKLOG: Final = 1024
_PAUSE_S: Final = 0.1  # Like asyncio's own server when descriptors run out.
_Connection = TypeVar("_Connection", bound=Stream)


class Acceptor(Handshakes[_Connection]):
    """Accepts the connections of one link."""

    def __init__(
        self,
        limits: LinkLimits,
        tasks: BackgroundTasks,
        make: Callable[[], _Connection],
        challenge: Callable[[_Connection], None],
        end: Callable[[_Connection, CloseCode, str], None],
        forget: Callable[[_Connection], None],
        log: RateLimitedLog,
        *,
        tls: ssl.SSLContext | None,
    ) -> None:
        """`make` returns a new connection, and `challenge` asks it who it is."""
        super().__init__(limits, end, forget, tls=tls)
        self._tasks, self._log, self._make, self._challenge = tasks, log, make, challenge
        self.listener: socket.socket | None = None
        """The socket that the link listens on; None before its start."""
        self._task: asyncio.Task[None] | None = None
        self.strangers: dict[asyncio.Task[None], tuple[_Connection, str]] = {}
        """Unfinished handshakes with their addresses, oldest first."""
        self.accepted_count = self.failure_count = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port (a free one for 0). Raises OSError."""
        assert self.listener is None, "the link was started already"
        listener = await _listen(host, port)
        listener.setblocking(False)
        self.listener = listener
        self._task = self._tasks.run(self._accept(listener))
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Accept no more. The tasks of the link, which own the unfinished handshakes, stop next."""
        if self._task is not None:
            self._task.cancel()
            # A task that never ran would not close the socket that it was given.
            await asyncio.gather(self._task, asyncio.sleep(0), return_exceptions=True)
        if self.listener is not None:
            self.listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                # Not `sock_accept`: if cancelled in the turn in which a connection arrives, it
                # drops that connection.
                accepted, address = listener.accept()
            except BlockingIOError:
                await self._wait_readable(listener)
                continue
            except OSError as error:
                self.failure_count += 1
                self._log.warn("accept failed", str(error))
                if error.errno != errno.ECONNABORTED:
                    await asyncio.sleep(_PAUSE_S)
                continue
            self.accepted_count += 1
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self.strangers) >= self._limits.handshake_count_max:
                task = of_busiest(self.strangers, lambda task: self.strangers[task][1])
                oldest, _ = self.strangers.pop(task)
                self._end(oldest, CloseCode.DISPLACED, "too many unfinished handshakes")
                task.cancel()
            connection = self._make()
            task = self._tasks.run(self._receive(accepted, connection))
            self.strangers[task] = connection, address[0]
            await asyncio.sleep(0)  # Starts the task; others run while many connections arrive.

    async def _wait_readable(self, listener: socket.socket) -> None:
        readable = asyncio.Event()
        self._loop.add_reader(listener, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(listener)

    async def _receive(self, accepted: socket.socket, connection: _Connection) -> None:
        """Take a connection through its handshake, or close it."""
        connecting = self._loop.connect_accepted_socket(lambda: connection, accepted, ssl=self.tls)
        try:
            await self.shake_hands(
                connection, connecting, CloseCode.TLS, "the node stops", self._challenge
            )
        finally:
            task = asyncio.current_task()
            assert task is not None, "runs in a task"
            self.strangers.pop(task, None)


async def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises OSError."""
    infos = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = infos[0]
    return socket.create_server((str(address[0]), int(address[1])), family=family, backlog=_BACKLOG)
