"""Snapshots between nodes: a header, then the state in chunks, paced to spare other frames.

Owns the pace, the order and the check of the whole; must not know the contents of the state, nor
sockets or clocks: the link is a port, and `pump` is called at each tick. The transfer has no ack of
its own. A follower that got the whole state hands it to its core, whose reply is the ack; a
follower that got a wrong one drops the connection; and the sender takes every lost connection for a
failure, upon which the leader's core starts over.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.message import DecodeError

from node.peers.frames import FrameKind
from node.peers.link import PeerLink
from node.replication.raft.codec import SnapshotHeader, decode_install, encode_install
from quorumlog.pb import peer_pb2 as pb
from raft.errors import PeerProtocolError
from raft.messages import InstallSnapshot, NodeId
from store.files.checksum import crc32c


class SnapshotLimits(NamedTuple):
    """Limits of both directions."""

    state_size_bytes_max: int = 64 << 20
    """Limit of a state, sent or received. A receiver may need twice as much for a moment."""
    chunk_size_bytes: int = 256 << 10
    queued_size_bytes_max: int = 1 << 20
    """Bytes waiting for the peer above which no chunk is added: a heartbeat waits for at most
    this."""
    stalled_ms_max: int = 30_000
    """Time without progress, also after the last byte, until a transfer counts as failed."""


_LIMITS = SnapshotLimits()


@dataclass(slots=True)
class _Outgoing:
    """One snapshot on its way to one node."""

    index: int
    header: bytes | None
    """The header to send; None once sent."""
    state: bytes | None
    """The state to send; None once all of it was sent."""
    failure: str
    at: int = 0
    """The next byte of the state to send."""
    moved_ms: int = 0
    """When bytes left last."""
    left_size_bytes: int | None = None
    """Minimum of the bytes seen waiting, here and in the link; None before the first look."""


class SnapshotSender:
    """Sends snapshots to followers, at most one at a time to each."""

    def __init__(
        self,
        link: PeerLink,
        on_failed: Callable[[NodeId, str], None],
        limits: SnapshotLimits = _LIMITS,
    ) -> None:
        """`on_failed` is called from `pump` and `on_disconnected`, with a reason for people; never
        from `begin`."""
        self._link, self._on_failed, self._limits = link, on_failed, limits
        self.transfers: dict[NodeId, _Outgoing] = {}
        """Transfers under way, or complete and not yet known to be installed, by node."""
        self.sent_count = 0
        """Transfers whose last byte was handed to the link."""

    def begin(self, message: InstallSnapshot, state: bytes) -> None:
        """Start a transfer, instead of the current one to that node. The next `pump` goes on."""
        limit, failure = self._limits.state_size_bytes_max, ""
        if len(state) > limit:
            failure = f"the snapshot has {len(state)} bytes, the limit is {limit}"
            state = b""
        header = encode_install(message, size_bytes=len(state), crc=crc32c(state))
        self.transfers[message.to] = _Outgoing(message.meta.index, header, state, failure)

    def pump(self, now_ms: int) -> list[NodeId]:
        """Send as much as the pace allows, and report failed transfers. Call it at every tick.

        Return the nodes to which more bytes have left since the last call."""
        moved: list[NodeId] = []
        for node, transfer in list(self.transfers.items()):
            if not transfer.failure:
                self._feed(node, transfer)
            if self._has_moved(node, transfer):
                transfer.moved_ms = now_ms
                moved.append(node)
            elif not transfer.failure and now_ms - transfer.moved_ms >= self._limits.stalled_ms_max:
                what = "sent" if transfer.state is not None else "installed"
                transfer.failure = f"not {what} within {self._limits.stalled_ms_max} ms"
            if transfer.failure:
                self._fail(node, transfer.failure)
        return moved

    def _has_moved(self, node: NodeId, transfer: _Outgoing) -> bool:
        """Whether fewer bytes wait than ever before. Bytes queued in the link have not left yet: on
        a slow link that takes longer than a whole transfer may stand still."""
        unsent = len(transfer.state) - transfer.at if transfer.state is not None else 0
        left, before = unsent + self._link.queued_size_bytes(node), transfer.left_size_bytes
        if before is not None and left >= before:
            return False
        transfer.left_size_bytes = left
        return True

    def on_disconnected(self, node: NodeId) -> None:
        """Fail the transfer to `node`: a connection to it broke, so parts may be lost."""
        if node in self.transfers:
            self._fail(node, "the connection was lost")

    def delivered(self) -> list[NodeId]:
        """Return the nodes that were sent a whole snapshot whose outcome is not known yet."""
        return [node for node, transfer in self.transfers.items() if transfer.state is None]

    def forget(self, node: NodeId) -> None:
        """Forget the transfer to `node`: it is installed there, or no longer wanted."""
        del self.transfers[node]

    def cancel(self) -> None:
        """Forget all transfers and report nothing, since this node does not lead any more."""
        self.transfers.clear()

    def _feed(self, node: NodeId, transfer: _Outgoing) -> None:
        limits, link = self._limits, self._link
        while transfer.state is not None:
            if not link.is_connected(node):
                transfer.failure = "there is no connection"
                return
            if link.queued_size_bytes(node) >= limits.queued_size_bytes_max:
                return
            if transfer.header is not None:
                if not link.send(node, FrameKind.INSTALL_SNAPSHOT, transfer.header):
                    return
                transfer.header = None
            else:
                chunk = transfer.state[transfer.at : transfer.at + limits.chunk_size_bytes]
                header = pb.SnapshotChunk(index=transfer.index, at=transfer.at).SerializeToString()
                if not link.send(node, FrameKind.SNAPSHOT_CHUNK, header, chunk):
                    return
                transfer.at += len(chunk)
            if transfer.at == len(transfer.state):
                transfer.state = None  # The record stays: the connection may still lose bytes.
                self.sent_count += 1

    def _fail(self, node: NodeId, reason: str) -> None:
        del self.transfers[node]
        self._on_failed(node, reason)


@dataclass(slots=True)
class _Incoming:
    """One snapshot being received."""

    node: NodeId
    header: SnapshotHeader
    chunks: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    """Size of all chunks, which lie back to back."""


class SnapshotReceiver:
    """Assembles the newest snapshot that is being sent; an older one makes room for it."""

    def __init__(
        self,
        group: str,
        node_id: NodeId,
        on_received: Callable[[InstallSnapshot, bytes], None],
        limits: SnapshotLimits = _LIMITS,
        *,
        check: Callable[[InstallSnapshot], None] = lambda _: None,
    ) -> None:
        """`on_received` gets each whole, verified state, `check` its header before any byte is
        kept; a PeerProtocolError from them drops the connection."""
        self._group, self._node_id, self._on_received = group, node_id, on_received
        self._limits, self._check = limits, check
        self._incoming: _Incoming | None = None

    def on_frame(self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview) -> None:
        """Take an INSTALL_SNAPSHOT or a SNAPSHOT_CHUNK. Raises PeerProtocolError: drop the
        connection, which tells the sender."""
        if kind is FrameKind.INSTALL_SNAPSHOT:
            self._begin(node, header)
        else:
            assert kind is FrameKind.SNAPSHOT_CHUNK, f"{kind!r} is not about snapshots"
            self._add(node, header, payload)

    def on_disconnected(self, node: NodeId) -> None:
        """Drop the snapshot of `node`: a connection to it broke, so the rest may never arrive."""
        if self._incoming is not None and self._incoming.node == node:
            self._incoming = None

    @property
    def held_size_bytes(self) -> int:
        """Bytes held of the snapshot being received."""
        return self._incoming.size_bytes if self._incoming is not None else 0

    def _begin(self, node: NodeId, header: bytes) -> None:
        message = decode_install(header, group=self._group, sender=node, to=self._node_id)
        self._check(message.message)
        incoming = self._incoming
        if incoming is not None and incoming.header.message.term > message.message.term:
            return  # From a deposed leader; its chunks are ignored, too.
        limit = self._limits.state_size_bytes_max
        if message.size_bytes > limit:
            raise PeerProtocolError(
                node, f"a snapshot of {message.size_bytes} bytes, at most {limit} are taken"
            )
        self._incoming = _Incoming(node, message)
        self._complete(self._incoming)

    def _add(self, node: NodeId, header: bytes, payload: memoryview) -> None:
        incoming = self._incoming
        if incoming is None or incoming.node != node:
            return  # Of a transfer that was given up here; a few follow each.
        try:
            chunk = pb.SnapshotChunk.FromString(header)
        except DecodeError as error:
            raise self._refused(incoming, f"a chunk's header: {error}") from error
        place = (chunk.index, chunk.at)
        expected = (incoming.header.message.meta.index, incoming.size_bytes)
        if place != expected:
            raise self._refused(incoming, f"a chunk of {place}, expected {expected}")
        size_bytes = incoming.size_bytes + len(payload)
        if not payload or size_bytes > incoming.header.size_bytes:
            detail = f"a chunk up to byte {size_bytes} of {incoming.header.size_bytes}"
            raise self._refused(incoming, detail)
        incoming.chunks.append(bytes(payload))
        incoming.size_bytes = size_bytes
        self._complete(incoming)

    def _complete(self, incoming: _Incoming) -> None:
        if incoming.size_bytes < incoming.header.size_bytes:
            return
        state = b"".join(incoming.chunks)
        incoming.chunks.clear()
        crc = crc32c(state)
        if crc != incoming.header.crc:
            detail = f"a snapshot with CRC {crc:08X}, announced was {incoming.header.crc:08X}"
            raise self._refused(incoming, detail)
        self._incoming = None
        self._on_received(incoming.header.message, state)

    def _refused(self, incoming: _Incoming, detail: str) -> PeerProtocolError:
        self._incoming = None
        return PeerProtocolError(incoming.node, detail)
