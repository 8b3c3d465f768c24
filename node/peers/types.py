"""The port of the peer link: the receiver of its frames, its limits, and its status.

Types only. The driver's side implements `LinkHandler`; `LinkStats` reports everything else.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from node.peers.frames import FrameKind
from raft.lives import Known
from raft.messages import Index, NodeId

TakeFrame = Callable[[NodeId, FrameKind, bytes, memoryview], None]
"""Takes the node, kind, header and payload of a frame. Raises PeerProtocolError."""


class LinkHandler(Protocol):
    """Receives events of the peers. Called on the loop's thread, never after `stop` began.

    An exception other than PeerProtocolError is a bug: it goes to the exception handler of the
    event loop, which has to end the process.
    """

    def on_frame(self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview) -> None:
        """Take one frame. The payload is valid during the call only.

        Raises PeerProtocolError to have the connection dropped."""
        ...

    def on_connected(self, node: NodeId, last_index: Index, address: str) -> None:
        """Note that the peer can be reached. `last_index` is of its log as of now, `address` its
        client service."""
        ...

    def on_refused(self, node: NodeId) -> None:
        """Note that the peer could not accept what this node sent, and ends the connection.
        `on_disconnected` follows."""
        ...

    def on_disconnected(self, node: NodeId) -> None:
        """Note that a connection broke; frames on it may be lost, and none of it follows.
        `on_connected` follows at once if another one is left."""
        ...

    def last_index(self) -> Index:
        """Return the last index of the own log, for the handshake."""
        ...


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
