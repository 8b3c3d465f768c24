"""The rates of a fleet between two events: what is served, and what is repaired between hosts.

Owns the sharing of processors, networks and disks. Clients come first: repair gets what they leave.
Rates are constant until the next event, so amounts are rate times time, exactly.
"""

from collections import Counter
from dataclasses import dataclass

from planning.capacity.fleet.scenario import FleetScenario
from planning.capacity.fleet.state import Copy, FleetGroup, FleetState
from planning.capacity.traffic import FRAME_RATIO

_WRITTEN_TWICE = 2
"""Bytes written for each byte of log: files are filled with zeros ahead."""


@dataclass(slots=True)
class HostUse:
    """The share of clients in one host, a second: at full demand, then at what is served."""

    cpu_s: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    written_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class RepairFlow:
    """Log on its way to a copy that lacks it."""

    group: FleetGroup
    copy: Copy
    source: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Rates:
    """All rates until the next event."""

    served: dict[str, float]
    """Messages a second of each group that is served."""
    flows: tuple[RepairFlow, ...]


def rates_of(state: FleetState, scenario: FleetScenario) -> Rates:
    """Return the rates for a state."""
    served_groups = [group for group in state.groups if state.is_served(group)]
    most = min(scenario.msgs_per_s, scenario.group_msgs_per_s_max)
    full = dict.fromkeys((group.name for group in served_groups), most)
    use = _use(state, scenario, served_groups, full)
    shares = {host: _share(one, scenario) for host, one in use.items()}
    served = {
        group.name: most * min(shares[copy.host] for copy in state.level_copies(group))
        for group in served_groups
    }
    return Rates(served, _flows(state, scenario, _use(state, scenario, served_groups, served)))


def _use(
    state: FleetState,
    scenario: FleetScenario,
    groups: list[FleetGroup],
    rates: dict[str, float],
) -> dict[str, HostUse]:
    uses = {host: HostUse() for host in state.up_hosts()}
    for group in groups:
        rate = rates[group.name]
        log = rate * scenario.log_size_bytes
        # Frames are on the network only: neither on a disk nor in what a copy lacks.
        log_sent = log * FRAME_RATIO
        records_sent = rate * scenario.record_size_bytes * FRAME_RATIO
        for copy in state.level_copies(group):
            use = uses[copy.host]
            use.written_bytes += _WRITTEN_TWICE * log + rate * scenario.derived_size_bytes
            if copy.host == group.leader:
                followers = len(state.level_copies(group)) - 1
                use.cpu_s += rate * scenario.leader_cpu_s
                use.received_bytes += records_sent
                use.sent_bytes += followers * log_sent
                use.sent_bytes += scenario.consumer_count * records_sent
            else:
                use.cpu_s += rate * scenario.follower_cpu_s
                use.received_bytes += log_sent
    return uses


def _share(use: HostUse, scenario: FleetScenario) -> float:
    """Return how much of the demand a host carries: 1, or less if a resource is short."""
    needs = (
        (use.cpu_s, scenario.cores),
        (use.sent_bytes, scenario.network_bytes_per_s),
        (use.received_bytes, scenario.network_bytes_per_s),
        (use.written_bytes, scenario.disk_write_bytes_per_s),
    )
    return min([1.0, *(limit / used for used, limit in needs if used > 0)])


def _flows(
    state: FleetState, scenario: FleetScenario, use: dict[str, HostUse]
) -> tuple[RepairFlow, ...]:
    """Return the repairs, each with an equal share of what its two hosts have to spare."""
    wanted: list[tuple[FleetGroup, Copy, str]] = []
    for group, copy in state.behind_copies():
        sources = [one.host for one in state.level_copies(group)]
        if sources:
            wanted.append((group, copy, group.leader if group.leader in sources else min(sources)))
    from_host = Counter(source for _, _, source in wanted)
    to_host = Counter(copy.host for _, copy, _ in wanted)
    flows = []
    for group, copy, source in wanted:
        target = use[copy.host]
        network = scenario.network_bytes_per_s
        rate = min(
            scenario.catch_up_bytes_per_s,
            (network - use[source].sent_bytes) / FRAME_RATIO / from_host[source],
            (network - target.received_bytes) / FRAME_RATIO / to_host[copy.host],
            (scenario.disk_write_bytes_per_s - target.written_bytes)
            / _WRITTEN_TWICE
            / to_host[copy.host],
        )
        flows.append(RepairFlow(group, copy, source, max(rate, 0.0)))
    return tuple(flows)
