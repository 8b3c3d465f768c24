"""Groups, nodes and hosts: how many, and which resource asks for them.

Owns the choice of the numbers. A node is a process of one group; a host runs several nodes, never
two of one group.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planning.capacity.calibration import Calibration
from planning.capacity.demand import Demand, DemandError
from planning.capacity.disks import disk_figures, memory_figures
from planning.capacity.figure import CapacityFigure, amount, figures, number
from planning.capacity.formats import FormatSizes
from planning.capacity.traffic import FRAME_RATIO, GroupLimits, MessageSizes

CALIBRATED_COPIES = 3
"""Nodes whose processor time a calibration has measured together."""
CLIENT_GROUP_COUNT_MAX = 33
"""Broker groups that one client follows: that of its addresses and 32 it hears of
(quorumlog/cluster/broker_groups.py)."""
MOVING_RESOURCES = ("cores", "network")
"""Resources that other hosts have to have when leaders move to them."""
GROUP_COUNT_MAX = 1 << 20
"""Limit of the search for a number of groups whose nodes fit onto a host."""


@dataclass(frozen=True, slots=True)
class HostCount:
    """The hosts that one resource asks for, without those that may fail."""

    resource: str
    count: int
    formula: str


@dataclass(frozen=True, slots=True)
class HostLayout:
    """Groups and hosts of a plan, with the figures of one node."""

    group_count: int
    host_count: int
    by_resource: tuple[HostCount, ...]
    disk: tuple[CapacityFigure, ...]
    memory: tuple[CapacityFigure, ...]
    figures: tuple[CapacityFigure, ...]

    @property
    def bottleneck(self) -> str:
        """The resource that asks for most hosts."""
        return max(self.by_resource, key=lambda host_count: host_count.count).resource


def lay_out(
    demand: Demand,
    sizes: MessageSizes,
    limits: GroupLimits,
    calibration: Calibration,
    formats: FormatSizes,
) -> HostLayout:
    """Choose the fewest hosts, and with them the fewest groups.

    More groups make smaller nodes, which fill hosts better: up to eight times the fewest are tried,
    and no more than one client follows unless the fewest are more. Raises DemandError if no node
    fits onto a host.
    """
    by_rate = math.ceil(demand.peak_msgs_per_s / (limits.msgs_per_s * demand.utilisation))

    def of(groups: int) -> HostLayout | None:
        return _layout(demand, sizes, calibration, formats, groups)

    groups = by_rate
    first = of(groups)
    while first is None:
        if groups >= GROUP_COUNT_MAX:
            raise _misfit(demand, sizes, calibration, formats, groups)
        groups = min(groups * 2 if groups < 64 else math.ceil(groups * 1.1), GROUP_COUNT_MAX)
        first = of(groups)
    most = max(groups, min(8 * groups, CLIENT_GROUP_COUNT_MAX))
    tried = [first, *filter(None, map(of, range(groups + 1, most + 1)))]
    best = min(tried, key=lambda layout: (layout.host_count, layout.group_count))
    why = "" if best.group_count == by_rate else ", and more so that nodes fit onto hosts"
    counts = figures(
        "hosts",
        group_count=(
            best.group_count,
            f"{number(demand.peak_msgs_per_s)} msg/s / ({number(limits.msgs_per_s)} msg/s x "
            f"{demand.utilisation} in use){why}",
        ),
        node_count=(
            best.group_count * demand.copies,
            f"{best.group_count} groups x {demand.copies} copies",
        ),
    )
    return replace(best, figures=(*counts, *best.figures))


def _layout(
    demand: Demand,
    sizes: MessageSizes,
    calibration: Calibration,
    formats: FormatSizes,
    groups: int,
) -> HostLayout | None:
    """Return the hosts for a number of groups; None if a node does not fit onto a host."""
    disk = disk_figures(demand, sizes, formats, groups)
    memory = memory_figures(demand, sizes, formats, calibration, groups)
    disk_size, memory_size = _last(disk), _last(memory)
    host = demand.host
    if disk_size > host.disk_size_bytes or memory_size > host.memory_size_bytes:
        return None
    counts = _host_counts(demand, sizes, calibration, groups, disk_size, memory_size)
    hosts, words = _with_failures(demand, counts)
    needed = {f"hosts_for_{count.resource}": (count.count, count.formula) for count in counts}
    of_hosts = figures("hosts", **needed, host_count=(hosts, words))
    return HostLayout(groups, hosts, tuple(counts), tuple(disk), tuple(memory), tuple(of_hosts))


def _misfit(
    demand: Demand,
    sizes: MessageSizes,
    calibration: Calibration,
    formats: FormatSizes,
    groups: int,
) -> DemandError:
    host = demand.host
    disk_size = _last(disk_figures(demand, sizes, formats, groups))
    memory_size = _last(memory_figures(demand, sizes, formats, calibration, groups))
    return DemandError(
        f"a node needs {amount(disk_size, 'B')} of disk and {amount(memory_size, 'B')} of memory "
        "however small its share is",
        f"a host has {amount(host.disk_size_bytes, 'B')} and {amount(host.memory_size_bytes, 'B')}",
        "give larger hosts with --host-disk and --host-memory",
    )


def _last(figures: list[CapacityFigure]) -> float:
    value = figures[-1].value
    assert value is not None, f"{figures[-1].name} has no value"
    return value


def _host_counts(
    demand: Demand,
    sizes: MessageSizes,
    calibration: Calibration,
    groups: int,
    disk_size: float,
    memory_size: float,
) -> list[HostCount]:
    host, nodes = demand.host, groups * demand.copies
    on_disk = int(host.disk_size_bytes // disk_size)
    in_memory = int(host.memory_size_bytes // memory_size)
    cores = cores_needed(demand, calibration)
    sent, received = traffic(demand, sizes)
    busier = max(sent, received)
    return [
        HostCount(
            "copies", demand.copies, f"{demand.copies} copies of a group on hosts of their own"
        ),
        HostCount(
            "cores",
            math.ceil(cores / (host.cores * demand.utilisation)),
            f"{number(cores)} cores at the peak / ({host.cores} of a host x {demand.utilisation})",
        ),
        HostCount(
            "disk",
            math.ceil(nodes / on_disk),
            f"{nodes} nodes / {on_disk} that fit into {amount(host.disk_size_bytes, 'B')}",
        ),
        HostCount(
            "memory",
            math.ceil(nodes / in_memory),
            f"{nodes} nodes / {in_memory} that fit into {amount(host.memory_size_bytes, 'B')}",
        ),
        HostCount(
            "network",
            math.ceil(busier / (host.network_bytes_per_s * demand.utilisation)),
            f"{amount(busier, 'B/s')} / ({amount(host.network_bytes_per_s, 'B/s')} x "
            f"{demand.utilisation})",
        ),
    ]


def cores_needed(demand: Demand, calibration: Calibration) -> float:
    """Return the processor time that all nodes need in a second at the peak."""
    count, body = demand.batch_count, demand.body_size_bytes
    of_three = calibration.nodes_cost.seconds(count, count * body) / count
    of_leader = min(of_three, calibration.leader_cost.seconds(count, count * body) / count)
    of_follower = (of_three - of_leader) / (CALIBRATED_COPIES - 1)
    append_s = of_leader + (demand.copies - 1) * of_follower
    read_s = demand.consumer_count * calibration.read_cpu_s
    return demand.peak_msgs_per_s * (append_s + read_s)


def traffic(demand: Demand, sizes: MessageSizes) -> tuple[float, float]:
    """Return the bytes a second that all hosts send and receive at the peak, frames included."""
    rate = demand.peak_msgs_per_s * FRAME_RATIO
    copied = (demand.copies - 1) * sizes.log
    sent = copied + demand.consumer_count * sizes.record
    return rate * sent, rate * (sizes.record + copied)


def _with_failures(demand: Demand, counts: Sequence[HostCount]) -> tuple[int, str]:
    """Return the hosts with which the rest still carries the load, and the formula in words.

    Clients of a zone that fails move to the others at once; copies do not.
    """
    most = max(counts, key=lambda host_count: host_count.count)
    hosts = most.count + demand.host_failures
    words = f"{most.count} needed + {demand.host_failures} that may fail"
    if demand.zone_failures:
        left = demand.zones - demand.zone_failures
        moving = max(one.count for one in counts if one.resource in MOVING_RESOURCES)
        for_zones = math.ceil(moving * demand.zones / left)
        if for_zones > hosts:
            hosts = for_zones
            words = f"{moving} needed for clients in {left} of {demand.zones} zones"
    even = math.ceil(hosts / demand.zones) * demand.zones
    if even != hosts:
        words += f", the same number in each of {demand.zones} zones"
    return even, words
