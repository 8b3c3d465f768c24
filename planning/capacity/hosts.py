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
from planning.capacity.figure import CapacityFigure, amount, counted, figures, number
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
    layouts = _Layouts(demand, sizes, calibration, formats)
    groups = by_rate
    first = layouts.of(groups)
    while first is None:
        if groups >= GROUP_COUNT_MAX:
            raise layouts.misfit(groups)
        groups = min(groups * 2 if groups < 64 else math.ceil(groups * 1.1), GROUP_COUNT_MAX)
        first = layouts.of(groups)
    most = max(groups, min(8 * groups, CLIENT_GROUP_COUNT_MAX))
    tried = [first, *filter(None, map(layouts.of, range(groups + 1, most + 1)))]
    best = min(tried, key=lambda layout: (layout.host_count, layout.group_count))
    why = "" if best.group_count == by_rate else ", and more so that nodes fit onto hosts"
    counts = figures(
        "hosts",
        broker_group_count=(
            best.group_count,
            f"{number(demand.peak_msgs_per_s)} msg/s / ({number(limits.msgs_per_s)} msg/s x "
            f"{demand.utilisation} in use){why}",
        ),
        node_count=(
            best.group_count * demand.copies,
            f"{counted(best.group_count, 'groups')} x {counted(demand.copies, 'copies')}",
        ),
    )
    return replace(best, figures=(*counts, *best.figures))


@dataclass(frozen=True, slots=True)
class _Layouts:
    """The hosts of a demand for any number of groups."""

    demand: Demand
    sizes: MessageSizes
    calibration: Calibration
    formats: FormatSizes

    def of(self, groups: int) -> HostLayout | None:
        """Return the hosts for a number of groups; None if a node does not fit onto a host."""
        disk, memory = self._disk_and_memory(groups)
        disk_size, memory_size = _last(disk), _last(memory)
        host = self.demand.host
        if disk_size > host.disk_size_bytes or memory_size > host.memory_size_bytes:
            return None
        counts = self._host_counts(groups, disk_size, memory_size)
        hosts, words = _with_failures(self.demand, counts)
        needed = {f"hosts_for_{count.resource}": (count.count, count.formula) for count in counts}
        of_hosts = figures("hosts", **needed, host_count=(hosts, words))
        return HostLayout(groups, hosts, tuple(counts), tuple(disk), tuple(memory), tuple(of_hosts))

    def _disk_and_memory(self, groups: int) -> tuple[list[CapacityFigure], list[CapacityFigure]]:
        disk = disk_figures(self.demand, self.sizes, self.formats, groups)
        return disk, memory_figures(self.demand, self.sizes, self.formats, self.calibration, groups)

    def misfit(self, groups: int) -> DemandError:
        """Return the error that says what a node needs."""
        host = self.demand.host
        disk_size, memory_size = map(_last, self._disk_and_memory(groups))
        return DemandError(
            f"a node needs {amount(disk_size, 'B')} of disk and {amount(memory_size, 'B')} of "
            "memory however small its share is",
            f"a host has {amount(host.disk_size_bytes, 'B')} and "
            f"{amount(host.memory_size_bytes, 'B')}",
            "give larger hosts with --host-disk and --host-memory",
        )

    def _host_counts(self, groups: int, disk_size: float, memory_size: float) -> list[HostCount]:
        demand, host = self.demand, self.demand.host
        nodes = groups * demand.copies
        cores = cores_needed(demand, self.calibration)
        busier = max(traffic(demand, self.sizes))
        use = demand.utilisation

        def fitting(resource: str, size: int, needed: float) -> HostCount:
            fit = int(size // needed)
            words = f"{counted(nodes, 'nodes')} / {fit} that fit into {amount(size, 'B')}"
            return HostCount(resource, math.ceil(nodes / fit), words)

        return [
            HostCount(
                "copies",
                demand.copies,
                f"{counted(demand.copies, 'copies')} of a group on hosts of their own",
            ),
            HostCount(
                "cores",
                math.ceil(cores / (host.cores * use)),
                f"{number(cores)} cores at the peak / ({host.cores} of a host x {use})",
            ),
            fitting("disk", host.disk_size_bytes, disk_size),
            fitting("memory", host.memory_size_bytes, memory_size),
            HostCount(
                "network",
                math.ceil(busier / (host.network_bytes_per_s * use)),
                f"{amount(busier, 'B/s')} / ({amount(host.network_bytes_per_s, 'B/s')} x {use})",
            ),
        ]


def _last(figures_of_part: Sequence[CapacityFigure]) -> float:
    value = figures_of_part[-1].value
    assert value is not None, f"{figures_of_part[-1].name} has no value"
    return value


def append_cpu_s(demand: Demand, calibration: Calibration) -> tuple[float, float]:
    """Return the processor time of a message on the leader, and on each follower."""
    count, size_bytes = demand.batch_count, demand.batch_count * demand.body_size_bytes
    of_three = calibration.nodes_cost.seconds(count, size_bytes) / count
    of_leader = min(of_three, calibration.leader_cost.seconds(count, size_bytes) / count)
    return of_leader, (of_three - of_leader) / (CALIBRATED_COPIES - 1)


def cores_needed(demand: Demand, calibration: Calibration) -> float:
    """Return the processor time that all nodes need in a second at the peak."""
    of_leader, of_follower = append_cpu_s(demand, calibration)
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
