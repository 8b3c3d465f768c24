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
    """The status of one replica, by default of one that does not exist at the moment."""

    state: str
    """One of STATES."""
    leader: str = ""
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    journal_size_bytes: int = 0
    in_flight_count: int = 0
    in_flight_count_max: int = IN_FLIGHT_COUNT_MAX
    directory_size_bytes: int = 0
    directory_size_bytes_max: int = 0
    refused_count: int = 0
    """Connections closed because of invalid or unexpected messages."""
    failure: str = ""
    """Why the replica has stopped or does not count; empty: neither."""
    old_copy_count: int = 0
    """Connected replicas that began with an old copy and have not become joining yet."""
    dropped_memory_count: int = 0
    """Memories that replicas told of and that were dropped for want of room."""
