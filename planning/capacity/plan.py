"""A plan: all figures for a demand, what limits, and what cannot be.

Owns the order of the steps and the warnings. Nothing is measured here.
"""

from dataclasses import dataclass
from typing import Any

from planning.capacity.calibration import Calibration
from planning.capacity.demand import COPIES_MAX, Demand
from planning.capacity.figure import CapacityFigure, amount, counted, figures, number
from planning.capacity.formats import FormatSizes
from planning.capacity.hosts import (
    CLIENT_GROUP_COUNT_MAX,
    HostLayout,
    cores_needed,
    lay_out,
    traffic,
)
from planning.capacity.times import time_figures
from planning.capacity.traffic import FRAME_RATIO, GroupLimits, MessageSizes, group_limits


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The result. `warnings` are sentences; a plan with one is not to be built as it stands."""

    demand: Demand
    layout: HostLayout
    limits: GroupLimits
    figures: tuple[CapacityFigure, ...]
    warnings: tuple[str, ...]

    def figure(self, name: str) -> CapacityFigure:
        """Return a figure by its key. Raises KeyError."""
        for one in self.figures:
            if one.name == name:
                return one
        raise KeyError(name)

    def value(self, name: str) -> float:
        """Return the value of a figure that has one. Raises KeyError."""
        figure_value = self.figure(name).value
        if figure_value is None:
            raise KeyError(name)
        return figure_value

    @property
    def answer(self) -> str:
        """What the demand needs, in one sentence."""
        demand, layout, count = self.demand, self.layout, len(self.warnings)
        disk, memory = (self.figure(f"node_{of}_size_bytes").text for of in ("disk", "memory"))
        warning = "1 warning says" if count == 1 else f"{count} warnings say"
        hosts = counted(layout.host_count, "hosts")
        groups = counted(layout.group_count, "broker groups")
        return (
            f"{number(demand.peak_msgs_per_s)} msg/s of {amount(demand.body_size_bytes, 'B')}, "
            f"kept for {amount(demand.retention_s, 's')}, need {hosts} (by {layout.bottleneck}) "
            f"with {groups} of {counted(demand.copies, 'nodes')}, each with {disk} of disk and "
            f"{memory} of memory"
            + (f"; {warning} why not to build it as it stands" if count else "")
        )

    def row(self) -> dict[str, Any]:
        """Return the plan under stable keys."""
        return {
            "broker_group_bottleneck": self.limits.bottleneck.name,
            "host_bottleneck": self.layout.bottleneck,
            "warnings": list(self.warnings),
            "figures": [
                {
                    "part": one.part,
                    "figure": one.name,
                    "value": one.value,
                    "unit": one.unit,
                    "formula": one.formula,
                }
                for one in self.figures
            ],
        }


def plan(demand: Demand, calibration: Calibration, formats: FormatSizes) -> CapacityPlan:
    """Compute a plan. Raises DemandError for a demand that nothing can meet."""
    sizes = MessageSizes.of(demand, formats)
    limits = group_limits(demand, sizes, calibration, formats)
    layout = lay_out(demand, sizes, limits, calibration, formats)
    times = time_figures(demand, sizes, calibration, layout)
    smallest = f"the smallest of these: {limits.bottleneck.name}"
    of_all = (
        *sizes.figures(demand, formats),
        *limits.figures,
        *figures("rate", broker_group_msgs_per_s=(limits.msgs_per_s, smallest)),
        *layout.disk,
        *_total_disk(demand, layout),
        *_network(demand, sizes, layout),
        *layout.memory,
        *layout.figures,
        *_cores(demand, calibration),
        *times,
        *_failures(demand),
    )
    warnings = (*_warnings(demand, layout), *_time_warnings(demand, times))
    return CapacityPlan(demand, layout, limits, of_all, warnings)


def _total_disk(demand: Demand, layout: HostLayout) -> list[CapacityFigure]:
    of_node = layout.disk[-1].value
    assert of_node is not None, "a node's disk is always known"
    nodes = layout.group_count * demand.copies
    words = f"{counted(nodes, 'nodes')} x {amount(of_node, 'B')}"
    return figures("disk", total_disk_size_bytes=(nodes * of_node, words))


def _cores(demand: Demand, calibration: Calibration) -> list[CapacityFigure]:
    cores = cores_needed(demand, calibration)
    words = (
        f"{number(demand.peak_msgs_per_s)} msg/s x {cores / demand.peak_msgs_per_s * 1e6:.4g} us "
        f"of {counted(demand.copies, 'nodes')} and {counted(demand.consumer_count, 'consumers')}"
    )
    return figures("hosts", cores=(cores, words))


def _network(demand: Demand, sizes: MessageSizes, layout: HostLayout) -> list[CapacityFigure]:
    sent, received = traffic(demand, sizes)
    peak, followers = demand.peak_msgs_per_s, counted(demand.copies - 1, "followers")
    consumers = counted(demand.consumer_count, "consumers")
    rate = f"{number(peak)} msg/s x"
    frames = f"x {FRAME_RATIO:.4g} for frames"
    # Followers in the leader's own zone get their copy without leaving it; here they are fewest.
    away = demand.copies - max(1, demand.copies // demand.zones)
    return figures(
        "network",
        network_sent_bytes_per_s=(
            sent,
            f"{rate} ({followers} x {number(sizes.log)} B + {consumers} x {sizes.record} B) "
            f"{frames}",
        ),
        network_received_bytes_per_s=(
            received,
            f"{rate} ({sizes.record} B + {followers} x {number(sizes.log)} B) {frames}",
        ),
        host_network_bytes_per_s=(
            max(sent, received) / layout.host_count,
            f"{amount(max(sent, received), 'B/s')} / {counted(layout.host_count, 'hosts')}, "
            "leaders spread",
        ),
        zone_traffic_bytes_per_s=(
            peak * away * sizes.log * FRAME_RATIO,
            f"{rate} {counted(away, 'followers')} in other zones x {number(sizes.log)} B {frames}",
        ),
    )


def _failures(demand: Demand) -> list[CapacityFigure]:
    zones = sum(
        1
        for failed in range(1, demand.zones)
        if failed * demand.copies_of_zone_max <= demand.tolerated_count
    )
    return figures(
        "failures",
        tolerated_copies=(
            demand.tolerated_count,
            f"{counted(demand.copies, 'copies')} - quorum of {demand.quorum}",
        ),
        tolerated_zones=(
            zones,
            f"at most {counted(demand.copies_of_zone_max, 'copies')} in one of "
            f"{counted(demand.zones, 'zones')}, and "
            f"{demand.tolerated_count} may be away",
        ),
    )


def _warnings(demand: Demand, layout: HostLayout) -> list[str]:
    warnings = []
    copies, quorum, tolerated = demand.copies, demand.quorum, demand.tolerated_count
    if demand.host_failures > tolerated:
        warnings.append(
            f"{demand.host_failures} failures cannot be tolerated with {copies} copies: the quorum "
            f"is {quorum}; use {_copies(2 * demand.host_failures + 1)}"
        )
    if demand.zone_failures * demand.copies_of_zone_max > tolerated:
        warnings.append(
            f"{demand.zone_failures} of {demand.zones} zones cannot fail with {copies} copies: "
            f"{demand.copies_of_zone_max} of them are in one zone and {tolerated} may be away; use "
            f"{_copies(2 * demand.zone_failures + 1)}, each in a zone of its own"
        )
    if copies % 2 == 0:
        warnings.append(
            f"{copies} copies tolerate no more than {copies - 1} do: the quorum is {quorum}; use "
            f"{copies - 1} or {copies + 1}"
        )
    if demand.zones == 1 and copies > 1:
        warnings.append("all hosts are in one zone: when it fails, nothing is served")
    elif copies > 1 and not demand.zone_failures and demand.copies_of_zone_max > tolerated:
        warnings.append(
            f"the loss of one zone can stop a group: {demand.copies_of_zone_max} of {copies} "
            f"copies are in one of {demand.zones} zones; use 3 zones or more"
        )
    if layout.group_count > CLIENT_GROUP_COUNT_MAX:
        clusters = -(-layout.group_count // CLIENT_GROUP_COUNT_MAX)
        warnings.append(
            f"a client follows {CLIENT_GROUP_COUNT_MAX} groups, and {layout.group_count} are "
            f"needed; make {clusters} clusters with topics of their own, or send larger batches"
        )
    return warnings


def _copies(count: int) -> str:
    """Return the advice to have `count` copies, or fewer failures where no group has that many."""
    if count <= COPIES_MAX:
        return f"{count} copies"
    return f"fewer failures: {COPIES_MAX} copies, the limit, tolerate {COPIES_MAX // 2}"


def _time_warnings(demand: Demand, times: list[CapacityFigure]) -> list[str]:
    warnings = []
    if any(one.value is None for one in times if one.name == "catch_up_s"):
        warnings.append(
            "a node that was away never catches up at the peak: as much comes as it takes; use "
            "more groups or a faster network"
        )
    if demand.outage_s > demand.retention_s:
        warnings.append(
            f"after {amount(demand.outage_s, 's')} away nothing of what a node has is retained: "
            "it is restored as a lost disk is"
        )
    return warnings
