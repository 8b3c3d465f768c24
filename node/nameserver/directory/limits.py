"""Every limit and time of the name server: what it bounds, and why this number.

Owns the numbers and nothing else. A limit marked `Replicated:` decides what a command does to the
directory, so it is equal on all replicas and changes with a release only.
"""

from dataclasses import dataclass
from typing import Final

from node.config.limits import EPOCH_END
from raft.ceiling import TERM_END, TERM_JUMP_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB

REGISTER_PERIOD_MS: Final = 30_000
HEARTBEAT_PERIOD_MS: Final = 10_000
"""Period of a broker in a Raft group: two heartbeats may get lost before it leaves the routes."""
HA_HEARTBEAT_PERIOD_MS: Final = 1_000
"""Period of a broker in an HA group, since a fail-over waits for missing heartbeats."""
NAME_SIZE_CHARS_MAX: Final = 255
"""Replicated: any name, address or key."""
VALUE_SIZE_CHARS_MAX: Final = 4 * KIB
"""Replicated: one value of the key-value configuration."""


@dataclass(frozen=True, slots=True)
class DirectoryLimits:
    """The limits of the replicated state; its tests use small ones."""

    group_count_max: int = 64
    """Replicated: broker groups."""
    broker_count_max: int = 16
    """Replicated: brokers of one group."""
    epoch_count_max: int = 32
    """Replicated: bindings of epochs kept for one group; the highest number is always known."""
    epoch_max: int = EPOCH_END - 1
    """Replicated: the last epoch of an HA group, as its replicas have it, and the last version of
    an in-sync set."""
    epoch_first_max: int = 1 << 30
    """Replicated: the highest epoch in the first report of an HA group, since a directory that lost
    all its content learns from it (rule C1). From any such epoch a billion elections are left."""
    epoch_jump_max: int = 1 << 24
    """Replicated: how far above the directory's highest epoch of an HA group a report may be. The
    first broker to report may have missed the group's whole life: a fail-over a minute for 30
    years."""
    epoch_lead_max: int = 512
    """Replicated: how far the highest number of a group may be above the numbers of its brokers.
    Beyond it the number came from none of them, so the directory forgets the group and learns it
    again. Half of the jump that its replicas accept (`node.replication.ha.core.ceiling`), so they
    follow the numbers that the directory gives out."""
    term_max: int = TERM_END - 1
    """Replicated: the last term of a Raft group, as its nodes have it."""
    term_jump_max: int = TERM_JUMP_MAX
    """Replicated: how far above the directory's highest term of a Raft group a report may be. A
    Raft group elects on its own, so its first report may name any term."""
    topics_size_bytes_max: int = 1 * MIB
    """Replicated: topics of all groups, as counted by `topics_size_bytes`. Small enough to be sent
    whole (rule C1); 10,000 topics with names of 40 characters need 0.8 MiB."""
    pairs_size_bytes_max: int = 256 * KIB
    """Replicated: key-value pairs, which any client may put: topics have their own room."""
    result_count_max: int = 512
    """Replicated: results kept so that a caller can read back the result of its command."""
    broker_expiry_ms: int = 25_000
    """Replicated: silence after which a broker is not alive: two lost heartbeats and a half, and
    below the 30 s that we promise."""
    master_silence_ms: int = 3_000
    """Silence of an HA master after which another one is proposed: two lost heartbeats. The
    proposal is advice, so a wrong guess costs a fail-over and no data."""
