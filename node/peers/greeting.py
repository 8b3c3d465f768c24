"""The greeting of two nodes: the order of the handshake frames of one connection.

Owns that order and the decision which peer may pass; the bytes are `node.peers.handshake`'s,
connections and peers are the link's. A node that began with an old copy of its disk does not pass.
A Welcome, whose sender is proven, tells it so, and not the Goodbye alone: a node that learns that
it has lost its memory gives up its vote, and must not do so on a stranger's word.
"""

from collections.abc import Callable, Collection
from typing import Final

from node.peers import handshake
from node.peers.frames import FrameKind
from node.peers.handshake import CloseCode, HandshakeRefusedError, LinkIdentity, PeerInfo
from node.peers.lives_codec import LivesFormatError
from node.peers.stream import Side, Stream
from node.peers.types import PeerLives
from raft.messages import Index, NodeId


class Greeter:
    """Runs the handshakes of one node."""

    def __init__(
        self, identity: LinkIdentity, last_index: Callable[[], Index], lives: PeerLives
    ) -> None:
        """`last_index` is what a handshake says of the own log."""
        self._identity: Final = identity
        self._last_index: Final = last_index
        self._lives: Final = lives

    def challenge(self, connection: Stream) -> None:
        """Ask the dialler for its identity."""
        connection.asked = self._lives.remembered()
        nonce, header = handshake.challenge()
        connection.nonce = nonce
        connection.send_handshake(FrameKind.CHALLENGE, header)

    def take(
        self, connection: Stream, kind: FrameKind, header: bytes, peers: Collection[NodeId]
    ) -> PeerInfo | None:
        """Take a frame of the handshake; return the peer once it has passed. Raises
        HandshakeRefusedError."""
        side = connection.side
        if side is Side.ACCEPTED and kind is FrameKind.HELLO:
            return self._answer_hello(connection, header, peers)
        if side is Side.DIALLED and kind is FrameKind.WELCOME:
            return self._take_welcome(connection, header)
        if side is Side.ACCEPTED or kind is not FrameKind.CHALLENGE:
            detail = f"{kind.name} does not belong here"
            raise HandshakeRefusedError(CloseCode.PROTOCOL_ERROR, detail)
        self._answer_challenge(connection, header)
        return None

    def _answer_challenge(self, connection: Stream, header: bytes) -> None:
        """Answer a Challenge with this node's identity. Raises HandshakeRefusedError."""
        if connection.nonce is not None:
            raise HandshakeRefusedError(CloseCode.PROTOCOL_ERROR, "a second Challenge")
        connection.asked = self._lives.remembered()
        connection.nonce, answer = handshake.hello(
            self._identity,
            header,
            to=connection.to,
            last_index=self._last_index(),
            lives=self._lives.tell(connection.to),
        )
        connection.send_handshake(FrameKind.HELLO, answer)

    def _answer_hello(
        self, connection: Stream, header: bytes, peers: Collection[NodeId]
    ) -> PeerInfo:
        """Return the dialler and welcome it. Raises HandshakeRefusedError."""
        if connection.info is not None or not isinstance(connection.nonce, bytes):
            raise HandshakeRefusedError(CloseCode.PROTOCOL_ERROR, "a second Hello")
        nonce, info = handshake.check_hello(
            self._identity, header, challenge_nonce=connection.nonce, peers=peers
        )
        lost = self._judge(connection, info)
        connection.send_handshake(
            FrameKind.WELCOME,
            handshake.welcome(
                self._identity,
                to=info.node_id,
                nonce=nonce,
                last_index=self._last_index(),
                lives=self._lives.tell(info.node_id),
            ),
        )
        if lost:
            raise HandshakeRefusedError(CloseCode.OLD_COPY, lost)
        return info

    def _take_welcome(self, connection: Stream, header: bytes) -> PeerInfo:
        """Return the peer that answered. Raises HandshakeRefusedError."""
        if connection.info is not None or not isinstance(connection.nonce, int):
            raise HandshakeRefusedError(CloseCode.PROTOCOL_ERROR, "a Welcome without a Hello")
        info = handshake.check_welcome(
            self._identity, header, to=connection.to, nonce=connection.nonce
        )
        lost = self._judge(connection, info)
        if lost:
            raise HandshakeRefusedError(CloseCode.OLD_COPY, lost)
        return info

    def _judge(self, connection: Stream, info: PeerInfo) -> str:
        try:
            return self._lives.judge(info.node_id, info.lives, connection.asked)
        except LivesFormatError as error:
            raise HandshakeRefusedError(CloseCode.GARBAGE, str(error)) from error
