"""What cluster a scenario runs on. Scenarios of one profile share one, one after the other."""

import os
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

DISK_SIZE_BYTES: Final = 24 << 20


class Mode(StrEnum):
    """How the nodes replicate."""

    RAFT = "raft"
    SYNC_MASTER = "sync_master"
    ASYNC_MASTER = "async_master"


@dataclass(frozen=True, slots=True)
class Profile:
    """The cluster that a scenario needs. Equal ones are the same cluster."""

    node_count: int = 3
    flush: str = "sync"
    settings: tuple[tuple[str, object], ...] = ()
    """Of every node, beside what all clusters here have."""
    disk_size_bytes: int = 0
    """Each node's data is on a file system of its own, of this size."""
    is_shadowed: bool = False
    """What is durable is kept beside the data, so that a power loss can be made."""
    forgets: bool = False
    """Retention deletes while it runs: a log without its beginning, else a loss, is right."""
    loses: bool = False
    """Its masters are async ones for a time, in any mode: what they lost has to be reported."""
    patience_s: float = 0.0
    """How much longer than by default its nodes wait before they elect, as `settings` say."""
    is_own: bool = False
    """The scenario leaves a cluster behind that nobody else can use."""

    def node_settings(self) -> dict[str, object]:
        """Return the settings of a node."""
        return {
            # Small files, so that a run goes through many of them.
            "file_size_bytes": "4MiB",
            "batch_size_bytes_max": "256KiB",
            # A disk that others fill is no fault of ours, unless the scenario says so.
            "disk_full_ratio": 1.0,
            "disk_reserve_bytes": "4MiB",
            "preallocate_file_count": 1,
            **dict(self.settings),
        }


@dataclass(frozen=True, slots=True)
class Options:
    """What is chosen for a whole run."""

    seed: int
    mode: Mode = Mode.RAFT
    time_scale: float = field(default_factory=lambda: float(os.environ.get("CHAOS_SCALE", "1")))
    """All deadlines are multiplied by this, for slow machines."""
