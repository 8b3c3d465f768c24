"""The framed port of a node: its addresses, TLS, accepting, its start and its stop.

Owns the listening sockets. Must not know what a frame says. The server accepts connections itself,
so that unfinished handshakes of TLS are counted and limited, too.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Collection
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from node.config.types import Address
from node.errors.common import BusyError
from node.framed.calls import CallConversation, FramedCalls
from node.framed.connection import (
    SHARED_PORT,
    Conversations,
    FramedConnection,
    FramedConnections,
)
from node.framed.frames import Reason
from node.framed.header import KIND
from node.runtime.accounts import Kind
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.services.server import PortTakenError
from quorumlog.tls_words import reason_of

SETTING: Final = "listen_framed"
_BACKLOG: Final = 1_024
_ACCEPT_COUNT_MAX: Final = 64
"""Connections accepted in one turn; then others have theirs."""
_ACCEPT_PAUSE_S: Final = 0.1  # As asyncio's own server when descriptors run out.
_POLL_S: Final = 0.005
_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""Answers leave at once under every loop: asyncio's own sets that for sockets it made itself only.
A client whose machine is gone is noticed within a minute, also while its calls wait."""
_TLS_HANDSHAKE: Final = b"\x16"
"""First byte of a client with TLS. As length of a frame it would be above any limit."""
PLAIN_SIZE_BYTES: Final = 4 << 10
_TLS_SIZE_BYTES: Final = 72 << 10
"""Memory of an idle connection, with what OpenSSL keeps for one."""
_log: Final = logging.getLogger(__name__)


class _Listener(NamedTuple):
    port_number: int
    tls: ssl.SSLContext | None
    is_permissive: bool
    kinds: Collection[int] | None


class FramedServer:
    """Serves frames at one address or several. Build it on the running loop.

    Call `bind` first: clients have to be told the port. From `open` on the port answers; what it
    says until `calls.open` is NotReadyError.
    """

    def __init__(
        self,
        calls: FramedCalls,
        monotonic_s: Callable[[], float] | None = None,
        *,
        others: Conversations = MappingProxyType({}),
    ) -> None:
        """`others` makes the conversations of other protocols, by kind of header. `monotonic_s` is
        for tests, which then look at the connections themselves."""
        self.calls: Final = calls
        self.connections: Final = FramedConnections(
            calls.limits,
            calls.accounts,
            {KIND: partial(CallConversation, calls), **others},
            monotonic_s,
        )
        self.accept_failure_count = 0
        self._loop = asyncio.get_running_loop()
        self._rate_limited = RateLimitedLog(_log)
        self._listeners: dict[socket.socket, _Listener] = {}
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._accept_later: asyncio.TimerHandle | None = None

    async def bind(
        self,
        address: Address,
        tls: ssl.SSLContext | None = None,
        *,
        setting: str = SETTING,
        port_number: int = SHARED_PORT,
        is_permissive: bool = False,
        has_others: bool = True,
    ) -> int:
        """Take an address, one of several; return the port. Raises PortTakenError, which names
        `setting`. Connections that it accepts have its `port_number`; `is_permissive` serves
        clients without TLS, too, and `has_others` the other protocols."""
        try:
            infos = await self._loop.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, at = infos[0]
            listener = socket.create_server(
                (str(at[0]), int(at[1])), family=family, backlog=_BACKLOG
            )
        except OSError as error:
            raise PortTakenError(setting, str(address), error.strerror or str(error)) from error
        listener.setblocking(False)
        self._listeners[listener] = _Listener(
            port_number, tls, is_permissive, None if has_others else (KIND,)
        )
        return int(listener.getsockname()[1])

    def renew(self, tls: ssl.SSLContext) -> None:
        """Use another context for the connections to come, at the addresses that have one."""
        for listener, how in self._listeners.items():
            if how.tls is not None:
                self._listeners[listener] = how._replace(tls=tls)

    def open(self) -> None:
        """Answer at the bound addresses."""
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    async def stop(self, grace_ms: int) -> None:
        """Take no connection and no call; end calls under way after `grace_ms` at the latest. A
        repeated call only shortens the grace."""
        self._close_listeners()
        for task in list(self._handshakes):
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        self.calls.stop()
        deadline = self._loop.time() + grace_ms / 1000
        while self.connections.call_count and self._loop.time() < deadline:  # noqa: ASYNC110 - once in a life.
            await asyncio.sleep(_POLL_S)
        left = self.connections.all
        for connection in left:
            connection.close()
        await asyncio.gather(*(asyncio.shield(connection.lost) for connection in left))

    def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, {}
        if self._accept_later is not None:
            self._accept_later.cancel()
            self._accept_later = None
        for listener in listeners:
            self._loop.remove_reader(listener)
            listener.close()

    # --- Accepting ---

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPT_COUNT_MAX):
            if listener not in self._listeners:
                return
            try:
                accepted, remote = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._on_accept_failed(error)
                return
            how = self._listeners[listener]
            account = self.connections.accounts.open(str(remote[0]))
            try:
                account.take(
                    Kind.CONNECTIONS, PLAIN_SIZE_BYTES if how.tls is None else _TLS_SIZE_BYTES
                )
            except BusyError as error:
                account.close()
                self.connections.note(Reason.NO_ROOM, str(remote[0]), str(error))
                accepted.close()
                continue
            connection = FramedConnection(self.connections, account, how.port_number, how.kinds)
            self.connections.on_accepted(connection)
            work = self._shake_hands(connection, accepted, str(remote[0]), how)
            task = self._loop.create_task(work)
            self._handshakes[task] = None
            task.add_done_callback(partial(self._on_shaken, connection, accepted))

    def _on_accept_failed(self, error: OSError) -> None:
        self.accept_failure_count += 1
        self._rate_limited.warn("accept failed", str(error))
        if error.errno != errno.ECONNABORTED and self._accept_later is None:
            # Without a descriptor the listening sockets would wake the loop without a pause.
            for listener in self._listeners:
                self._loop.remove_reader(listener)
            self._accept_later = self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again)

    def _accept_again(self) -> None:
        self._accept_later = None
        if self._listeners:
            self.open()

    async def _shake_hands(
        self, connection: FramedConnection, accepted: socket.socket, host: str, how: _Listener
    ) -> None:
        """Give an accepted socket to its connection, with TLS if the port has it."""
        connections = self.connections
        seconds = connections.limits.handshake_ms_max / 1000
        try:
            accepted.setblocking(False)
            for level, option, value in _OPTIONS:
                accepted.setsockopt(level, option, value)
            tls = how.tls
            if how.is_permissive and tls is not None:
                async with asyncio.timeout(seconds):
                    tls = tls if await self._begins_with_tls(accepted) else None
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=seconds if tls is not None else None,
            )
        except OSError as error:  # Errors of TLS are OSErrors, and so is a time-out.
            detail = str(reason_of(error) or error) or "it was not finished in time"
            connections.note(Reason.HANDSHAKE, host, detail)
            connection.abandon()
            accepted.close()

    async def _begins_with_tls(self, accepted: socket.socket) -> bool:
        """Whether the first byte of a client is one of TLS. It stays unread."""
        readable = self._loop.create_future()
        self._loop.add_reader(accepted, _complete, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE

    def _on_shaken(
        self, connection: FramedConnection, accepted: socket.socket, task: asyncio.Task[None]
    ) -> None:
        self._handshakes.pop(task, None)
        if task.cancelled():
            connection.abandon()
            accepted.close()
            return
        error = task.exception()
        if error is not None:
            self._loop.call_exception_handler(
                {"message": "accepting a framed connection failed", "exception": error}
            )


def _complete(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)
