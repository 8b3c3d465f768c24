"""A node whose calls are counted on request: `python -m bench.calls.counted_node --config FILE`.

The node is that of `python -m node`, but for the constants below: with them its steps are those of
a fast and idle machine, whatever else runs on this one.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from bench.calls.counter import CallCounter
from bench.signalled import run_node
from node.config import settings
from node.replication import sync_requests
from node.replication.raft import driver

TICK_MS: Final = 500
SETTINGS: Final[Mapping[str, object]] = {
    "heartbeat_ms": TICK_MS,
    "election_min_ms": 6 * TICK_MS,
    # Its replicas are most of what an idle node does.
    "nameserver_listen": "off",
}
"""Settings of a counted node."""

CONSTANTS: Final[tuple[tuple[ModuleType, str, int], ...]] = (
    # Twenty times as long: ticks and heartbeats are few calls of each append, however long it
    # takes.
    (settings, "TICK_MS", TICK_MS),
    # Followers apply with ticks, or when this number of entries waits. An idle machine appends as
    # many in a tick of 25 ms; here they come sooner than a tick.
    (driver, "LATE_APPLY_COUNT_MAX", 24),
    # Syncs are done on the loop, as on a fast disk. A preempted one would seem to be slow.
    (sync_requests, "FAST_SYNC_US", 1_000_000_000),
)
"""Module, name and value; steps that hang on a clock would else hang on the machine."""


def main() -> None:
    """Run the node until it gets a signal to stop."""
    counter = CallCounter()
    for module, name, value in CONSTANTS:
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        setattr(module, name, value)
    run_node(counter.start, lambda: counter.stop().to_json())


if __name__ == "__main__":
    main()
