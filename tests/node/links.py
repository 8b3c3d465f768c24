"""Real peer links on loopback for tests: nodes that note what they hear, and raw sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

from node.peers import handshake
from node.peers.connection import PeerConnection
from node.peers.dispatch import PeerFrames
from node.peers.frames import FrameKind, FrameParser, encode_head
from node.peers.handshake import CloseCode, LinkIdentity
from node.peers.link import LinkPeer, PeerLink
from node.peers.types import LinkLimits, TakeFrame
from raft.errors import PeerProtocolError
from raft.lives import Known
from raft.messages import Index, NodeId
from tests.calm_loop import CalmLoop
from tests.coroutines import POLLER, TIMEOUT_S
from tests.patience import eventually

Frame = tuple[FrameKind, bytes, bytes]
SECRET = b"a secret of these tests"

LIMITS = LinkLimits(
    handshake_ms_max=2000,
    ping_ms=50,
    silence_ms_max=400,
    reconnect_ms_min=5,
    reconnect_ms_max=40,
    close_ms_max=200,
)
"""Short times, so that tests are short. Nothing here may depend on being fast enough."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; what reaches the loop's exception handler fails the test."""
    troubles: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=CalmLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: troubles.append(context))
        runner.run(asyncio.wait_for(work, TIMEOUT_S))
    unexpected = [trouble for trouble in troubles if POLLER not in repr(trouble)]
    assert not unexpected, f"the loop's exception handler was called: {unexpected}"


def identity(node: NodeId, **changes: Any) -> LinkIdentity:
    usual = LinkIdentity(
        cluster_id="cluster",
        group="group",
        node_id=node,
        version="0.1.0",
        address=f"client-of-{node}:8081",
        secret=SECRET,
        file_size_bytes=1 << 20,
    )
    return replace(usual, **changes)


def transport_of(connection: PeerConnection) -> asyncio.Transport:
    """Return the transport of a connection that is open."""
    assert connection._transport is not None
    return connection._transport


class NoLives:
    """A `PeerLives` that believes every node."""

    def tell(self, node: NodeId) -> bytes:
        return b""

    def remembered(self) -> Mapping[NodeId, Known]:
        return {}

    def judge(self, node: NodeId, lives: bytes, asked: Mapping[NodeId, Known]) -> str:
        return ""


class Node(PeerFrames):
    """A link and what its handler was told."""

    def __init__(self, node: NodeId, limits: LinkLimits = LIMITS, **options: Any) -> None:
        changes = {key: options.pop(key) for key in options.keys() - {"tls", "lives"}}
        self.node_id = node
        self.frames: list[tuple[NodeId, Frame]] = []
        self.events: list[tuple[object, ...]] = []
        self.refuse: str = ""
        self.fail: Exception | None = None
        self.is_counting_only = False
        self.received_count = 0
        self.kept: memoryview | None = None
        self.host, self.port = "127.0.0.1", 0
        self.take_frame: TakeFrame = self.keep  # A test may replace it while connections are open.
        options = {"lives": NoLives(), **options}
        self.last_index = lambda: 100 + node
        self.on_refused = lambda node: self.events.append(("refused", node))
        self.link = PeerLink(identity(node, **changes), self, limits, random=Random(1), **options)

    def on_frame(self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview) -> None:
        self.take_frame(node, kind, header, payload)

    def keep(self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview) -> None:
        self.received_count += 1
        if self.fail is not None:
            raise self.fail
        if self.refuse:
            raise PeerProtocolError(node, self.refuse)
        self.kept = payload
        if not self.is_counting_only:
            self.frames.append((node, (kind, header, bytes(payload))))

    def on_connected(self, node: NodeId, last_index: Index, address: str) -> None:
        self.events.append(("up", node, last_index, address))

    def on_disconnected(self, node: NodeId) -> None:
        self.events.append(("down", node))

    def peer(self, node: NodeId) -> LinkPeer:
        """Return what the link holds of a peer: its connections, and the task that dials."""
        return self.link._peers[node]

    def count(self, event: str) -> int:
        return sum(1 for each in self.events if each[0] == event)

    @property
    def closed_counts(self) -> dict[str, int]:
        """By code, without the attempts to reach a peer that was never started."""
        counts = dict(self.link.stats().closed_counts)
        counts.pop(CloseCode.UNREACHABLE, None)
        return counts


async def started(node: Node, port: int = 0) -> Node:
    node.port = await node.link.start(node.host, port)
    return node


@asynccontextmanager
async def nodes(*made: Node, acquainted: bool = True) -> AsyncIterator[list[Node]]:
    """Start links, tell each the addresses of all, wait until all are connected; stop them."""
    try:
        for node in made:
            await started(node)
        if acquainted:
            introduce(*made)
            await connected(*made)
        yield list(made)
    finally:
        for node in made:
            await node.link.stop()


def introduce(*made: Node) -> None:
    for node in made:
        node.link.set_peers({each.node_id: (each.host, each.port) for each in made})


async def connected(*made: Node) -> None:
    """Wait until both connections of every pair are there."""
    await eventually(
        lambda: all(
            peer.connection_count == 2 for node in made for peer in node.link.stats().peers
        ),
        "all connected",
    )


async def send(link: PeerLink, node: NodeId, frame: Frame) -> None:
    """Send when there is room."""
    await eventually(lambda: link.send(node, *frame), f"room to send {frame[0]!r}")


class Raw:
    """A socket that speaks the protocol by hand, or does not."""

    def __init__(self, connected: socket.socket | None = None) -> None:
        self.socket = connected or socket.socket()
        self.socket.setblocking(False)
        self.parser = FrameParser(buffer_size_bytes=4096)

    async def dial(self, port: int) -> "Raw":
        await asyncio.get_running_loop().sock_connect(self.socket, ("127.0.0.1", port))
        return self

    async def put(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def send(self, kind: FrameKind, header: bytes = b"", payload: bytes = b"") -> None:
        await self.put(encode_head(kind, header, len(payload)) + payload)

    async def next_frame(self) -> Frame | None:
        """Return the next frame, None at the end of the connection."""
        while True:
            frame = self.parser.next_frame()
            if frame is not None:
                return frame[0], frame[1], bytes(frame[2])
            room = self.parser.buffer()
            try:
                count = await asyncio.get_running_loop().sock_recv_into(self.socket, room)
            except ConnectionError:
                return None
            if not count:
                return None
            self.parser.filled(count)

    async def ended(self) -> list[Frame]:
        """Wait until the other side closes; return the frames it still sent."""
        frames = []
        while (frame := await self.next_frame()) is not None:
            frames.append(frame)
        return frames

    async def shake_hands(self, who: LinkIdentity, to: NodeId) -> None:
        """Become a proven peer by dialling."""
        challenge = await self.next_frame()
        assert challenge is not None
        assert challenge[0] is FrameKind.CHALLENGE
        _, header = handshake.hello(who, challenge[1], to=to, last_index=5)
        await self.send(FrameKind.HELLO, header)
        welcome = await self.next_frame()
        assert welcome is not None
        assert welcome[0] is FrameKind.WELCOME

    async def welcome(self, who: LinkIdentity) -> None:
        """Become a proven peer of who dialled."""
        nonce, header = handshake.challenge()
        await self.send(FrameKind.CHALLENGE, header)
        hello = await self.next_frame()
        assert hello is not None
        assert hello[0] is FrameKind.HELLO
        signed, peer = handshake.check_hello(
            who, hello[1], challenge_nonce=nonce, peers=range(1, 100)
        )
        answer = handshake.welcome(who, to=peer.node_id, nonce=signed, last_index=5)
        await self.send(FrameKind.WELCOME, answer)

    async def next_but_pings(self) -> Frame | None:
        """Return the next frame that is no sign of life."""
        while (frame := await self.next_frame()) is not None and frame[0] is FrameKind.PING:
            pass
        return frame

    def close(self) -> None:
        self.socket.close()


class RawListener:
    """Where a node dials, and a test answers by hand."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.port: int = self.socket.getsockname()[1]
        self._accepted: list[Raw] = []

    async def accept(self) -> Raw:
        accepted, _ = await asyncio.get_running_loop().sock_accept(self.socket)
        self._accepted.append(Raw(accepted))
        return self._accepted[-1]

    def __enter__(self) -> "RawListener":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        for raw in self._accepted:
            raw.close()


@asynccontextmanager
async def raw_to(node: Node) -> AsyncIterator[Raw]:
    raw = Raw()
    try:
        yield await raw.dial(node.port)
    finally:
        raw.close()
