"""A fleet, the load on it, and its faults over time.

Owns the inputs of a simulation, and the way from a plan to them.
"""

import random
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from planning.capacity.calibration import Calibration
from planning.capacity.demand import DemandError
from planning.capacity.hosts import append_cpu_s
from planning.capacity.placement import FleetHost
from planning.capacity.plan import CapacityPlan

HOST_COUNT_MAX: Final = 1_000
GROUP_COUNT_MAX: Final = 5_000
FAULT_COUNT_MAX: Final = 1_000
DURATION_S_MIN: Final = 1
DURATION_S_MAX: Final = 366 * 86_400
_REPLACE_AFTER_S: Final = 300.0
_FAULT: Final = re.compile(
    r"(host|lost|zone):([A-Za-z0-9._-]{1,64})@(\d{1,9})(?:\+(\d{1,9}))?", re.ASCII
)


class FaultKind(Enum):
    """A kind of fault."""

    HOST = "host"
    """The host is away and comes back with its disk."""
    LOST = "lost"
    """The host and its disk never come back."""
    ZONE = "zone"
    """All hosts of a zone are away and come back."""


@dataclass(frozen=True, slots=True)
class FleetFault:
    """One fault, in seconds from the beginning."""

    kind: FaultKind
    name: str
    """Of the host or the zone."""
    at_s: float
    for_s: float = 0.0
    """Ignored for a lost host."""

    def __str__(self) -> str:
        until = "" if self.kind is FaultKind.LOST else f"+{self.for_s:g}"
        return f"{self.kind.value}:{self.name}@{self.at_s:g}{until}"


def parse_fault(text: str) -> FleetFault:
    """Read `host:NAME@AT+FOR`, `zone:NAME@AT+FOR` or `lost:NAME@AT`. Raises ValueError."""
    match = _FAULT.fullmatch(text)
    if match is None or (match[1] == "lost") != (match[4] is None):
        raise ValueError(
            f"{text!r} is no fault; give host:z0-h1@60+300, zone:z2@600+900 or lost:z1-h0@120 "
            "(seconds)"
        )
    return FleetFault(FaultKind(match[1]), match[2], float(match[3]), float(match[4] or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetScenario:
    """The inputs of a simulation. Raises DemandError for what cannot be simulated."""

    hosts: tuple[FleetHost, ...]
    group_count: int
    copies: int
    msgs_per_s: float
    """Of each group, as clients offer it."""
    group_msgs_per_s_max: float
    """Rate that one group takes at most, wherever it is led: the least of the plan's limits."""
    log_size_bytes: float
    """Of a message in the log."""
    derived_size_bytes: float
    """Of a message in queues, indexes and checksums, on each disk."""
    record_size_bytes: float
    """Of a message on its way to a consumer."""
    consumer_count: int
    retained_size_bytes: float
    """Log of a copy."""
    leader_cpu_s: float
    """Processor time of a message on the leader, reading included."""
    follower_cpu_s: float
    cores: float
    """Of a host."""
    network_bytes_per_s: float
    disk_write_bytes_per_s: float
    catch_up_bytes_per_s: float
    """Log that one copy takes over at most."""
    failover_s: tuple[float, float]
    """Shortest and longest time from the death of a leader to the next ack."""
    hand_over_s: float
    """Time without acks when a leader hands over."""
    replace_after_s: float = _REPLACE_AFTER_S
    """Time until the copies of a lost host are placed on others."""
    rebalance_s: float = 60.0
    """Pause between two looks at the leaders; 0: never."""
    duration_s: float = 3_600.0
    faults: tuple[FleetFault, ...] = ()
    seed: int = 1

    def __post_init__(self) -> None:
        names = {host.name for host in self.hosts}
        zones = {host.zone for host in self.hosts}
        for what, count, most in (
            ("hosts", len(self.hosts), HOST_COUNT_MAX),
            ("broker groups", self.group_count, GROUP_COUNT_MAX),
        ):
            if not 1 <= count <= most:
                raise DemandError(
                    f"a fleet of {count} {what}", f"1 to {most} are simulated", "use fewer"
                )
        if not DURATION_S_MIN <= self.duration_s <= DURATION_S_MAX:
            raise DemandError(
                f"a run of {self.duration_s:g} s",
                f"{DURATION_S_MIN} s to {DURATION_S_MAX // 86_400} days are simulated",
                "give --duration within that",
            )
        if len(self.faults) > FAULT_COUNT_MAX:
            raise DemandError(
                f"{len(self.faults)} faults", f"at most {FAULT_COUNT_MAX} are simulated", "use less"
            )
        for fault in self.faults:
            if not 0 <= fault.at_s <= self.duration_s:
                raise DemandError(
                    f"{fault} never happens",
                    f"it begins at {fault.at_s:g} s, and the run ends at {self.duration_s:g} s",
                    "begin it earlier, or give a longer --duration",
                )
            if fault.name not in (zones if fault.kind is FaultKind.ZONE else names):
                raise DemandError(
                    f"{fault} names nothing of the fleet",
                    f"zones are {', '.join(sorted(zones))}; hosts are like {min(names)}",
                    "use one of these",
                )


def fleet_hosts(count: int, zone_count: int, node_count_max: int) -> tuple[FleetHost, ...]:
    """Return hosts named `z0-h0`, spread evenly over zones."""
    return tuple(
        FleetHost(f"z{at % zone_count}-h{at // zone_count}", f"z{at % zone_count}", node_count_max)
        for at in range(count)
    )


def scenario_of(
    plan: CapacityPlan,
    calibration: Calibration,
    *,
    host_count: int | None = None,
    group_count: int | None = None,
    duration_s: float = 3_600.0,
    seed: int = 1,
) -> FleetScenario:
    """Return the fleet of a plan, with its numbers of hosts and groups or with others."""
    demand = plan.demand
    groups = group_count or plan.layout.group_count
    hosts = host_count or plan.layout.host_count
    leader_cpu_s, follower_cpu_s = append_cpu_s(demand, calibration)
    retained = demand.average_msgs_per_s * demand.retention_s * plan.value("log_bytes_per_msg")
    # The copies of a lost host have room on the others of its zone: else the spread would break.
    left = max(1, hosts // demand.zones - max(demand.host_failures, 1))
    rooms = -(-groups * demand.copies // (demand.zones * left)) + 1
    round_trip_s = demand.round_trip_ms / 1e3
    return FleetScenario(
        hosts=fleet_hosts(hosts, demand.zones, rooms),
        group_count=groups,
        copies=demand.copies,
        msgs_per_s=demand.peak_msgs_per_s / groups,
        group_msgs_per_s_max=plan.limits.msgs_per_s,
        log_size_bytes=plan.value("log_bytes_per_msg"),
        derived_size_bytes=plan.value("derived_bytes_per_msg"),
        record_size_bytes=plan.value("record_size_bytes"),
        consumer_count=demand.consumer_count,
        retained_size_bytes=retained / groups,
        leader_cpu_s=leader_cpu_s + demand.consumer_count * calibration.read_cpu_s,
        follower_cpu_s=follower_cpu_s,
        cores=demand.host.cores,
        network_bytes_per_s=demand.host.network_bytes_per_s,
        disk_write_bytes_per_s=calibration.disk_write_bytes_per_s,
        catch_up_bytes_per_s=calibration.catch_up_bytes_per_s,
        failover_s=(
            calibration.failover_s / 2 + 3 * round_trip_s,
            calibration.failover_s_max + 3 * round_trip_s,
        ),
        hand_over_s=3 * round_trip_s + calibration.sync_s,
        replace_after_s=min(_REPLACE_AFTER_S, duration_s / 20),
        duration_s=duration_s,
        seed=seed,
    )


def usual_faults(hosts: tuple[FleetHost, ...], duration_s: float) -> tuple[FleetFault, ...]:
    """Return a host that is away, a host that is lost, and a zone that is away, in this order."""
    zones = sorted({host.zone for host in hosts})
    faults = [FleetFault(FaultKind.HOST, hosts[0].name, 0.05 * duration_s, 0.1 * duration_s)]
    if len(hosts) > len(zones):
        faults.append(FleetFault(FaultKind.LOST, hosts[-1].name, 0.25 * duration_s))
    if len(zones) > 1:
        faults.append(FleetFault(FaultKind.ZONE, zones[0], 0.6 * duration_s, 0.15 * duration_s))
    return tuple(faults)


def random_faults(
    hosts: tuple[FleetHost, ...], count: int, duration_s: float, seed: int
) -> tuple[FleetFault, ...]:
    """Return faults of one host each, in order of time. One in ten loses its host permanently."""
    rng = random.Random(seed)
    faults = []
    for _ in range(count):
        at_s = round(rng.uniform(0, duration_s), 3)
        is_lost = rng.random() < 0.1
        faults.append(
            FleetFault(
                FaultKind.LOST if is_lost else FaultKind.HOST,
                rng.choice(hosts).name,
                at_s,
                0.0 if is_lost else round(rng.uniform(1, duration_s / 10), 3),
            )
        )
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.name)))
