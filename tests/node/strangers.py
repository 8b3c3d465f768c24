"""A stranger at a peer port, as a raw socket: what it says is chosen byte by byte."""

from __future__ import annotations

import socket
from typing import Self

from node.peers import handshake
from node.peers.frames import FrameKind, FrameParser, encode_head
from node.peers.handshake import LinkIdentity
from tests.patience import PATIENCE_S


class Stranger:
    """Shakes hands as node `claims` and then sends what it likes."""

    def __init__(self, address: tuple[str, int], identity: LinkIdentity, *, to: int) -> None:
        self._socket = socket.create_connection(address, PATIENCE_S)
        self._parser = FrameParser()
        self._identity, self._to = identity, to

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def shake_hands(self) -> None:
        """Get in; fails with what the node said if it refuses."""
        kind, header, _ = self.read()
        assert kind is FrameKind.CHALLENGE, kind
        _, hello = handshake.hello(self._identity, header, to=self._to, last_index=0)
        self.send(FrameKind.HELLO, hello)
        kind, header, _ = self.read()
        assert kind is FrameKind.WELCOME, handshake.read_goodbye(header)

    def send(self, kind: FrameKind, header: bytes) -> None:
        """Send a frame of the peer link."""
        self.send_raw(encode_head(kind, header))

    def send_raw(self, data: bytes) -> None:
        """Send any bytes."""
        self._socket.sendall(data)

    def read(self) -> tuple[FrameKind, bytes, bytes]:
        """Return the next frame of the peer link."""
        while True:
            frame = self._parser.next_frame()
            if frame is not None:
                kind, header, payload = frame
                return kind, header, bytes(payload)
            size_bytes = self._socket.recv_into(self._parser.buffer())
            assert size_bytes, "the node closed the connection"
            self._parser.filled(size_bytes)

    def goodbye(self) -> str:
        """Return the code with which the node ends the connection, whatever it says before."""
        while True:
            kind, header, _ = self.read()
            if kind is FrameKind.GOODBYE:
                return handshake.read_goodbye(header)[0]

    def read_to_the_end(self) -> None:
        """Return once the node has closed the connection, with a word or without."""
        while self._socket.recv(1 << 16):
            pass


def claims(node: int, *, cluster_id: str, group: str = "g0", secret: bytes = b"") -> LinkIdentity:
    """Who the stranger says it is."""
    return LinkIdentity(cluster_id, group, node, "0.1.0", "127.0.0.1:1", secret)
