"""The status of a name server replica, for people and metrics.

Contains types only; must not load PySyncObj, since a node without a replica has a status, too.
"""

from dataclasses import dataclass
from typing import Final

STATES: Final = ("leader", "follower", "no_leader", "joining", "stopped", "failed")
REPORT_COUNT_MAX: Final = 256
"""Commands of brokers and controllers that wait for an answer. Above it `node.busy`."""
CHANGE_COUNT_MAX: Final = 64
"""The same for changes of values, which any client may ask for: fewer than the results that are
kept, so that a command can read its own back."""
IN_FLIGHT_COUNT_MAX: Final = REPORT_COUNT_MAX + CHANGE_COUNT_MAX


@dataclass(frozen=True, slots=True)
class NameServerStatus:
    """The status of one replica."""

    state: str
    """One of STATES."""
    leader: str
    term: int
    commit_index: int
    applied_index: int
    journal_size_bytes: int
    in_flight_count: int
    in_flight_count_max: int
    directory_size_bytes: int
    directory_size_bytes_max: int
    refused_count: int
    """Connections closed because of invalid or unexpected messages."""
    failure: str = ""
    """Why the replica has stopped or does not count; empty: neither."""
    old_copy_count: int = 0
    """Connected replicas that began with an old copy and have not become joining yet."""
    dropped_memory_count: int = 0
    """Memories that replicas told of and that were dropped for want of room."""

    @classmethod
    def without_replica(cls, state: str, failure: str) -> "NameServerStatus":
        """Return the status of a replica that does not exist at the moment."""
        return cls(state, "", 0, 0, 0, 0, 0, IN_FLIGHT_COUNT_MAX, 0, 0, 0, failure)
