"""The port of the peer link: what takes its frames, its limits, and its status. Types only."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from node.peers.frames import FrameKind
from raft.lives import Known
from raft.messages import NodeId

TakeFrame = Callable[[NodeId, FrameKind, bytes, memoryview], None]
"""Takes the node, kind, header and payload of a frame. Raises PeerProtocolError."""


class PeerLives(Protocol):
    """Finds nodes that came back on an old copy of their disk (node.replication.lives)."""

    def tell(self, node: NodeId) -> bytes:
        """Return the lives for a handshake with `node`."""
        ...

    def remembered(self) -> Mapping[NodeId, Known]:
        """Return what is remembered of all nodes now, to `judge` a later answer by."""
        ...

    def judge(self, node: NodeId, lives: bytes, asked: Mapping[NodeId, Known]) -> str:
        """Return why `node` is not to be believed; empty if it is. `asked` is what was remembered
        at the moment of the question. Raises LivesFormatError."""
        ...


class LinkLimits(NamedTuple):
    """Every limit of a link."""

    queued_size_bytes_max: int = 16 << 20
    """Bytes waiting to be sent to one peer. Twice the byte window of the leader, so that no frame
    is dropped as long as a peer reads at all."""
    handshake_count_max: int = 64
    """Unfinished handshakes. One more makes the oldest of the busiest address go, so that silent
    strangers keep no peer out."""
    handshake_ms_max: int = 3000
    """Time from the first byte of TCP to the end of the handshake, on both sides."""
    buffer_size_bytes: int = 256 << 10
    """Receive buffer of a peer's connection; it grows for larger frames. A stranger has 4 KiB."""
    ping_ms: int = 1000
    """Silence on a connection after which a ping asks for a sign of life."""
    silence_ms_max: int = 4000
    """Silence after which a connection is dropped: the peer hangs, or ended without a Goodbye."""
    reconnect_ms_min: int = 50
    reconnect_ms_max: int = 1000
    """Pause between attempts to connect: doubled each time, and shortened by up to half at
    random."""
    first_meeting_ms_max: int = 1000
    """Time that a starting node waits until each peer was met or could not be reached, before it
    takes part in elections: a peer may know that the node's disk is an old copy."""
    close_ms_max: int = 1000
    """Time for a Goodbye to leave before the connection is cut."""
    log_interval_ms: int = 10_000
    """Interval of one log line for each kind of trouble; further troubles are counted."""


class PeerStats(NamedTuple):
    """Counters and status of one peer."""

    node: NodeId
    host: str
    port: int
    is_connected: bool
    connection_count: int
    """0 to 2: the one this node dialled, and the one the peer dialled."""
    queued_size_bytes: int
    sent_size_bytes: int
    received_size_bytes: int
    dropped_unconnected_count: int
    """Frames not sent because there was no connection."""
    dropped_full_count: int
    """Frames not sent because too many bytes waited already."""
    last_trouble: str
    """Why the last connection ended or was refused; empty if none did."""


class LinkStats(NamedTuple):
    """Counters and fill levels of a link."""

    peers: tuple[PeerStats, ...]
    handshake_count: int
    """Unfinished now, of accepted connections."""
    accepted_count: int
    """Connections accepted, since the start."""
    accept_failure_count: int
    """Accepts that failed, for instance because the process is out of descriptors."""
    closed_counts: Mapping[str, int]
    """Connections refused, dropped or lost since the start, by CloseCode."""
