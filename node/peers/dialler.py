"""Dialling: one connection from this node to each peer, for as long as there is that peer.

Owns the attempts, the pauses between them, the tasks of a link and its record of each peer; must
not know what a connection carries. The link makes the connections and ends them.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Collection, Coroutine, Sequence
from random import Random
from typing import Final, Generic, TypeVar

from node.peers.handshake import CloseCode
from node.peers.stream import LinkTraffic, Stream
from node.peers.types import LinkLimits, PeerStats
from quorumlog.tls_words import reason_of
from raft.messages import NodeId

_NOT_IN_TIME: Final = "the handshake was not finished in time; is TLS on at one side only?"
_Connection = TypeVar("_Connection", bound=Stream)


class PeerRecord:
    """One other node, as both links know it."""

    __slots__ = (
        "address",
        "dialler",
        "dropped_unconnected_count",
        "forwarding_token",
        "is_tried",
        "last_trouble",
        "node",
        "traffic",
    )

    def __init__(self, node: NodeId, address: tuple[str, int]) -> None:
        self.node, self.address = node, address
        self.dialler: asyncio.Task[None] | None = None
        """Keeps one connection to the peer, from the start of the link on."""
        self.traffic = LinkTraffic()
        self.dropped_unconnected_count = 0
        self.last_trouble = ""
        self.forwarding_token = b""
        """What its framed port takes as proof of a node, as it said last; empty: it never did."""
        self.is_tried = False
        """Whether the peer was met or could not be reached, since the start of the link."""

    @property
    def connections(self) -> Sequence[Stream]:
        """Usable connections, oldest first."""
        raise NotImplementedError

    @property
    def queued_size_bytes(self) -> int:
        """Bytes that wait to be sent to the peer."""
        return sum(each.queued_size_bytes for each in self.connections)

    def stats(self) -> PeerStats:
        """Return a snapshot of the counters."""
        host, port = self.address
        return PeerStats(
            node=self.node,
            host=host,
            port=port,
            is_connected=bool(self.connections),
            connection_count=len(self.connections),
            queued_size_bytes=self.queued_size_bytes,
            sent_size_bytes=self.traffic.sent_size_bytes,
            received_size_bytes=self.traffic.received_size_bytes,
            dropped_unconnected_count=self.dropped_unconnected_count,
            dropped_full_count=self.traffic.dropped_full_count,
            last_trouble=self.last_trouble,
        )


class Handshakes(Generic[_Connection]):
    """Takes the connections of one link through their handshakes, or closes them."""

    def __init__(
        self,
        limits: LinkLimits,
        end: Callable[[_Connection, CloseCode, str], None],
        forget: Callable[[_Connection], None],
        *,
        tls: ssl.SSLContext | None,
    ) -> None:
        """`end` closes a connection for a reason, and `forget` drops one that never had a
        socket."""
        self._limits, self._end, self._forget, self.tls = limits, end, forget, tls
        self._loop = asyncio.get_running_loop()

    async def shake_hands(
        self,
        connection: _Connection,
        connecting: Coroutine[None, None, object],
        failure: CloseCode,
        why_cancelled: str,
        challenge: Callable[[_Connection], None] = lambda _: None,
    ) -> bool:
        """Connect, with TLS if wanted, and wait for the end of the handshake; return whether it was
        good. `failure` is the code of an error that is none of TLS."""
        try:
            async with asyncio.timeout(self._limits.handshake_ms_max / 1000):
                try:
                    await connecting
                except BaseException:
                    self._forget(connection)
                    connection.abandon()
                    raise
                challenge(connection)
                return await connection.opened
        except TimeoutError:
            self._end(connection, CloseCode.TIMEOUT, _NOT_IN_TIME)
        except (OSError, UnicodeError) as error:  # UnicodeError for an invalid host name.
            code = CloseCode.TLS if isinstance(error, ssl.SSLError) else failure
            self._end(connection, code, str(reason_of(error) or error))
        except asyncio.CancelledError:
            self._end(connection, CloseCode.STOPPING, why_cancelled)
            raise
        return False


class Dialler(Handshakes[_Connection]):
    """Dials the peers of one link."""

    def __init__(
        self,
        limits: LinkLimits,
        make: Callable[[NodeId], _Connection],
        end: Callable[[_Connection, CloseCode, str], None],
        forget: Callable[[_Connection], None],
        *,
        tls: ssl.SSLContext | None,
        random: Random,
        settled_ms: int = 0,
    ) -> None:
        """`make` returns a new connection to a node. A good connection that lived `settled_ms`
        makes the pauses short again."""
        super().__init__(limits, end, forget, tls=tls)
        self._make, self._random, self._settled_ms = make, random, settled_ms
        self._tried = asyncio.Event()

    async def dial(self, peer: PeerRecord) -> None:
        """Keep one connection to a peer, for ever."""
        limits = self._limits
        pause_ms = limits.reconnect_ms_min
        while True:
            began = self._loop.time()
            was_good = await self._dial_once(peer)
            self.note_tried(peer)
            lived_ms = (self._loop.time() - began) * 1000
            if was_good and lived_ms >= self._settled_ms:
                pause_ms = limits.reconnect_ms_min
            await asyncio.sleep(pause_ms * self._random.uniform(0.5, 1.0) / 1000)
            pause_ms = min(2 * pause_ms, limits.reconnect_ms_max)

    async def _dial_once(self, peer: PeerRecord) -> bool:
        """Connect, and wait until that connection is over; return whether the handshake was
        good."""
        host, port = peer.address
        tls = self.tls
        connection = self._make(peer.node)
        connecting = self._loop.create_connection(
            lambda: connection, host, port, ssl=tls, server_hostname=host if tls else None
        )
        was_good = await self.shake_hands(
            connection, connecting, CloseCode.UNREACHABLE, "no longer dialled"
        )
        if was_good:
            await asyncio.shield(connection.closed)  # Cancelling this task leaves it whole.
        return was_good

    def note_tried(self, peer: PeerRecord) -> None:
        """Note that the peer was met or could not be reached."""
        peer.is_tried = True
        self._tried.set()

    async def wait_tried(self, peers: Collection[PeerRecord]) -> None:
        """Wait until each peer was met or could not be reached, at most `first_meeting_ms_max`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.first_meeting_ms_max / 1000):
                while not all(peer.is_tried for peer in peers):
                    self._tried.clear()
                    await self._tried.wait()
