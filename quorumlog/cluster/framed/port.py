"""The framed port of one node: where it is, the one connection to it, and what to do without.

Owns the choice between frames and gRPC for a node; must not know what is called. A node tells the
port in its route. With `auto` everything works without it: while a connection cannot be made, calls
go over gRPC, and the port is tried again after a while. A caller waits for a new connection only as
long as an answer takes that is near, so that two ports of a dead node cost no more than one.

Behind a proxy or an address translation the port may be that of another node, or of another
cluster. The first call on a connection is therefore `Route`: unless the node that advertised the
port answers, the connection is closed before any other call may use it.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Self

from quorumlog.cluster.framed.connection import UNARY_CALLS_MAX, NodeConnection
from quorumlog.cluster.framed.frames import AUTHENTICATE, ROUTE, FramedCall, has_room, message_of
from quorumlog.errors import (
    BusyError,
    PermissionDeniedError,
    QuorumlogError,
    TooLargeError,
    UnavailableError,
    UnimplementedError,
)
from quorumlog.pb import log_pb2, users_pb2
from quorumlog.tls_words import reason_of

CONNECT_TIMEOUT_S: Final = 1.0
GRACE_S: Final = 0.1
"""Time for which calls wait for a new connection before they take gRPC, from its first call on."""
RETRY_AFTER_S: Final = 30.0
"""Time after which a port that could not be reached is tried again."""
NOT_NOW_S: Final = 1.0
"""The same, for a node that is not ready yet or has too much to do."""
ADVERTISED_SIZE_MAX: Final = 300  # Characters of a host name and a port.

NO_FRAMED_PORT: Final = "client.no_framed_port"
OTHER_NODE: Final = "client.framed_port_of_other_node"

_log = logging.getLogger("quorumlog.framed")


class NodeIdentity(NamedTuple):
    """The node that answers, by its own route."""

    cluster_id: str
    node_id: int

    @classmethod
    def of(cls, route: log_pb2.RouteResponse) -> Self:
        return cls(route.cluster_id, route.node_id)

    def __str__(self) -> str:
        return f"node {self.node_id} of cluster {self.cluster_id[:100]!r}"


class FramedPort:
    """The framed port of the node at `address`. Belongs to one event loop."""

    def __init__(
        self,
        address: str,
        context: ssl.SSLContext | None,
        ask: Callable[[], Awaitable[log_pb2.RouteResponse]],
        *,
        is_required: bool,
        token: str = "",
    ) -> None:
        """`ask` returns the node's route. `is_required`: there is no gRPC instead. `token` is that
        of the user of all calls; empty: none."""
        self.connection: NodeConnection | None = None
        """The connection, while it is open."""
        self.other_node = ""
        """Why the port is not used: another node answered when it was last tried; empty: no."""
        self.is_required: Final = is_required
        self._address = address
        self._context = context
        self._ask = ask
        self._token = token
        self._advertised: str | None = None  # None: not told yet.
        self._node: NodeIdentity | None = None  # The node that advertised it.
        self._host, self._port = "", 0
        self._connecting: asyncio.Task[None] | None = None
        self._grace_end_s = 0.0
        self._retry_s = 0.0
        self._failure = ""
        self._refusal: PermissionDeniedError | None = None
        """Why the node did not take the token when it was last shown."""
        self._is_closed = False

    def learn(self, route: log_pb2.RouteResponse) -> None:
        """Take what the node advertises: host:port, :port for the host of its address, or none.

        If another node has come to the address, the connection to the former one is closed.
        """
        advertised, node = route.framed_address, NodeIdentity.of(route)
        if (advertised, node) == (self._advertised, self._node):
            return
        if node != self._node:
            self.close_silent()
        self._advertised, self._node = advertised, node
        self._retry_s, self.other_node = 0.0, ""
        host, _, port = advertised.rpartition(":")
        host = host or self._address.rpartition(":")[0]
        is_valid = len(advertised) <= ADVERTISED_SIZE_MAX and port.isascii() and port.isdecimal()
        if not is_valid or not 0 < int(port) < 65_536:
            self._host, self._port = "", 0
            return
        self._host, self._port = host.removeprefix("[").removesuffix("]"), int(port)

    def node_failed(self) -> None:
        """Learn that the node does not answer at all: its framed port is no worse than gRPC."""
        self._retry_s = 0.0

    def close_silent(self) -> None:
        """Close the connection, as to a node that the client counts as dead."""
        if self.connection is not None:
            self.connection.close()

    @property
    def is_ready(self) -> bool:
        """Whether there is an open connection."""
        return self.connection is not None and self.connection.is_open

    def begin(self) -> None:
        """Begin to connect, unless there is a connection or it is too early for another try."""
        if self.is_ready or self._connecting is not None or self._is_absent():
            return
        if self._is_closed:
            return  # A connection that is made now would never be closed.
        if time.monotonic() < self._retry_s and (self.other_node or not self.is_required):
            return
        self._grace_end_s = time.monotonic() + GRACE_S
        self._connecting = asyncio.create_task(self._connect())

    async def connected(self, timeout_s: float = CONNECT_TIMEOUT_S) -> NodeConnection | None:
        """Return the connection, made if need be; None: use gRPC.

        Raises UnimplementedError or UnavailableError, of no effect, if the port is required.
        """
        connection = self.connection
        if connection is not None and connection.is_open:
            return connection
        self.begin()
        if self._connecting is not None:
            rest_s = max(0.0, self._grace_end_s - time.monotonic())
            patience_s = max(0.0, timeout_s) if self.is_required else rest_s
            await asyncio.wait({self._connecting}, timeout=patience_s)
        if self.is_ready or not self.is_required:
            return self.connection if self.is_ready else None
        if self._refusal is not None:
            raise self._refusal
        if self._is_absent():
            raise UnimplementedError(
                f"{self._address} has no framed port; use transport 'auto' or 'grpc', or set "
                f"listen_framed of that node",
                code=NO_FRAMED_PORT,
            )
        if self.other_node:
            raise UnimplementedError(
                f"{self._address} has no framed port that can be used: {self.other_node}; correct "
                f"advertise_framed of that node, or use transport 'auto' or 'grpc'",
                code=OTHER_NODE,
            )
        raise UnavailableError(
            f"the framed port of {self._address} cannot be reached ({self._failure or 'closed'}); "
            f"is the node running, and does a firewall let it through?"
        )

    async def call(self, method: FramedCall, request: Any, timeout_s: float) -> Any:
        """Make a call and return its answer; None: use gRPC for it.

        Raises as `connected`, and for a required port TooLargeError or BusyError for a call that
        does not fit.
        """
        begun_s = time.monotonic()
        connection = await self.connected(timeout_s)
        if connection is None:
            return None
        message, body = message_of(method, request)
        if not has_room(message, body):
            text = f"a request of {len(message)} bytes and {len(body)} of records has no room in a"
            return self._instead(TooLargeError(f"{text} frame; send or ask for less at once"))
        if len(connection.calls) >= UNARY_CALLS_MAX:
            text = f"{len(connection.calls)} calls to {self._address} are under way"
            return self._instead(BusyError(f"{text}, the limit of a connection; slow down"))
        timeout_s -= time.monotonic() - begun_s
        return await connection.call(method, message, body, timeout_s)

    def _instead(self, error: QuorumlogError) -> None:
        """Let a call go over gRPC, or raise its error if there is no gRPC instead."""
        if self.is_required:
            raise error

    def _is_absent(self) -> bool:
        """Whether the node has told that it has no framed port, or named none that makes sense."""
        return self._advertised is not None and not self._host

    async def _connect(self) -> None:
        connection: NodeConnection | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if self._advertised is None:
                    self.learn(await self._ask())
                if self._is_absent():
                    return
                expected = self._advertised, self._node
                connection = NodeConnection(f"{self._host}:{self._port}", on_end=self._on_end)
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    self._host,
                    self._port,
                    ssl=self._context,
                    server_hostname=self._host if self._context is not None else None,
                )
                # An empty request: any node answers it, and says which one it is.
                node = NodeIdentity.of(await connection.call(ROUTE, b"", b"", CONNECT_TIMEOUT_S))
                if self._token and node == self._node:
                    shown = users_pb2.AuthenticateRequest(token=self._token).SerializeToString()
                    await connection.call(AUTHENTICATE, shown, b"", CONNECT_TIMEOUT_S)
            if expected != (self._advertised, self._node):
                return  # Another node got the address meanwhile: start again.
            if node != self._node:
                what = f"{self._node} advertises {connection.address}, where {node} answers"
                if what != self.other_node:  # Said once, however often it is tried again.
                    _log.warning("%s: its framed port is not used: %s", self._address, what)
                self.other_node = self._failure = what
                self._retry_s = time.monotonic() + RETRY_AFTER_S
                return
            self.connection, self._failure, self.other_node = connection, "", ""
            self._refusal = None
        except QuorumlogError as error:  # A question failed, over gRPC or over frames.
            if isinstance(error, PermissionDeniedError):
                self._refusal = error
                self._failed(error.message, NOT_NOW_S)
            elif connection is None:
                self._failure = error.message  # The node does not answer at all.
            elif isinstance(error, BusyError):
                self._failed(error.message, NOT_NOW_S)
            elif not connection.broke_protocol:  # That was noted.
                self._failed(error.message)
        except (OSError, ValueError) as error:  # Time-outs, TLS, and names that are none, too.
            reason = reason_of(error)
            self._failed(
                reason.what
                if reason
                else str(error) or f"no connection within {CONNECT_TIMEOUT_S:g} s"
            )
        except Exception as bug:  # noqa: BLE001 - as a rule no caller waits for it.
            _log.exception("%s: its framed port is not used", self._address)
            self._failed(f"{type(bug).__name__}: {bug}")
        finally:
            self._connecting = None
            if connection is not None and connection is not self.connection:
                connection.close()

    def _on_end(self, connection: NodeConnection) -> None:
        if self.connection is connection:
            self.connection = None
        if connection.broke_protocol:
            self._failed("it broke the protocol")

    def _failed(self, why: str, after_s: float = RETRY_AFTER_S) -> None:
        self._failure, self._retry_s = why, time.monotonic() + after_s
        if not self.is_required:
            _log.info("%s: its framed port is not used for %g s: %s", self._address, after_s, why)

    async def close(self) -> None:
        """Close the connection permanently, and end an attempt to make one."""
        self._is_closed = True
        task = self._connecting
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.close_silent()
