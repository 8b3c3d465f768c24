"""Hands frames of the peers to their receivers: consensus, snapshots, repair, founding.

Owns the dispatch by kind of frame and the record of the last frames. Must not know what they say.
Any error in a receiver, except a peer's breach of protocol, is a defect of this node and ends it.
"""

import time
from collections.abc import Callable
from typing import Final

from node.peers.frames import FrameKind
from node.peers.types import TakeFrame
from node.runtime.fail_stop import FailStop
from raft.errors import PeerProtocolError
from raft.messages import Index, NodeId

_now_ns: Final = time.monotonic_ns


class PeerFrames:
    """The handler of the peer link. Frames without a receiver yet are dropped.

    Called on the loop's thread, never after the link's `stop` began. An exception other than
    PeerProtocolError goes to the exception handler of the event loop, which has to end the process.
    """

    def __init__(self, last_index: Callable[[], Index], fail_stop: FailStop) -> None:
        """`last_index` returns the last index of the own log, for the handshake."""
        self.last_index, self._fail_stop = last_index, fail_stop
        self._inputs = fail_stop.inputs
        self._takers: dict[FrameKind, TakeFrame] = {}
        self._on_connected: list[Callable[[NodeId, Index], None]] = []
        self._on_disconnected: list[Callable[[NodeId], None]] = []
        self._connected: dict[NodeId, Index] = {}
        self.on_refused: Callable[[NodeId], None] = lambda node: None
        """Is called with each peer that refuses what this node sent; `on_disconnected` follows."""
        self.peer_addresses: dict[NodeId, str] = {}
        """Addresses of the client services of connected peers, as those say."""

    def take(self, *kinds: FrameKind, by: TakeFrame) -> None:
        """Hand frames of these kinds to `by` from now on."""
        self._takers.update(dict.fromkeys(kinds, by))

    def watch(
        self,
        on_connected: Callable[[NodeId, Index], None] | None = None,
        on_disconnected: Callable[[NodeId], None] | None = None,
    ) -> None:
        """Report the connections that exist with the ends of the peers' logs, and every change from
        now on. Frames under way on a broken connection may be lost."""
        if on_disconnected is not None:
            self._on_disconnected.append(on_disconnected)
        if on_connected is not None:
            self._on_connected.append(on_connected)
            for node, last_index in self._connected.items():
                on_connected(node, last_index)

    # Called by the link.

    def on_frame(self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview) -> None:
        """Hand over one frame. The payload is valid during the call only.

        Raises PeerProtocolError to have the connection dropped."""
        if kind not in self._takers:
            return
        inputs = self._inputs
        inputs += ((_now_ns(), node, kind, header, payload.nbytes),)  # A call less than `append`.
        try:
            self._takers[kind](node, kind, header, payload)
        except PeerProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - an error must not end at the event loop.
            self._fail_stop(error)

    def on_connected(self, node: NodeId, last_index: Index, address: str) -> None:
        """Note that the peer can be reached. `last_index` is of its log as of now, `address` its
        client service."""
        self._fail_stop.inputs.append((time.monotonic_ns(), node, "connected", last_index))
        self.peer_addresses[node] = address
        self._connected[node] = last_index
        for report in self._on_connected:
            report(node, last_index)

    def on_disconnected(self, node: NodeId) -> None:
        """Note that a connection broke; frames on it may be lost, and none of it follows.
        `on_connected` follows at once if another one is left."""
        self._fail_stop.inputs.append((time.monotonic_ns(), node, "disconnected"))
        self._connected.pop(node, None)
        for report in self._on_disconnected:
            report(node)
