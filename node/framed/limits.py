"""Every limit of the framed port: what it bounds, and why this number.

Owns the numbers and nothing else. Metrics show them; tests use small ones.
"""

from dataclasses import dataclass
from typing import Final

from node.config.limits import check_limits

KIB: Final = 1 << 10
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FramedLimits:
    """The limits of one port. Frozen; a wrong value raises ValueError by name."""

    # --- Frames ---
    frame_size_bytes_max: int = 4 * MIB + 64 * KIB
    """A whole frame: a batch of the largest size and the fields around it, as over gRPC."""
    header_size_bytes_max: int = 1 * MIB
    """The header of a frame: the message of a call without its records. 4,096 offsets of queues
    with the longest names have 600 KiB."""
    read_size_bytes: int = 256 * KIB
    """One read from a socket, into a buffer that all connections share."""
    turn_frame_count_max: int = 128
    """Frames of one connection in one turn of the loop; then others have theirs. Some ms."""

    # --- What a client sends ---
    handshake_ms_max: int = 10_000
    """Time for the handshake of TLS."""
    frame_ms_max: int = 30_000
    """From the first byte of a frame to the last one: 4 MiB at 1.1 Mbit/s."""
    idle_ms_max: int = 600_000
    """Time without a frame and without a call; a client connects again for its next one."""
    window_count_max: int = 256
    """Appends under way of one connection. Above it the node stops reading from it."""
    window_size_bytes_max: int = 16 * MIB
    """The same in bytes of requests. A single one is taken at any size."""

    # --- What a client does not take ---
    waiting_ms_max: int = 120_000
    """Time for the answers that wait: 16 MiB at 1.1 Mbit/s. Then the connection is closed."""
    stuck_ms: int = 1_000
    """Age after which a connection that takes nothing may be closed to make room for others."""
    close_ms_max: int = 1_000
    """Time for the last answers of a connection that the node closes."""

    def __post_init__(self) -> None:
        check_limits(self)
