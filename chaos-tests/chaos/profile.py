"""The cluster that a scenario needs. Scenarios of one profile use a cluster in turn."""

import os
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from quorumlog.cluster.transport import TRANSPORTS, Transport

DISK_SIZE_BYTES: Final = 24 << 20


class ClusterMode(StrEnum):
    """How the nodes replicate."""

    RAFT = "raft"
    SYNC_MASTER = "sync_master"
    ASYNC_MASTER = "async_master"


@dataclass(frozen=True, slots=True)
class Profile:
    """The cluster that a scenario needs. Equal profiles mean the same cluster."""

    node_count: int = 3
    flush: str = "sync"
    settings: tuple[tuple[str, object], ...] = ()
    """Settings of every node, beside those of all clusters here."""
    disk_size_bytes: int = 0
    """Size of a file system for each node's data; 0: none of its own."""
    is_shadowed: bool = False
    """Whether durable data is kept beside the data, so that a power loss can be made."""
    forgets: bool = False
    """Whether retention deletes meanwhile: a log without its beginning is then no loss."""
    loses: bool = False
    """Whether its masters are async for a time, in any mode: losses have to be reported."""
    patience_s: float = 0.0
    """Additional wait before its nodes elect, compared to the default, as `settings` say."""
    is_own: bool = False
    """Whether the scenario leaves a cluster behind that no other can use."""

    def node_settings(self) -> dict[str, object]:
        """Return the settings of a node."""
        return {
            # Small files, so that a run goes through many of them.
            "file_size_bytes": "4MiB",
            "batch_size_bytes_max": "256KiB",
            # A disk filled by other programs is no fault of this suite, unless the scenario sets
            # it.
            "disk_full_ratio": 1.0,
            "disk_reserve_bytes": "4MiB",
            "preallocate_file_count": 1,
            **dict(self.settings),
        }


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """Choices for a whole run."""

    seed: int
    mode: ClusterMode = ClusterMode.RAFT
    judges_times: bool = False
    """Whether fail-overs and recoveries beyond the gates fail; on a quiet machine only."""
    transport: Transport | None = None
    """Transport of the clients; None: each trial draws it from its seed."""
    time_scale: float = field(default_factory=lambda: float(os.environ.get("CHAOS_SCALE", "1")))
    """Factor of all deadlines, for slow machines."""

    def transport_of(self, seed: int) -> Transport:
        """Return the transport of the trial with this seed."""
        # Not from the numbers of the trial: its faults are the same over each transport.
        if self.transport is not None:
            return self.transport
        return Random(f"transport {seed}").choice(TRANSPORTS)
