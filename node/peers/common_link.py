"""A link of either way to replicate: all connections of one node to the others.

Owns the connections, from the order of their handshake frames (the bytes are
`node.peers.handshake`'s) to the counted end of each; must not know what they carry afterwards.
Every node dials every other one for as long as the link runs. A node that began with an old copy
of its disk does not pass. A Welcome, whose sender is proven, tells it so, and not the Goodbye
alone: a node that learns that it has lost its memory gives up its vote, and must not do so on a
stranger's word.
"""

import asyncio
import logging
import ssl
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

from node.peers import handshake
from node.peers.acceptor import Acceptor
from node.peers.dialler import Dialler, PeerRecord
from node.peers.faults import LinkFaults
from node.peers.frames import FrameKind
from node.peers.handshake import (
    CODES_SAID,
    CloseCode,
    HandshakeRefusedError,
    LinkIdentity,
    PeerInfo,
)
from node.peers.lives_codec import LivesFormatError
from node.peers.security.tls import TlsFiles, client_context, server_context
from node.peers.stream import Side, Stream
from node.peers.types import LinkLimits, LinkStats, PeerLives
from node.runtime.background import BackgroundTasks
from node.runtime.logs.rate_limited_log import RateLimitedLog
from raft.messages import NO_NODE, Index, NodeId

_Connection = TypeVar("_Connection", bound=Stream)
_Peer = TypeVar("_Peer", bound=PeerRecord)


class CommonLink(Generic[_Connection, _Peer]):
    """All connections of one node. Belongs to the running event loop."""

    name: ClassVar[str]

    def __init__(
        self,
        identity: LinkIdentity,
        last_index: Callable[[], Index],
        lives: PeerLives,
        limits: LinkLimits,
        random: Random,
        *,
        tls: TlsFiles | None,
        settled_ms: int = 0,
    ) -> None:
        """`last_index` is what a handshake says of the own log. A good connection that lived
        `settled_ms` makes the pauses between attempts short again."""
        self.identity, self.limits = identity, limits
        self._last_index, self._lives = last_index, lives
        self._tasks = BackgroundTasks(f"a task of the {self.name} failed")
        self._random = random
        self._faults = LinkFaults.from_environment(identity.node_id, random)
        self._loop = asyncio.get_running_loop()
        self._log = RateLimitedLog(
            logging.getLogger(type(self).__module__),
            interval_ms=limits.log_interval_ms,
            monotonic_s=self._loop.time,
        )
        self._peers: dict[NodeId, _Peer] = {}
        self._connections: dict[_Connection, None] = {}
        """Every connection whose socket may be open, oldest first."""
        self._dialler = Dialler(
            limits,
            lambda node: self._make(Side.DIALLED, node),
            self._end,
            self._drop,
            tls=client_context(tls) if tls is not None else None,
            random=random,
            settled_ms=settled_ms,
        )
        self._acceptor = Acceptor(
            limits,
            self._tasks,
            lambda: self._make(Side.ACCEPTED, NO_NODE),
            self._challenge,
            self._end,
            self._drop,
            self._log,
            tls=server_context(tls) if tls is not None else None,
        )
        self._closed_counts: dict[str, int] = {}
        self._is_stopping = False

    # --- What differs ---

    @abstractmethod
    def _make(self, side: Side, to: NodeId) -> _Connection:
        """Return a new connection."""

    @abstractmethod
    def _open(self, connection: _Connection, info: PeerInfo) -> None:
        """Use a connection whose handshake was good. Raises HandshakeRefusedError."""

    @abstractmethod
    def _forget(self, peer: _Peer, connection: _Connection) -> None:
        """Use a connection no more, and tell the handler."""

    def _says_goodbye(self, connection: _Connection, code: CloseCode) -> bool:
        return code in CODES_SAID and not connection.closed.done()

    # --- Public interface ---

    async def start(self, host: str, port: int) -> int:
        """Listen, and dial the others; return the port (a free one for 0). Raises OSError."""
        listening_port = await self._acceptor.start(host, port)
        for peer in self._peers.values():
            peer.dialler = self._tasks.run(self._dialler.dial(peer))
        return listening_port

    def renew(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        """Use other contexts for the connections to come."""
        self._acceptor.tls, self._dialler.tls = server, client

    def renew_secrets(self, secrets: Sequence[bytes]) -> None:
        """Prove this node with the first of these secrets in the handshakes to come, and accept all
        of them."""
        first, other = (*secrets, b"")[:2]
        self.identity = replace(self.identity, secret=first, other_secret=other)

    async def wait_tried(self) -> None:
        """Wait until each peer was met or could not be reached, at most `first_meeting_ms_max`."""
        await self._dialler.wait_tried(self._peers.values())

    def is_connected(self, node: NodeId) -> bool:
        """Whether there is a connection to `node`."""
        peer = self._peers.get(node)
        return peer is not None and bool(peer.connections)

    def forwarding_token(self, node: NodeId) -> bytes:
        """Return what proves this node to the framed port of `node`; empty: it has not said."""
        peer = self._peers.get(node)
        return peer.forwarding_token if peer is not None else b""

    def stats(self) -> LinkStats:
        """Return a snapshot of the counters. Not for the hot path."""
        return LinkStats(
            tuple(peer.stats() for peer in self._peers.values()),
            len(self._acceptor.strangers),
            self._acceptor.accepted_count,
            self._acceptor.failure_count,
            dict(self._closed_counts),
        )

    async def stop(self) -> None:
        """Say Goodbye where a peer reads one, and close all sockets. The handler is not called any
        more."""
        self._is_stopping = True
        if self._faults is not None:
            self._faults.stop()
        await self._acceptor.stop()
        await self._tasks.end()
        while left := list(self._connections):
            for connection in left:
                self._end(connection, CloseCode.STOPPING, "the node stops")
            await asyncio.gather(*(asyncio.shield(connection.closed) for connection in left))

    # --- StreamOwner ---

    def on_made(self, connection: _Connection) -> None:
        self._connections[connection] = None

    def on_handshake_frame(self, connection: _Connection, kind: FrameKind, header: bytes) -> None:
        if kind is FrameKind.GOODBYE:
            code, text = handshake.read_goodbye(header)
            if connection.side is Side.ACCEPTED and connection.info is None:
                self._end(connection, CloseCode.GARBAGE, "a Goodbye instead of a Hello")
            else:
                self._end(connection, CloseCode.REFUSED, f"the peer said {code}: {text}")
            return
        try:
            info = self._greet(connection, kind, header)
            if info is not None:
                self._open(connection, info)
        except HandshakeRefusedError as error:
            self._end(connection, error.code, error.detail)

    def on_bad_bytes(
        self, connection: _Connection, detail: str, code: CloseCode | None = None
    ) -> None:
        is_known = connection.info is not None
        usual = CloseCode.PROTOCOL_ERROR if is_known else CloseCode.GARBAGE
        self._end(connection, code or usual, detail)

    def on_lost(self, connection: _Connection) -> None:
        self._drop(connection)
        self._end(connection, CloseCode.LOST, "closed by the other side or the network")

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    # --- The greeting ---

    def _challenge(self, connection: _Connection) -> None:
        connection.asked = self._lives.remembered()
        nonce, header = handshake.challenge()
        connection.nonce = nonce
        connection.send_handshake(FrameKind.CHALLENGE, header)

    def _greet(self, connection: _Connection, kind: FrameKind, header: bytes) -> PeerInfo | None:
        """Take a frame of the handshake; return the peer once it has passed. Raises
        HandshakeRefusedError."""
        side = connection.side
        if side is Side.ACCEPTED and kind is FrameKind.HELLO:
            return self._answer_hello(connection, header)
        if side is Side.DIALLED and kind is FrameKind.WELCOME:
            return self._take_welcome(connection, header)
        if side is Side.ACCEPTED or kind is not FrameKind.CHALLENGE:
            detail = f"{kind.name} does not belong here"
            raise HandshakeRefusedError(CloseCode.PROTOCOL_ERROR, detail)
        self._answer_challenge(connection, header)
        return None

    def _answer_challenge(self, connection: _Connection, header: bytes) -> None:
        if connection.nonce is not None:
            raise HandshakeRefusedError(CloseCode.PROTOCOL_ERROR, "a second Challenge")
        connection.asked = self._lives.remembered()
        connection.nonce, answer = handshake.hello(
            self.identity,
            header,
            to=connection.to,
            last_index=self._last_index(),
            lives=self._lives.tell(connection.to),
        )
        connection.send_handshake(FrameKind.HELLO, answer)

    def _answer_hello(self, connection: _Connection, header: bytes) -> PeerInfo:
        if connection.info is not None or not isinstance(connection.nonce, bytes):
            raise HandshakeRefusedError(CloseCode.PROTOCOL_ERROR, "a second Hello")
        nonce, info = handshake.check_hello(
            self.identity, header, challenge_nonce=connection.nonce, peers=self._peers
        )
        lost = self._judge(connection, info)
        connection.send_handshake(
            FrameKind.WELCOME,
            handshake.welcome(
                self.identity,
                to=info.node_id,
                nonce=nonce,
                last_index=self._last_index(),
                lives=self._lives.tell(info.node_id),
            ),
        )
        if lost:
            raise HandshakeRefusedError(CloseCode.OLD_COPY, lost)
        return info

    def _take_welcome(self, connection: _Connection, header: bytes) -> PeerInfo:
        if connection.info is not None or not isinstance(connection.nonce, int):
            raise HandshakeRefusedError(CloseCode.PROTOCOL_ERROR, "a Welcome without a Hello")
        info = handshake.check_welcome(
            self.identity, header, to=connection.to, nonce=connection.nonce
        )
        lost = self._judge(connection, info)
        if lost:
            raise HandshakeRefusedError(CloseCode.OLD_COPY, lost)
        return info

    def _judge(self, connection: _Connection, info: PeerInfo) -> str:
        try:
            return self._lives.judge(info.node_id, info.lives, connection.asked)
        except LivesFormatError as error:
            raise HandshakeRefusedError(CloseCode.GARBAGE, str(error)) from error

    # --- The end of connections ---

    def _end(self, connection: _Connection, code: CloseCode, detail: str) -> None:
        """Close a connection for a reason: tell the peer, count and log it. Once for each
        connection."""
        if connection.close_code is not None:
            return
        connection.close(code, detail, goodbye_too=self._says_goodbye(connection, code))
        self._closed_counts[code] = self._closed_counts.get(code, 0) + 1
        info = connection.info
        node = info.node_id if info is not None else connection.to
        peer = self._peers.get(node)
        if peer is not None:
            peer.last_trouble = f"{code}: {detail}"
        if not self._is_stopping and code is not CloseCode.STOPPING:
            whose = "to a peer" if peer is not None else "of a stranger"
            whom = f"node {node}" if node else connection.remote
            self._log.warn(f"connection {whose} ended, {code}", f"{whom}: {detail}")
        if info is not None and peer is not None:
            self._forget(peer, connection)


Link = CommonLink[Any, Any]
"""The link of a node, as far as both ways to replicate are equal."""
